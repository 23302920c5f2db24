"""The page of one item: where the answers part, scores, and the requests as commands that send the same bytes."""

from __future__ import annotations

import json
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from qualab.analysis.flips import change_of
from qualab.endpoints.client import ROUTES
from qualab.errors import PathForbidden
from qualab.model.audit import WorstToken
from qualab.model.comparison import Comparison
from qualab.model.items import Answer, Change, Item, Prompt, Score
from qualab.model.names import ArmName, AuditPart
from qualab.model.plan import deciding_metrics
from qualab.model.registry import urls_of
from qualab.model.wording import count, line_text, visible_text
from qualab.report.flips import first_difference, marked
from qualab.run.prepare import check_unchanged, planned_options, refuse_imported
from qualab.service.context import Context
from qualab.service.reading import AuditedAnswer, bodies_of
from qualab.service.words import Wording

if TYPE_CHECKING:
    from qualab.store import Store

KEY = '-H "Authorization: Bearer $API_KEY"'
"""The shell puts the key in: none is stored."""
SHADES = (0.05, 0.25, 1.0, 5.0)
"""Gaps in nats from which a token is a shade darker."""
WORD = re.compile(r"\s*\S+|\s+")
MOST_WORDS = 1_000
"""Of a text that is compared word by word."""
Answers = Mapping[tuple[ArmName, int, int], Answer]  # by arm, choice and repeat


def commands(comparison: Comparison, item: Item, words: Wording) -> Iterator[tuple[str, str]]:
    """Yield both arms' titles and commands for every request of an item."""
    for request, repeat, body in bodies_of(comparison, item):
        counts = {"choice": len(item.requests), "repeat": comparison.plan.sampling.repeats}
        numbers = {"choice": request.choice, "repeat": repeat}
        suffix = "".join(f" · {words(name)} {numbers[name]}" for name, n in counts.items() if n > 1)
        for arm, urls in (("baseline", comparison.baseline_url), ("candidate", comparison.candidate_url)):
            url = next(iter(urls_of(urls)), "")  # replicas answer alike
            yield words(arm) + suffix, command(f"{url.rstrip('/')}/{ROUTES[request.api]}", body.decode())


def command(url: str, body: str) -> str:
    """Return a line for a POSIX shell."""
    head = f"curl -sS {shlex.quote(url)} -H 'Content-Type: application/json' {KEY}"
    return f"{head} --data-raw {shlex.quote(body)}"


class Side(NamedTuple):
    """One answer, cut where it parts from the other. Texts are a model's: never markup."""

    answer: Answer | None
    shared: str
    parts: tuple[tuple[str, bool], ...]
    """What follows, and whether only this text has it."""
    has_ended: bool
    """True where the text ends and the other goes on."""


class Pair(NamedTuple):
    """Both answers of one repeat."""

    repeat: int
    difference: str
    sides: tuple[Side, Side]


def pairs(comparison: Comparison, answers: Answers, words: Wording) -> Iterator[Pair]:
    """Yield the answers of each repeat that has any, and of the first."""
    for repeat in range(comparison.plan.sampling.repeats):
        baseline, candidate = (answers.get((arm, 0, repeat)) for arm in ArmName)
        if baseline or candidate or not repeat:
            yield pair(repeat, baseline, candidate, words)


def pair(repeat: int, baseline: Answer | None, candidate: Answer | None, words: Wording) -> Pair:
    """Cut both answers where they part; say what is missing."""
    texts = [answer.reply.text if answer else None for answer in (baseline, candidate)]
    cut, (one, other) = None, texts
    if one is None or other is None:
        difference = words("one is missing")
    elif one == other:
        difference = words("same texts")
    else:
        cut = first_difference(one, other)
        key = "differ at once" if cut == 0 else "differ after one" if cut == 1 else "differ after"
        difference = words(key, n=count(cut))
    rests = [(text or "")[cut:] if cut is not None else "" for text in texts]
    sides = zip((baseline, candidate), texts, _diff(*rests), strict=True)
    return Pair(repeat, difference, tuple(_side(own, text or "", cut, parts) for own, text, parts in sides))  # type: ignore[arg-type]


Parts = tuple[tuple[str, bool], ...]


def _side(answer: Answer | None, text: str, cut: int | None, parts: Parts) -> Side:
    shown = tuple((marked(part) if not n else visible_text(part), is_own) for n, (part, is_own) in enumerate(parts))
    has_ended = cut is not None and not text[cut:] and bool(text)
    return Side(answer, visible_text(text[:cut]), shown, has_ended)


def _diff(one: str, other: str) -> tuple[Parts, Parts]:
    """Cut two texts into what both have and what one has alone, word by word; long ones only at their first word."""
    left, right = (WORD.findall(text) for text in (one, other))
    if max(len(left), len(right)) > MOST_WORDS:
        first, second = (((own[0], True), ("".join(own[1:]), False)) if own else () for own in (left, right))
        return first, second
    before: list[tuple[str, bool]] = []
    after: list[tuple[str, bool]] = []
    for kind, i, j, k, m in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for parts, own in ((before, left[i:j]), (after, right[k:m])):
            if own:
                parts.append(("".join(own), kind != "equal"))
    return tuple(before), tuple(after)


def others(
    store: Store, comparison: Comparison, item: Item, answers: Answers, words: Wording
) -> list[tuple[str, Side]]:
    """Return further answers beside the baseline's: those of its runs again, and of other candidates of a group."""
    baseline = answers.get((ArmName.BASELINE, 0, 0))
    found = [(words("run again", n=answer.run), answer) for answer in store.reruns(comparison.id, item.position)]
    group = comparison.plan.group
    for own in store.group(group.id) if group else ():
        if own.id != comparison.id and own.plan.group:
            own_answers = store.pair(own.id, item.position)[1]
            found += [(own.plan.group.name, answer) for answer in own_answers if answer.arm is ArmName.CANDIDATE]
    return [(title, pair(0, baseline, answer, words).sides[1]) for title, answer in found]


class Token(NamedTuple):
    """Tokens of an answer in one shade: one that is not the model's choice, or the choices up to the next."""

    text: str
    shade: int
    """0 to 4: how many of `SHADES` its gap reaches."""
    numbers: str
    """Empty for the model's choices."""
    place: int
    """In its answer, from 0."""
    is_foreign: bool


class TokenSide(NamedTuple):
    """One arm's answer in the token audit."""

    answer: AuditedAnswer
    tokens: list[Token]
    facts: str


def audited_parts(audited: Iterable[AuditedAnswer], words: Wording) -> list[tuple[AuditPart, list[TokenSide]]]:
    """Return each part of the token audit that the item is in, with both arms' answers."""
    return [
        (part, [TokenSide(answer, list(_shaded(answer, words)), _token_facts(answer, words)) for answer in answers])
        for part, answers in groupby(audited, key=lambda answer: answer.part)
    ]


def _shaded(answer: AuditedAnswer, words: Wording) -> Iterator[Token]:
    for is_choice, tokens in groupby(enumerate(answer.tokens), key=lambda entry: entry[1].gap == 0.0):
        if is_choice:
            run = list(tokens)
            yield Token(visible_text("".join(token.text for _, token in run)), 0, "", run[0][0], False)
            continue
        for index, token in tokens:
            shown = words("token end") if token.is_end else visible_text(token.text) or words("token part")
            if not token.text.strip():  # its white space is all there is to shade
                shown = marked(token.text) or shown
            chosen = words("token choice", choice=line_text(token.choice)) if token.choice else ""
            numbers = words("token numbers", gap=f"{token.gap:.2f}", rank=count(token.rank), choice=chosen)
            yield Token(shown, bisect_right(SHADES, token.gap), numbers, index, token.is_foreign)


def worst_tokens(store: Store, comparison_id: str, words: Wording) -> list[tuple[str, str, WorstToken]]:
    """Return the items and texts of the worst tokens that the analysis found, the worst first."""
    analysis = store.analysis(comparison_id)
    worst = analysis.audit.worst if analysis and analysis.audit else ()
    names = {item.position: item.id for item in store.items(comparison_id, positions={one.position for one in worst})}
    return [
        (names[one.position], f"“{line_text(one.token)}”" if one.token else words("token end"), one) for one in worst
    ]


def _token_facts(answer: AuditedAnswer, words: Wording) -> str:
    n_scored, n_foreign = len(answer.tokens), sum(token.is_foreign for token in answer.tokens)
    if not n_scored:
        return words("tokens not scored")
    key = "tokens rare" if answer.part is AuditPart.SAMPLED else "tokens foreign"
    cut = words("tokens cut", total=count(answer.n_tokens)) if n_scored < answer.n_tokens else ""
    return words(key, n=count(n_foreign), total=count(n_scored)) + cut


def extracted_lines(
    context: Context, comparison: Comparison, item: Item, answers: Answers, words: Wording
) -> list[tuple[str, int, list[str], bool]]:
    """Return each filter and repeat, what it makes of both answers, and whether that is the same.

    The item's task alone is loaded, as it was planned; no code of whoever ran it is. Raises InvalidValue for what was
    imported, PathForbidden for tasks of an `include_path`, PlanChanged, and what loading raises.
    """
    refuse_imported(comparison, "filtered again")
    if comparison.local.get("include_path"):
        raise PathForbidden(
            "The tasks came from a folder of whoever ran them: no page loads their code",
            hint="qualab rescore scores the answers anew",
        )
    options = replace(planned_options(comparison.plan, comparison.local), names=(item.task,))
    plan = replace(comparison.plan, tasks=tuple(task for task in comparison.plan.tasks if task.name == item.task))

    extracted: dict[tuple[int, str], dict[ArmName, str]] = {}
    with context.planner.loaded(options) as tasks:
        check_unchanged(plan, tasks)
        for (arm, _, repeat), answer in answers.items():
            if answer.reply.status.is_answer:
                for name, (results,) in tasks.extracted(item.task, [(item, [answer.reply])]):
                    extracted.setdefault((repeat, name), {})[arm] = _text(results)
    lines = []
    for (repeat, name), texts in sorted(extracted.items(), key=lambda entry: entry[0][0]):
        shown = []
        for arm in ArmName:
            text = texts.get(arm)
            if text is None:
                shown.append("–")
            elif text.strip() and text == answers[arm, 0, repeat].reply.text:
                shown.append(words("whole answer"))
            else:
                shown.append(visible_text(text) or words("empty answer"))
        lines.append((name, repeat, shown, len(texts) == len(ArmName) and len(set(texts.values())) == 1))
    return lines


def _text(filtered: object) -> str:
    """Join what a filter returns, mostly one text, line by line."""
    return "\n".join(map(_text, filtered)) if isinstance(filtered, list | tuple) else str(filtered)


def choice_lines(
    item: Item, comparison: Comparison, answers: Answers
) -> Iterator[tuple[int, str, list[tuple[str, bool]]]]:
    """Yield each choice's text with both arms' log-likelihoods, and whether each is the arm's highest."""
    for repeat in range(comparison.plan.sampling.repeats):
        values: dict[ArmName, dict[int, float]] = {arm: {} for arm in ArmName}
        for (arm, choice, own_repeat), answer in answers.items():
            if own_repeat == repeat and answer.reply.loglikelihood is not None:
                values[arm][choice] = answer.reply.loglikelihood
        for choice, prompt in enumerate(item.prompts):
            cells = []
            for own in values.values():
                text = f"{own[choice]:.4f}".replace("-", "−") if choice in own else "–"
                cells.append((text, choice in own and own[choice] == max(own.values())))
            yield choice, visible_text(prompt.continuation), cells


class ScoreLine(NamedTuple):
    """One metric of one repeat, in both arms."""

    metric: str
    repeat: int
    decides: bool
    baseline: float | None
    candidate: float | None
    change: Change
    extracted: tuple[str, str]
    """Extracted answers, where the score holds them; empty otherwise."""


def score_lines(item: Item, comparison: Comparison, scores: Sequence[Score]) -> Iterator[ScoreLine]:
    """Yield one line a metric and repeat."""
    metrics = {metric.key: metric for metric in comparison.plan.metrics if metric.task == item.task}
    deciding = deciding_metrics(comparison.plan.metrics).get(item.task)
    by_place = {(score.repeat, score.metric, score.arm): score for score in scores}
    for repeat, metric in dict.fromkeys((score.repeat, score.metric) for score in scores):
        both = [by_place.get((repeat, metric, arm)) for arm in ArmName]
        off, on = (score.value if score else None for score in both)
        change = change_of(off, on, metrics.get(metric))
        decides = deciding is not None and deciding.key == metric
        yield ScoreLine(metric, repeat, decides, off, on, change, (_extracted(both[0]), _extracted(both[1])))


def _extracted(score: Score | None) -> str:
    """Word the prediction of a (target, prediction) pair, or each entry of a list."""
    if score is None or score.detail is None:
        return ""
    if all(isinstance(part, bool) for part in score.detail):
        return " ".join("✓" if part else "✗" for part in score.detail)
    return visible_text(str(score.detail[-1] if len(score.detail) == 2 else list(score.detail)))


def messages(prompt: Prompt) -> list[tuple[str, str]]:
    """Return role and text of each message of a prompt; no role for plain text."""
    if not prompt.is_chat:
        return [("", visible_text(prompt.text))]
    parsed: list[dict[str, Any]] = json.loads(prompt.text)
    contents = [(str(message.get("role", "")), message.get("content", "")) for message in parsed]
    return [
        (visible_text(role), visible_text(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)))
        for role, text in contents
    ]
