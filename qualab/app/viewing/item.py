"""The page of one item: what was asked, what both arms said, and how it was scored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qualab.app.service.desk import Desk
from qualab.app.service.reading import MOST_POSITION, comparison_of
from qualab.app.viewing.curl import Command, commands
from qualab.app.viewing.extraction import Extraction, extraction
from qualab.app.viewing.items import TONES, Browsed, neighbour, shown_score
from qualab.app.viewing.sides import Sides, sides_of
from qualab.app.viewing.words import Wording
from qualab.domain.comparison import Comparison
from qualab.domain.items import Answer, Item, Prompt, Score
from qualab.domain.names import ArmName, RequestKind
from qualab.domain.outcomes import Change
from qualab.domain.plan import deciding_metrics
from qualab.domain.report import Cell
from qualab.domain.text import visible_text
from qualab.errors import ItemNotFound

ROLES = ("system", "user", "assistant")
Place = tuple[int, int]
"""Choice and repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message of a prompt."""

    role: str
    """Empty for plain text."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceLine:
    """One choice of a log-likelihood item."""

    choice: int
    repeat: int
    text: str
    baseline: str
    candidate: str
    is_baselines: bool
    """Whether the baseline finds it the most likely one."""
    is_candidates: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLine:
    """One metric of one repeat, in both arms."""

    metric: str
    repeat: int
    decides: bool
    baseline: str
    candidate: str
    change: Cell
    extracted: tuple[str, str]
    """What was taken out of each answer, where the score holds it; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPage:
    """One item, and the way to the next."""

    comparison_id: str
    name: str
    """The comparison's."""
    position: int
    item_id: str
    is_generation: bool
    prompt: tuple[Said, ...]
    target: str
    document: str
    answers: tuple[Sides, ...]
    choices: tuple[ChoiceLine, ...]
    extraction: Extraction | None
    """None for an item of choices."""
    scores: tuple[ScoreLine, ...]
    commands: tuple[Command, ...]
    browsed: Browsed
    previous: int | None
    next: int | None


def item_page(
    desk: Desk, comparison_id: str, position: int, browsed: Browsed, words: Wording, *, extracts: bool
) -> ItemPage:
    """`extracts`: run the task's filters, whose loading may take a moment. Raises ComparisonNotFound, NotYet,
    ItemNotFound."""
    comparison = comparison_of(desk, comparison_id)
    if not 0 <= position <= MOST_POSITION:
        raise ItemNotFound(f"Comparison {comparison.id} has no item {position}", hint="Positions count from 0")
    item, answers, scores = desk.registry.pair(comparison.id, position)
    is_generation = item.kind is RequestKind.GENERATION
    by_place = _by_place(answers)
    return ItemPage(
        comparison_id=comparison.id,
        name=comparison.label or comparison.id,
        position=position,
        item_id=item.id,
        is_generation=is_generation,
        prompt=_prompt(item.prompts[0], words) if item.prompts else (),
        target=visible_text(item.target),
        document=visible_text(json.dumps(item.doc, ensure_ascii=False, indent=2)) if item.doc else "",
        answers=tuple(_answers(comparison, by_place, words)) if is_generation else (),
        choices=() if is_generation else tuple(_choices(item, comparison, by_place)),
        extraction=_extraction(desk, comparison, item, answers, words, is_asked=extracts),
        scores=tuple(_scores(item, comparison, scores, words)),
        commands=tuple(commands(comparison, item, words)),
        browsed=browsed,
        previous=neighbour(desk, comparison.id, position, browsed, is_backward=True),
        next=neighbour(desk, comparison.id, position, browsed, is_backward=False),
    )


def _extraction(
    desk: Desk, comparison: Comparison, item: Item, answers: Sequence[Answer], words: Wording, *, is_asked: bool
) -> Extraction | None:
    if item.kind is not RequestKind.GENERATION:
        return None
    return extraction(desk, comparison, item, answers, words) if is_asked else Extraction(is_awaited=True)


def _by_place(answers: Sequence[Answer]) -> Mapping[ArmName, Mapping[Place, Answer]]:
    return {arm: {(one.choice, one.repeat): one for one in answers if one.arm is arm} for arm in ArmName}


def _prompt(prompt: Prompt, words: Wording) -> tuple[Said, ...]:
    if not prompt.is_chat:
        return (Said(role="", text=visible_text(prompt.text)),)
    return tuple(_message(one, words) for one in json.loads(prompt.text))


def _message(message: Mapping[str, Any], words: Wording) -> Said:
    role, content = str(message.get("role", "")), message.get("content", "")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return Said(role=words(f"role {role}") if role in ROLES else visible_text(role), text=visible_text(text))


def _answers(
    comparison: Comparison, by_place: Mapping[ArmName, Mapping[Place, Answer]], words: Wording
) -> Iterator[Sides]:
    for repeat in range(comparison.plan.sampling.repeats):
        off, on = (by_place[arm].get((0, repeat)) for arm in ArmName)
        if off or on or not repeat:
            yield sides_of(repeat, off, on, words)


def _choices(
    item: Item, comparison: Comparison, by_place: Mapping[ArmName, Mapping[Place, Answer]]
) -> Iterator[ChoiceLine]:
    for repeat in range(comparison.plan.sampling.repeats):
        found = {arm: _loglikelihoods(of_arm, repeat) for arm, of_arm in by_place.items()}
        best = {arm: max(own, key=lambda choice: own[choice]) if own else None for arm, own in found.items()}
        off, on = found.values()
        for choice, prompt in enumerate(item.prompts):
            yield ChoiceLine(
                choice=choice,
                repeat=repeat,
                text=visible_text(prompt.continuation),
                baseline=_shown(off.get(choice)),
                candidate=_shown(on.get(choice)),
                is_baselines=best[ArmName.BASELINE] == choice,
                is_candidates=best[ArmName.CANDIDATE] == choice,
            )


def _loglikelihoods(of_arm: Mapping[Place, Answer], repeat: int) -> dict[int, float]:
    return {
        choice: answer.reply.loglikelihood
        for (choice, own_repeat), answer in of_arm.items()
        if own_repeat == repeat and answer.reply.loglikelihood is not None
    }


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}".replace("-", "−")


def _scores(item: Item, comparison: Comparison, scores: Sequence[Score], words: Wording) -> Iterator[ScoreLine]:
    metrics = comparison.plan.metrics
    deciding = deciding_metrics(metrics).get(item.task)
    better = {metric.key: metric.higher_is_better for metric in metrics if metric.task == item.task}
    found = {(one.repeat, one.metric, one.arm): one for one in scores}
    for repeat, metric in dict.fromkeys((one.repeat, one.metric) for one in scores):
        off, on = (found.get((repeat, metric, arm)) for arm in ArmName)
        change = _change(off, on, is_higher_better=better.get(metric, True))
        yield ScoreLine(
            metric=metric,
            repeat=repeat,
            decides=deciding is not None and deciding.key == metric,
            baseline=shown_score(off.value if off else None),
            candidate=shown_score(on.value if on else None),
            change=Cell(text=words(f"change {change}"), tone=TONES[change]),
            extracted=(_extracted(off), _extracted(on)),
        )


def _change(off: Score | None, on: Score | None, *, is_higher_better: bool) -> Change:
    if off is None or on is None:
        return Change.UNKNOWN
    if off.value == on.value:
        return Change.SAME
    return Change.GAIN if (on.value > off.value) is is_higher_better else Change.LOSS


def _extracted(score: Score | None) -> str:
    """The prediction of a (target, prediction) pair; of a list each entry."""
    if score is None or score.detail is None:
        return ""
    if all(isinstance(one, bool) for one in score.detail):
        return " ".join("✓" if one else "✗" for one in score.detail)
    return visible_text(str(score.detail[-1] if len(score.detail) == 2 else list(score.detail)))
