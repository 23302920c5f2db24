"""Sign-off and verification, on a run over fakes and a database whose rows are altered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from qualab.analysis.analyse import analyse
from qualab.analysis.scoring import summary_of
from qualab.bootstrap import share
from qualab.errors import ComparisonBusy, InvalidValue, NotYet, ScoringTimedOut, SignOffRefused
from qualab.model.canonical import canonical_json, sha256
from qualab.model.comparison import seal_of
from qualab.model.names import Verdict
from qualab.model.plan import DecisionRule
from qualab.run.run import start
from qualab.run.sign import sign_off
from qualab.run.verify import Verification, verify
from qualab.store import Store, open_store
from tests.app.fakes import START, Bench, FakeEndpoint, FakeHarness, FakeTasks, QuietProgress, experiment
from tests.store.samples import make_comparison, make_items

DIGEST = "sha256:" + "a" * 64
PINNED = {"image": f"vllm@{DIGEST}", "revision": "c" * 40}


@dataclass
class Done:
    """A finished comparison in a database."""

    bench: Bench
    store: Store
    id: str

    def sign(self, **changes: Any) -> Any:
        said = {"signed_by": "Kim Minji", "who": "kim@ci", "at": START, **changes}
        return sign_off(self.store, self.store.registry, self.id, **said)

    def verify(self) -> Verification:
        return verify(self.bench.services, self.store.registry, self.id)

    def alter(self, statement: str) -> None:
        with self.store.engine.begin() as connection:
            assert connection.exec_driver_sql(statement).rowcount > 0


Finish = Callable[..., Any]


@pytest.fixture
def finish(tmp_path: Path) -> Finish:
    async def finished(n_items: int = 200, hard: Iterable[int] = (1,), **changes: Any) -> Done:
        store = open_store(f"sqlite:///{tmp_path}/q.db", migrations=share("migrations"))
        bench = Bench(
            harness=FakeHarness(FakeTasks(n_items=n_items, hard=frozenset(hard))),
            candidate=FakeEndpoint("http://on", drafts=True),
            store=store,
        )
        wanted = experiment(rule=DecisionRule(margin=0.05), **(PINNED | changes))
        analysis = await start(bench.services, wanted, keys={}, progress=QuietProgress())
        return Done(bench, store, analysis.comparison_id)

    return finished


@pytest.mark.parametrize(("hard", "value"), [(range(0), 1), (range(200), 0)])
async def test_both_arms_at_an_end_of_the_scale_are_signed_off_by_override_alone(
    finish: Finish, hard: range, value: int
) -> None:
    done = await finish(hard=hard)
    doubt = f"sums/exact_match,none: both arms are at {value}, as a broken scorer or filter would have them"
    analysis = done.store.analysis(done.id)
    assert analysis is not None
    assert (analysis.verdict, analysis.reasons[0]) == (Verdict.EQUIVALENT, doubt)
    with pytest.raises(SignOffRefused, match="broken scorer"):
        done.sign()
    signed = done.sign(override="The benchmark is saturated")
    assert (signed.obstacles, signed.override) == ((doubt,), "The benchmark is saturated")


async def test_a_passing_pinned_comparison_is_signed_off_on_record(finish: Finish) -> None:
    done = await finish()
    signed = done.sign(note="release 12")
    assert (signed.verdict, signed.obstacles, signed.note) == (Verdict.EQUIVALENT, (), "release 12")
    assert signed.analysis_hash == done.store.seals(done.id)[-1].seal
    assert list(done.store.registry.signoffs(done.id)) == [signed]
    (entry,) = done.store.registry.audit().entries
    assert (entry.who, entry.action, entry.subject) == ("kim@ci", "comparison.sign-off", done.id)
    assert entry.details["as"] == "Kim Minji"


@pytest.mark.parametrize(
    ("changes", "obstacle"),
    [
        ({"image": "", "revision": ""}, "unpinned"),
        ({"limit": 0.5}, "limited"),
        ({"n_items": 12}, "the verdict is INCONCLUSIVE"),
    ],
)
async def test_what_stands_in_the_way_refuses_a_sign_off_unless_a_reason_is_given(
    finish: Finish, changes: dict[str, Any], obstacle: str
) -> None:
    done = await finish(**changes)
    with pytest.raises(SignOffRefused, match=obstacle):
        done.sign()
    assert not done.store.registry.signoffs(done.id)
    signed = done.sign(override="the customer waits")
    assert signed.override == "the customer waits"
    assert any(obstacle in one for one in signed.obstacles)


async def test_a_sign_off_needs_a_name_and_no_needless_override(finish: Finish) -> None:
    done = await finish()
    with pytest.raises(InvalidValue, match="Nobody is named"):
        done.sign(signed_by="  ")
    with pytest.raises(InvalidValue, match="nothing to override"):
        done.sign(override="because")


def test_what_has_no_verdict_is_not_signed_off(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/q.db", migrations=share("migrations"))
    store.create(make_comparison(), make_items(1))
    with pytest.raises(NotYet, match="no verdict"):
        sign_off(store, store.registry, "c-1", signed_by="Kim", who="kim@ci", at=START)


async def test_what_is_as_it_was_stored_is_verified_whole(finish: Finish) -> None:
    done = await finish()
    done.sign()
    found = done.verify()
    assert {check.name: check.is_ok for check in found.checks} == dict.fromkeys(
        ("plan", "seals", "requests", "row", "answers", "scores", "analysis", "outcomes", "sign-off"), True
    )
    assert next(check.detail for check in found.checks if check.name == "seals") == "1 analysis, sealed"
    assert not found.is_altered
    assert found.seal == done.store.seals(done.id)[-1].seal


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("UPDATE comparison SET plan = replace(plan, '\"margin\":0.05', '\"margin\":0.06')", {"plan"}),
        ("UPDATE analysis SET body = replace(body, '\"n_missing\":0', '\"n_missing\":1')", {"seals", "analysis"}),
        ("UPDATE analysis SET previous = seal", {"seals"}),
        ("UPDATE answer SET latency_s = latency_s + 0.000001 WHERE position = 3", {"answers"}),
        ("UPDATE score SET value = 1 - value WHERE position = 3 AND arm = 'baseline'", {"scores", "analysis"}),
        (
            "UPDATE answer SET request_hash = zeroblob(16) WHERE position = 3 AND arm = 'baseline'",
            {"requests", "answers"},
        ),
        ("UPDATE signoff SET analysis_hash = 'another'", {"sign-off"}),
        ("DELETE FROM observation WHERE kind = 'first_tokens'", {"analysis"}),
        ("UPDATE signoff SET signed_by = 'Somebody'", {"sign-off"}),
        ("UPDATE signoff SET note = 'another'", {"sign-off"}),
        ("UPDATE signoff SET verdict = 'REGRESSION'", {"sign-off"}),
        ("UPDATE signoff SET plan_hash = 'another'", {"sign-off"}),
        ("UPDATE signoff SET signed_at = replace(signed_at, '2026', '2025')", {"sign-off"}),
        ("UPDATE audit SET subject = 'another'", {"sign-off"}),
        ("DELETE FROM signoff", {"sign-off"}),
        (
            "INSERT INTO signoff SELECT comparison_key, 2, plan_hash, analysis_hash, verdict, 'Somebody', note,"
            " override, obstacles, signed_at FROM signoff",
            {"sign-off"},
        ),
        ("UPDATE comparison SET verdict = 'REGRESSION'", {"row"}),
        ("UPDATE comparison SET verdict = NULL", {"row"}),
        ("UPDATE comparison SET model = 'another'", {"row"}),
        ("UPDATE comparison SET n_items = 7", {"row"}),
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
async def test_what_was_altered_is_found(finish: Finish, statement: str, wrong: set[str]) -> None:
    done = await finish()
    done.sign()
    done.alter(statement)
    found = done.verify()
    assert found.is_altered
    assert wrong <= {check.name for check in found.checks if check.is_ok is False}


async def test_a_sign_off_of_a_version_that_recorded_less_is_not_called_altered(finish: Finish) -> None:
    done = await finish()
    done.sign()
    done.alter("UPDATE audit SET details = json_remove(details, '$.sha256')")
    assert not done.verify().is_altered
    done.alter("UPDATE signoff SET signed_by = 'Somebody'")
    assert done.verify().is_altered


@pytest.mark.parametrize(
    "texts", [{"signed_by": "K\x1b[31m"}, {"signed_by": "k" * 201}, {"note": "n" * 2_001}, {"note": "\0"}]
)
async def test_a_sign_off_says_what_can_be_kept_and_shown(finish: Finish, texts: dict[str, str]) -> None:
    done = await finish()
    with pytest.raises(InvalidValue) as caught:
        done.sign(**texts)
    assert set(caught.value.details["fields"]) == set(texts)  # type: ignore[call-overload]
    assert not done.store.registry.signoffs(done.id)


async def test_an_analysis_cannot_be_put_in_between_or_left_out(finish: Finish) -> None:
    done = await finish()
    analysis = done.store.analysis(done.id)
    assert analysis is not None
    done.store.put_analysis(replace(analysis, plan_hash="o" * 64), now=START)
    assert not done.verify().is_altered
    done.alter("DELETE FROM analysis WHERE id = (SELECT min(id) FROM analysis)")
    assert "seals" in {check.name for check in done.verify().checks if check.is_ok is False}


async def test_what_is_being_run_is_not_called_altered(finish: Finish) -> None:
    done = await finish()
    now = done.bench.services.clock.now()
    done.store.claim(done.id, runner="another", now=now, stale_after_s=30.0)
    with pytest.raises(ComparisonBusy):
        done.verify()


async def test_tasks_that_are_not_there_any_more_are_said_and_nothing_is_called_altered(finish: Finish) -> None:
    done = await finish()
    done.bench.harness.tasks.config_hash = "another"
    found = {check.name: check for check in done.verify().checks}
    assert found["scores"].is_ok is None
    assert "cannot be loaded as they were" in found["scores"].detail
    assert not done.verify().is_altered


async def test_what_an_earlier_version_stored_is_not_called_altered(finish: Finish) -> None:
    """Its plan has fewer fields, and its analysis neither seal nor hash of the data."""
    done = await finish()
    plan = json.loads(done.store.plan_text(done.id))
    del plan["sequential"]
    text = canonical_json(plan)
    analysis = done.store.analysis(done.id)
    assert analysis is not None
    body = canonical_json(replace(analysis, data_hash="", plan_hash=sha256(text)))
    with done.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE comparison SET plan = ?, plan_hash = ?", (text, sha256(text)))
        connection.exec_driver_sql(
            "UPDATE analysis SET body = ?, plan_hash = ?, seal = '', previous = ''", (body, sha256(text))
        )
    found = done.verify()
    assert not found.is_altered
    looked_at = {check.name: check.is_ok for check in found.checks}
    assert (looked_at["plan"], looked_at["seals"], looked_at["answers"], looked_at["analysis"]) == (
        True,
        None,
        None,
        None,
    )


async def test_a_run_of_a_version_that_did_not_tokenize_is_verified_whole(finish: Finish) -> None:
    """There is no such observation, and the analysis does not know the word."""
    done = await finish()
    done.alter("DELETE FROM observation WHERE kind = 'first_tokens'")
    comparison, items = done.store.get(done.id), list(done.store.items(done.id))
    counted = summary_of(done.store, done.id, items)
    found = analyse(done.store, comparison, done.bench.harness.tasks, items, counted)
    body = json.loads(canonical_json(found))
    assert body.pop("tokens") is None
    text = canonical_json(body)
    with done.store.engine.begin() as connection:
        seal = seal_of(text, previous=comparison.plan_hash)
        connection.exec_driver_sql("UPDATE analysis SET body = ?, seal = ?", (text, seal))
    assert {check.is_ok for check in done.verify().checks if check.name in ("seals", "answers", "analysis")} == {True}


async def test_scores_that_take_too_long_to_make_again_are_no_alteration(
    finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await finish()

    def hangs(*_: Any) -> Any:
        raise ScoringTimedOut("Scoring item sums/3 took more than 30 s in filter none of task sums")

    monkeypatch.setattr(FakeTasks, "score", hangs)
    found = done.verify()
    checks = {check.name: check for check in found.checks}
    assert not found.is_altered
    assert checks["scores"].is_ok is None
    assert "sums/3 took more than 30 s" in checks["scores"].detail
    assert checks["analysis"].is_ok
