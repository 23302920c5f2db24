"""Sign-off and verification, on a run over fakes and a database whose rows are altered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import Mock

import pytest

from qualab.errors import ComparisonBusy, InvalidValue, ScoringTimedOut, WrongState
from qualab.model.names import Language, Verdict
from qualab.report.words import ENGLISH, catalogue
from qualab.run.sign import sign_off
from qualab.run.verify import Verification, verify
from qualab.store import Store
from tests.app.fakes import START, Bench, FakeHarness, FakeTasks
from tests.fresh_store import copy_of, fresh_store
from tests.said import english
from tests.store.samples import make_comparison, make_items

PINNED = {"image": f"vllm@sha256:{'a' * 64}", "revision": "c" * 40}


@dataclass
class Done:
    """A finished comparison in a database."""

    bench: Bench
    id: str

    @property
    def store(self) -> Store:
        return self.bench.store

    def sign(self, **changes: Any) -> Any:
        said = {"signed_by": "Kim Minji", "who": "kim@ci", "at": START, **changes}
        return sign_off(self.store, self.id, **said)

    def verify(self) -> Verification:
        return verify(self.bench.services, self.id)

    def alter(self, statement: str) -> None:
        with self.store.engine.begin() as connection:
            assert connection.exec_driver_sql(statement).rowcount > 0


async def finish(n_items: int = 200, **changes: Any) -> Done:
    bench = Bench.of(n_items, hard=changes.pop("hard", (1,)))
    analysis = await bench.run(margin=0.05, **(PINNED | changes))
    return Done(bench, analysis.comparison_id)


@cache
def finished() -> Done:
    return asyncio.run(finish())


def copied() -> Done:
    """A comparison that is run once for all tests, which sign off and alter copies of it."""
    bench = finished().bench
    own = FakeHarness(replace(bench.harness.tasks))
    return Done(replace(bench, store=copy_of(bench.store), harness=own), finished().id)


def signed() -> Done:
    done = copied()
    done.sign()
    return done


@pytest.mark.parametrize(
    ("changes", "obstacle"),
    [
        ({"image": "", "revision": ""}, "no image is named"),
        ({"limit": 0.5}, "limited"),
        ({"n_items": 12}, "the verdict is INCONCLUSIVE"),
        ({"hard": range(0)}, "both arms are at 1, as a broken scorer or filter would have them"),
        ({"hard": range(200)}, "both arms are at 0, as a broken scorer or filter would have them"),
    ],
)
async def test_what_stands_in_the_way_refuses_a_sign_off_unless_a_reason_is_given(
    changes: dict[str, Any], obstacle: str
) -> None:
    done = await finish(**changes)
    with pytest.raises(WrongState, match=obstacle):
        done.sign()
    assert not done.store.signoffs(done.id)
    signed = done.sign(override="the customer waits")
    assert signed.override == "the customer waits"
    assert any(obstacle in one for one in english(signed.obstacles))


def test_a_passing_pinned_comparison_is_signed_off_on_record() -> None:
    done = copied()
    signed = done.sign(note="release 12")
    assert (signed.verdict, english(signed.obstacles), signed.note) == (Verdict.EQUIVALENT, (), "release 12")
    assert signed.analysis_hash == done.store.seals(done.id)[-1].seal
    assert list(done.store.signoffs(done.id)) == [signed]
    (entry,) = done.store.audit().entries
    assert (entry.who, entry.action, entry.subject) == ("kim@ci", "comparison.sign-off", done.id)
    assert entry.details["as"] == "Kim Minji"


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ({"signed_by": "  "}, "Nobody is named"),
        ({"override": "because"}, "nothing to override"),
        ({"signed_by": "K\x1b[31m"}, "a name on one line"),
        ({"signed_by": "k" * 201}, "at most 200"),
        ({"note": "n" * 2_001}, "at most 2,000"),
        ({"note": "\0"}, "without NUL"),
    ],
)
def test_a_sign_off_says_what_can_be_kept_and_shown(texts: dict[str, str], says: str) -> None:
    done = copied()
    with pytest.raises(InvalidValue, match=says) as caught:
        done.sign(**texts)
    assert set(caught.value.details["fields"]) == set(texts)  # type: ignore[call-overload]
    assert not done.store.signoffs(done.id)


def test_what_has_no_verdict_is_not_signed_off() -> None:
    store = fresh_store()
    store.create(make_comparison(), make_items(1))
    with pytest.raises(WrongState, match="no analysis yet"):
        sign_off(store, "c-1", signed_by="Kim", who="kim@ci", at=START)


def test_what_is_as_it_was_stored_is_verified_whole_in_other_words_too(monkeypatch: pytest.MonkeyPatch) -> None:
    done = signed()
    seals, reasons = done.store.seals(done.id), done.store.analysis(done.id).reasons
    before = english(reasons)
    for code, text in ENGLISH.texts("reasons").items():
        monkeypatch.setitem(catalogue(Language.ENGLISH)["reasons"], code, f"In other words: {text}")
    assert english(reasons) != before
    found = done.verify()
    assert {check.name: check.is_ok for check in found.checks} == dict.fromkeys(
        ("plan", "seals", "requests", "row", "answers", "scores", "analysis", "outcomes", "sign-off"), True
    )
    assert next(check.detail for check in found.checks if check.name == "seals") == "1 analysis, sealed"
    assert (found.is_altered, found.seal) == (False, seals[-1].seal)
    assert done.store.seals(done.id) == seals
    assert not any(text in seals[-1].body for text in before)


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("UPDATE comparison SET plan = replace(plan, '\"margin\":0.05', '\"margin\":0.06')", {"plan"}),
        ("UPDATE analysis SET body = replace(body, '\"n_missing\":0', '\"n_missing\":1')", {"seals", "analysis"}),
        ("UPDATE analysis SET previous = seal", {"seals"}),
        ("UPDATE answer SET latency_s = latency_s + 0.000001 WHERE position = 3", {"answers"}),
        ("UPDATE score SET value = 1 - value WHERE position = 3 AND arm = 'baseline'", {"scores", "analysis"}),
        ("UPDATE answer SET request_hash = zeroblob(16) WHERE position = 3", {"requests", "answers"}),
        ("DELETE FROM observation WHERE kind = 'first_tokens'", {"analysis"}),
        *(
            (f"UPDATE signoff SET {column} = 'another'", {"sign-off"})
            for column in ("analysis_hash", "plan_hash", "signed_by", "note")
        ),
        ("UPDATE signoff SET verdict = 'REGRESSION'", {"sign-off"}),
        ("UPDATE signoff SET signed_at = replace(signed_at, '2026', '2025')", {"sign-off"}),
        *(
            (f"UPDATE comparison SET {change}", {"row"})
            for change in ("verdict = 'REGRESSION'", "verdict = NULL", "model = 'another'", "n_items = 7")
        ),
        ("UPDATE audit SET subject = 'another'", {"sign-off"}),
        ("UPDATE audit SET details = json_remove(details, '$.sha256')", {"sign-off"}),
        ("DELETE FROM signoff", {"sign-off"}),
        (
            "INSERT INTO signoff SELECT comparison_key, 2, plan_hash, analysis_hash, verdict, 'Somebody', note,"
            " override, obstacles, signed_at FROM signoff",
            {"sign-off"},
        ),
        ("UPDATE outcome SET length = length + 1 WHERE position = 3", {"outcomes"}),
        ("DELETE FROM outcome WHERE position = 199", {"outcomes"}),
        ("DELETE FROM analysis", {"row", "sign-off"}),
        ("UPDATE analysis SET seal = '', previous = ''", {"seals", "sign-off"}),
        ("UPDATE score SET detail = '{}' WHERE position = 3 AND arm = 'baseline'", {"scores"}),
        ("UPDATE answer SET text = 'another' WHERE position = 3 AND arm = 'baseline'", {"answers"}),
        ("DELETE FROM item WHERE position = 199", {"answers", "analysis"}),
        ("UPDATE item SET prompts = x'00' WHERE position = 3", {"rows"}),
        ("UPDATE item SET doc = '{' WHERE position = 3", {"rows"}),
        ("UPDATE analysis SET body = '{}'", {"rows"}),
        ("UPDATE comparison SET plan = '{}'", {"rows"}),
    ],
)
def test_what_was_altered_is_found(statement: str, wrong: set[str]) -> None:
    done = signed()
    done.alter(statement)
    found = done.verify()
    assert found.is_altered
    assert wrong <= {check.name for check in found.checks if check.is_ok is False}


def test_an_analysis_cannot_be_put_in_between_or_left_out() -> None:
    done = copied()
    analysis: Any = done.store.analysis(done.id)
    done.store.put_analysis(replace(analysis, plan_hash="o" * 64), now=START)
    assert not done.verify().is_altered
    done.alter("DELETE FROM analysis WHERE id = (SELECT min(id) FROM analysis)")
    assert "seals" in {check.name for check in done.verify().checks if check.is_ok is False}


def test_what_is_being_run_is_not_called_altered() -> None:
    done = copied()
    done.store.claim(done.id, runner="another", now=done.bench.clock.now(), stale_after_s=30.0)
    with pytest.raises(ComparisonBusy):
        done.verify()


def test_what_cannot_be_made_again_is_no_alteration(monkeypatch: pytest.MonkeyPatch) -> None:
    done = copied()
    hangs = ScoringTimedOut("Scoring item sums/3 took more than 30 s in filter none of task sums")
    monkeypatch.setattr(FakeTasks, "score", Mock(side_effect=hangs))
    for says, analysis in (("sums/3 took more than 30 s", [True]), ("cannot be loaded as they were", [])):
        found = done.verify()
        checks = {check.name: check for check in found.checks}
        assert (found.is_altered, checks["scores"].is_ok) == (False, None)
        assert says in checks["scores"].detail
        assert [check.is_ok for check in found.checks if check.name == "analysis"] == analysis
        done.bench.harness.tasks.config_hash = "another"
