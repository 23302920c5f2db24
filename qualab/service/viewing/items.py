"""A stored request as a command that sends the same bytes again."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from qualab.errors import ItemNotFound, QualabError, StillLoading, TooManyRequests
from qualab.model.canonical import encode_body
from qualab.model.comparison import Comparison
from qualab.model.items import Answer, Change, Item, Outcome, OutcomeFilter, Prompt, Reply, Score
from qualab.model.names import Api, ArmName, RequestKind
from qualab.model.plan import deciding_metrics
from qualab.model.registry import encode_cursor
from qualab.model.report import Cell, Fact, Tone
from qualab.model.wording import count, seconds, storable_text, visible_text
from qualab.report.flips import first_difference, marked
from qualab.service.context import Context
from qualab.service.reading import MOST_POSITION, ExtractedAnswers, comparison_of, extracted_of, outcomes_of
from qualab.service.viewing.listing import Trouble, trouble
from qualab.service.words import Wording

ROUTES = {Api.COMPLETIONS: "completions", Api.CHAT: "chat/completions"}
KEY = '-H "Authorization: Bearer $API_KEY"'
"""The shell puts the key in: none is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What asks one arm once more."""

    title: str
    text: str


def commands(comparison: Comparison, item: Item, words: Wording) -> Iterator[Command]:
    """Both arms' commands for every request of an item, in the order of its choices and repeats."""
    sampling = comparison.plan.sampling
    for request in item.requests:
        for repeat in range(sampling.repeats):
            body = encode_body(request.payload, seed=sampling.seed + repeat).decode()
            parts = (("choice", request.choice, len(item.requests)), ("repeat", repeat, sampling.repeats))
            place = "".join(f" · {words(name)} {number}" for name, number, n in parts if n > 1)
            for title, url in (("baseline", comparison.baseline_url), ("candidate", comparison.candidate_url)):
                route = f"{url.rstrip('/')}/{ROUTES[request.api]}"
                yield Command(title=words(title) + place, text=command(route, body))


def command(url: str, body: str) -> str:
    """A line for a POSIX shell."""
    head = f"curl -sS {shlex.quote(url)} -H 'Content-Type: application/json' {KEY}"
    return f"{head} --data-raw {shlex.quote(body)}"


WORD = re.compile(r"\s*\S*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideShown:
    """One arm's answer. Texts are a model's: never markup."""

    title: str
    shared: str
    marked: str
    """The first word that differs from the other arm's; empty where none does."""
    rest: str
    ends: str
    """PromptMessage in place of what differs, where the text ends there; empty otherwise."""
    nothing: str
    """PromptMessage in place of the text where there is none, or an empty one; empty otherwise."""
    reasoning: str
    """What the model thought before its answer; empty where nothing is known of it."""
    error: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Both answers of one item and repeat."""

    repeat: int
    difference: str
    sides: tuple[SideShown, ...]


def sides_of(repeat: int, baseline: Answer | None, candidate: Answer | None, words: Wording) -> Sides:
    """Whatever is missing is said."""
    both = [None if one is None else one.reply.text for one in (baseline, candidate)]
    off, on = both
    place = None if off is None or on is None or off == on else first_difference(off, on)
    return Sides(
        repeat=repeat,
        difference=_difference(off, on, place, words),
        sides=tuple(
            _side(words(name), answer, place, words)
            for name, answer in (("baseline", baseline), ("candidate", candidate))
        ),
    )


def _difference(off: str | None, on: str | None, place: int | None, words: Wording) -> str:
    if off is None or on is None:
        return words("one is missing")
    if place is None:
        return words("same texts")
    if place <= 1:
        return words("differ after one" if place else "differ at once")
    return words("differ after", n=count(place))


def _side(title: str, answer: Answer | None, place: int | None, words: Wording) -> SideShown:
    text = answer.reply.text if answer else None
    at = len(text or "") if place is None else place
    rest = (text or "")[at:]
    found = WORD.match(rest)
    head = "" if place is None or found is None else rest[: found.end()]
    return SideShown(
        title=title,
        shared=visible_text((text or "")[:at]),
        marked=marked(head),
        rest=visible_text(rest[len(head) :]),
        ends=words("ends here") if place is not None and not rest and text else "",
        nothing=words("no answer") if text is None else "" if text else words("empty answer"),
        reasoning=visible_text(answer.reply.reasoning) if answer else "",
        error=answer.reply.error if answer else "",
        facts=tuple(_facts(answer.reply, words)) if answer else (),
    )


def _facts(reply: Reply, words: Wording) -> list[Fact]:
    said = [
        ("answer status", words(f"answer {reply.status}")),
        ("finish reason", reply.finish_reason or words("not said")),
        *([("answered by", reply.model)] if reply.model else []),
    ]
    if reply.prompt_tokens is not None or reply.completion_tokens is not None:
        numbers = (_count(reply.prompt_tokens), _count(reply.completion_tokens))
        said.append(("tokens", words("tokens of", prompt=numbers[0], completion=numbers[1])))
    if reply.reasoning_characters:
        said.append(("reasoning", words("characters of", n=count(reply.reasoning_characters))))
    said += [("latency", seconds(reply.latency_s)), ("attempts", count(reply.attempts))]
    if (drafted := reply.drafted) is not None:
        numbers = (count(drafted.accepted_tokens), _count(drafted.draft_tokens))
        said.append(("drafted", words("drafted of", accepted=numbers[0], drafted=numbers[1])))
    return [Fact(label=words(key), text=text) for key, text in said]


def _count(number: int | None) -> str:
    return "?" if number is None else count(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedLine:
    """One filter of one repeat. Texts are a model's: never markup."""

    filter: str
    repeat: int
    baseline: str
    candidate: str
    is_same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """What is known of it by now."""

    lines: tuple[ExtractedLine, ...] = ()
    is_awaited: bool = False
    """Whether it is still to come: asking again will tell."""
    trouble: Trouble | None = None
    """Why it cannot be had."""


def extraction(
    context: Context, comparison: Comparison, item: Item, answers: Sequence[Answer], words: Wording
) -> Extraction:
    """Never raises for what stands in the way: that is said on the page."""
    try:
        found = extracted_of(context, comparison, item, answers)
    except (StillLoading, TooManyRequests):
        return Extraction(is_awaited=True)
    except QualabError as error:
        return Extraction(trouble=trouble(error.code, error.message, error.hint, words))
    texts = {(answer.arm, answer.repeat): answer.reply.text for answer in answers}
    return Extraction(lines=tuple(_line(one, texts, words) for one in found))


def _line(one: ExtractedAnswers, texts: dict[tuple[ArmName, int], str | None], words: Wording) -> ExtractedLine:
    off, on = (_shown(one, arm, texts[arm, one.repeat], words) if arm in one.texts else "–" for arm in ArmName)
    return ExtractedLine(filter=one.filter, repeat=one.repeat, baseline=off, candidate=on, is_same=_is_same(one))


def _is_same(one: ExtractedAnswers) -> bool:
    return len(one.texts) == len(ArmName) and len(set(one.texts.values())) == 1


def _shown(one: ExtractedAnswers, arm: ArmName, answer: str | None, words: Wording) -> str:
    text = one.texts[arm]
    if text == answer and text.strip():
        return words("whole answer")
    return visible_text(text) if text else words("empty answer")


PAGE = 50
SHOWS: Mapping[str, OutcomeFilter] = {
    "all": OutcomeFilter(),
    "flipped": OutcomeFilter(flipped=True),
    "losses": OutcomeFilter(change=Change.LOSS),
    "gains": OutcomeFilter(change=Change.GAIN),
    "missing": OutcomeFilter(missing=True),
    "different": OutcomeFilter(different_text=True),
}
"""Kinds of items."""
TONES = {Change.SAME: Tone.PLAIN, Change.GAIN: Tone.GOOD, Change.LOSS: Tone.BAD, Change.UNKNOWN: Tone.BROKEN}
_BEHIND_ALL = 2**31
"""A repeat that no item has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsFilter:
    """Which items somebody looks at."""

    show: str = "all"
    task: str = ""
    min_length: int | None = None
    max_length: int | None = None

    def filter(self) -> OutcomeFilter:
        """For the registry."""
        return replace(
            SHOWS[self.show],
            task=storable_text(self.task) or None,
            min_length=self.min_length,
            max_length=self.max_length,
        )

    def query(self, **more: str) -> str:
        """The same as part of a URL."""
        said = {"show": self.show, "task": self.task, "min_length": self.min_length, "max_length": self.max_length}
        return urlencode({name: value for name, value in said.items() if value not in ("", None)} | more)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemLine:
    """One item and repeat of the list."""

    outcome: Outcome
    change: Cell
    baseline: str
    candidate: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsPage:
    """In order of position."""

    comparison_id: str
    name: str
    tasks: tuple[str, ...]
    browsed: ItemsFilter
    lines: tuple[ItemLine, ...]
    has_repeats: bool
    next_query: str
    """Of the next page; empty where this is the last."""
    is_first: bool


def items_page(
    context: Context, comparison_id: str, browsed: ItemsFilter, cursor: str | None, words: Wording
) -> ItemsPage:
    """Raises ComparisonNotFound, NotYet, InvalidValue for a cursor that is none."""
    comparison = comparison_of(context, comparison_id)
    page = outcomes_of(context, comparison_id, browsed.filter(), cursor=cursor, limit=PAGE)
    return ItemsPage(
        comparison_id=comparison.id,
        name=comparison.label or comparison.id,
        tasks=tuple(task.name for task in comparison.plan.tasks),
        browsed=browsed,
        lines=tuple(_items_line(one, words) for one in page.entries),
        has_repeats=comparison.plan.sampling.repeats > 1,
        next_query=browsed.query(cursor=page.next_cursor) if page.next_cursor else "",
        is_first=cursor is None,
    )


def _items_line(outcome: Outcome, words: Wording) -> ItemLine:
    return ItemLine(
        outcome=outcome,
        change=Cell(text=words(f"change {outcome.change}"), tone=TONES[outcome.change]),
        baseline=shown_score(outcome.baseline),
        candidate=shown_score(outcome.candidate),
        text=_text(outcome, words),
    )


def _text(outcome: Outcome, words: Wording) -> str:
    if outcome.different_text:
        return words("different text")
    is_compared = outcome.kind is RequestKind.GENERATION and outcome.change is not Change.UNKNOWN
    return words("same text" if is_compared else "not compared")


def shown_score(value: float | None) -> str:
    """As short as it is exact to six digits; a dash where there is none."""
    return "–" if value is None else f"{value:.6g}"


def neighbour(
    context: Context, comparison_id: str, position: int, browsed: ItemsFilter, *, is_backward: bool
) -> int | None:
    """The position of the item before or after this one among those that are browsed; None where there is none."""
    cursor = encode_cursor("items", position, -1 if is_backward else _BEHIND_ALL)
    page = context.registry.outcomes(comparison_id, browsed.filter(), cursor=cursor, limit=1, is_backward=is_backward)
    return page.entries[0].position if page.entries else None


ROLES = ("system", "user", "assistant")
Place = tuple[int, int]
"""Choice and repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMessage:
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
    prompt: tuple[PromptMessage, ...]
    target: str
    document: str
    answers: tuple[Sides, ...]
    choices: tuple[ChoiceLine, ...]
    extraction: Extraction | None
    """None for an item of choices."""
    scores: tuple[ScoreLine, ...]
    commands: tuple[Command, ...]
    browsed: ItemsFilter
    previous: int | None
    next: int | None


def item_page(
    context: Context, comparison_id: str, position: int, browsed: ItemsFilter, words: Wording, *, extracts: bool
) -> ItemPage:
    """`extracts`: run the task's filters, whose loading may take a moment. Raises ComparisonNotFound, NotYet,
    ItemNotFound."""
    comparison = comparison_of(context, comparison_id)
    if not 0 <= position <= MOST_POSITION:
        raise ItemNotFound(f"Comparison {comparison.id} has no item {position}", hint="Positions count from 0")
    item, answers, scores = context.registry.pair(comparison.id, position)
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
        extraction=_extraction(context, comparison, item, answers, words, is_asked=extracts),
        scores=tuple(_scores(item, comparison, scores, words)),
        commands=tuple(commands(comparison, item, words)),
        browsed=browsed,
        previous=neighbour(context, comparison.id, position, browsed, is_backward=True),
        next=neighbour(context, comparison.id, position, browsed, is_backward=False),
    )


def _extraction(
    context: Context, comparison: Comparison, item: Item, answers: Sequence[Answer], words: Wording, *, is_asked: bool
) -> Extraction | None:
    if item.kind is not RequestKind.GENERATION:
        return None
    return extraction(context, comparison, item, answers, words) if is_asked else Extraction(is_awaited=True)


def _by_place(answers: Sequence[Answer]) -> Mapping[ArmName, Mapping[Place, Answer]]:
    return {arm: {(one.choice, one.repeat): one for one in answers if one.arm is arm} for arm in ArmName}


def _prompt(prompt: Prompt, words: Wording) -> tuple[PromptMessage, ...]:
    if not prompt.is_chat:
        return (PromptMessage(role="", text=visible_text(prompt.text)),)
    return tuple(_message(one, words) for one in json.loads(prompt.text))


def _message(message: Mapping[str, Any], words: Wording) -> PromptMessage:
    role, content = str(message.get("role", "")), message.get("content", "")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return PromptMessage(role=words(f"role {role}") if role in ROLES else visible_text(role), text=visible_text(text))


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
                baseline=_item_shown(off.get(choice)),
                candidate=_item_shown(on.get(choice)),
                is_baselines=best[ArmName.BASELINE] == choice,
                is_candidates=best[ArmName.CANDIDATE] == choice,
            )


def _loglikelihoods(of_arm: Mapping[Place, Answer], repeat: int) -> dict[int, float]:
    return {
        choice: answer.reply.loglikelihood
        for (choice, own_repeat), answer in of_arm.items()
        if own_repeat == repeat and answer.reply.loglikelihood is not None
    }


def _item_shown(value: float | None) -> str:
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
