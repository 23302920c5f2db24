"""The items of `long`: what they hide, how they are scored, and a drafter that spoils long prompts alone."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from qualab.errors import InvalidValue
from qualab.model.items import Item
from qualab.model.names import Verdict
from qualab.run.run import start
from tests.app.fakes import QuietProgress
from tests.app.scripted_pair import Pair, Talker
from tests.harness.conftest import by_task, load_here, load_named
from tests.scripted_engine import EngineScript
from tests.scripted_server import ScriptedServer
from tests.tasks.conftest import Load, scores

SHORT, LONGER = BINS = "long_1k", "long_2k"


@pytest.fixture(scope="module")
def loaded(load: Load) -> Any:
    return load(*BINS)


@pytest.fixture(scope="module")
def items(loaded: Any) -> dict[str, list[Item]]:
    return by_task(loaded)


def test_the_suite_has_a_primary_metric_a_length_and_asks_over_chat(load: Load) -> None:
    loaded = load("long", limit=1)
    assert (loaded.suite, loaded.applies_chat_template) == ("long", True)
    lengths = [task.prompt_tokens for task in loaded.tasks]
    assert lengths == [1_000, 2_000, 8_000, 32_000, 128_000]
    assert [metric.id for metric in loaded.metrics if metric.is_primary] == sorted(
        f"{task.name}/right,none" for task in loaded.tasks
    )
    texts = [item.prompts[0].text for item in loaded.render()]
    assert all(3.9 < len(text) / tokens < 4.4 for text, tokens in zip(texts, lengths, strict=True))


def test_items_are_made_again_alike_in_two_languages_and_four_kinds(load: Load, loaded: Any, items: Any) -> None:
    assert list(load(*BINS).render()) == list(loaded.render())
    for own in items.values():
        assert len({item.prompts[0].text for item in own}) == len(own) == 160
        assert set(Counter((item.doc["check"], item.doc["language"]) for item in own).values()) == {20}
        assert set(own[0].doc) == {"key", "language", "check", "tokens", "answer"}, "its text is in the prompt alone"
        for item in own:
            text = item.prompts[0].text
            hidden = {"copy": [f": {item.target}\n"], "count": []}.get(item.doc["check"], item.target.split())
            assert all(text.count(part) == 1 for part in hidden)
            assert ("가" <= max(text.replace("·", "")) <= "힣") == (item.doc["language"] == "ko")
    counts = [item for item in items[SHORT] if item.doc["check"] == "count"]
    bells = ("The harbour bell rang once.", "항구의 종이 한 번 울렸다.")
    assert all(int(item.target) + 1 == sum(map(item.prompts[0].text.count, bells)) for item in counts)


VALUES = re.compile(r"(?:The value of variable|변수) ([A-Z]+)(?: is|의 값은) (\d+)")
SAME = re.compile(r"(?:Variable|변수) ([A-Z]+)(?: has the same value as variable |의 값은 변수 )([A-Z]+)")


def test_a_chain_leads_to_its_value_and_codes_lie_at_all_depths(items: dict[str, list[Item]]) -> None:
    depths = []
    for item in (item for own in items.values() for item in own):
        text = item.prompts[0].text
        if item.doc["check"] == "codes":
            depths += [text.index(code) / len(text) for code in item.target.split()]
        if item.doc["check"] == "value":
            values, asked = dict(VALUES.findall(text)), text.splitlines()[-1]
            for name, other in SAME.findall(text):
                values[name] = values[other]
            (name,) = (name for name in values if f" {name}" in asked)
            assert (values[name], len(values), set(Counter(values.values()).values())) == (item.target, 6, {3})
    assert min(depths) < 0.1
    assert max(depths) > 0.9
    assert all(after - before < 0.1 for before, after in pairwise(sorted(depths)))


WRONG: dict[str, Callable[[str], str]] = {
    "a digit": lambda text: text.translate(str.maketrans("123456789", "234567891")),
    "doubled": lambda text: " ".join(word + word[-1] for word in text.split()),
    "cut": lambda text: text[:-1] if len(text) > 1 else "",
    "nothing": lambda _: "",
}
FORMS = ("{}", "{}\n", "<think>12345 or 99999?</think>\n{}")


def test_right_answers_score_1_and_spoiled_ones_0(loaded: Any, items: dict[str, list[Item]]) -> None:
    own = items[SHORT]
    for form in FORMS:
        found = scores(loaded, SHORT, own, lambda item, form=form: form.format(item.target))
        assert {score["right,none"] for score in found} == {1.0}, form
    said = [item for item in own if item.doc["check"] != "copy"]
    around = scores(loaded, SHORT, said, lambda item: f"The answer is **{item.target.replace(' ', ' and ')}**.")
    assert {score["right,none"] for score in around} == {1.0}
    for name, spoil in WRONG.items():
        spoiled = [item for item in own if spoil(item.target) != item.target]
        assert len(spoiled) >= 120, name
        found = scores(loaded, SHORT, spoiled, lambda item, spoil=spoil: spoil(item.target))
        assert {score["right,none"] for score in found} == {0.0}, name


@dataclass(kw_only=True)
class Knower(Talker):
    """Answers every prompt rightly up to a length, and garbage beyond."""

    known: dict[str, str] = field(default_factory=dict)
    right_up_to: int | None = None

    def text(self, prompt: str) -> str:
        is_short = self.right_up_to is None or len(prompt.encode()) < self.right_up_to
        return self.known.get(prompt, self.says) if is_short else "zq zq zq"


class _Loading:
    load = staticmethod(load_here)


@dataclass
class Told(QuietProgress):
    phases: list[str] = field(default_factory=list)

    def phase(self, text: str) -> None:
        self.phases.append(text)


def test_a_drafter_that_spoils_long_prompts_alone_is_a_regression_in_that_bin(items: dict[str, list[Item]]) -> None:
    known = {item.prompts[0].text: item.target for own in items.values() for item in own}
    baseline = Knower(known=known, max_model_len=20_000)
    candidate = Knower(known=known, max_model_len=20_000, drafts=True, engine=EngineScript(), right_up_to=5_500)
    with ScriptedServer(baseline) as off, ScriptedServer(candidate) as on:
        both, progress = Pair(off, on), Told()
        services = replace(both.services, harness=_Loading(), progress=progress)
        analysis = asyncio.run(start(services, both.wanted(tasks=(*BINS, "long_32k"))))
        with pytest.raises(InvalidValue, match="long_32k: too long for the context of 20,000 tokens"):
            asyncio.run(start(services, both.wanted(tasks=("long_32k",))))
        frozen = replace(both.comparison.plan, tasks=load_named(SHORT, "long_32k").tasks, requested=(SHORT, "long_32k"))
        with pytest.raises(InvalidValue, match="long_32k: too long") as refused:
            asyncio.run(start(services, both.wanted(tasks=(SHORT, "long_32k")), frozen=frozen))
    assert refused.value.hint.startswith("Plan again with long_1k, or")
    assert analysis is not None
    assert any("Left out long_32k: too long for the context of 20,000" in phase for phase in progress.phases)
    verdicts = {row.id: row.verdict for row in analysis.metrics if row.is_primary}
    assert verdicts == {f"{SHORT}/right,none": Verdict.EQUIVALENT, f"{LONGER}/right,none": Verdict.REGRESSION}
    assert analysis.verdict is Verdict.REGRESSION
