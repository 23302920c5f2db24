"""The items that changed most, side by side around the first difference of their texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from qualab.app.reporting.source import Flip, Flips, Source
from qualab.app.reporting.words import Words
from qualab.domain.comparison import Comparison
from qualab.domain.items import Answer, Item, ItemHead, ScoreFlip
from qualab.domain.names import ArmName, RequestKind
from qualab.domain.numbers import count
from qualab.domain.plan import MetricSpec, deciding_metrics
from qualab.domain.report import Block, Excerpt, Fact, Paragraph, Section, Side
from qualab.domain.text import visible_text
from qualab.ports import Registry, Store

MOST_SHOWN = 6
BEFORE = 160
"""Characters that are shown of what both texts share."""
AFTER = 420
"""Characters that are shown of each text from its first difference on."""
PROMPT = 240
"""Characters that are shown of the end of a prompt."""

SPACES = {" ": "␣", "\t": "→\t", "\n": "⏎\n"}

Candidate = tuple[MetricSpec, ScoreFlip]


def find_flips(store: Store, registry: Registry, comparison: Comparison) -> Flips | None:
    """The worst flips of the primary metrics; None where no flip can be known, for lack of scores."""
    plan, deciding = comparison.plan, deciding_metrics(comparison.plan.metrics).values()
    specs = {
        spec.id: [(spec, member) for member in plan.members_of(spec) if member in deciding] for spec in plan.primaries
    }
    keys = {member.key for pairs in specs.values() for _, member in pairs}
    changed = list(store.flips(comparison.id, metrics=keys)) if keys else []
    if not changed and next(iter(store.scores(comparison.id)), None) is None:
        return None
    heads = {one.position: one for one in store.heads(comparison.id, positions={one.position for one in changed})}
    by_metric = [_of_metric(pairs, changed, heads) for pairs in specs.values()]
    losses = [[one for one in own if _gain(one) < 0.0] for own in by_metric]
    kind = losses if any(losses) else by_metric
    shown = _worst(kind, heads)
    tasks = {one.position: one for one in store.items(comparison.id, positions={flip.position for _, flip in shown})}
    return Flips(
        are_losses=any(map(bool, losses)),
        n_flips=sum(map(len, by_metric)),
        n_shown_kind=sum(map(len, kind)),
        shown=tuple(
            _with_extracted(one, registry, comparison.id) for one in _with_answers(store, comparison.id, shown, tasks)
        ),
    )


def _of_metric(
    pairs: Sequence[tuple[MetricSpec, MetricSpec]], changed: Sequence[ScoreFlip], items: dict[int, ItemHead]
) -> list[Candidate]:
    """The flips of a primary metric, the largest losses first."""
    wanted = {(member.task, member.key): spec for spec, member in pairs}
    found = [(wanted[place], one) for one in changed if (place := (items[one.position].task, one.metric)) in wanted]
    return sorted(found, key=lambda candidate: (_gain(candidate), candidate[1].position))


def _gain(candidate: Candidate) -> float:
    """What the candidate gained: negative where it lost."""
    spec, flip = candidate
    change = flip.candidate - flip.baseline
    return change if spec.higher_is_better else -change


def _worst(by_metric: Sequence[Sequence[Candidate]], items: dict[int, ItemHead]) -> list[Candidate]:
    """One metric after the other, each item once, of tasks that generate."""
    shown: dict[int, Candidate] = {}
    generated = [[one for one in own if items[one[1].position].kind is RequestKind.GENERATION] for own in by_metric]
    for row in zip_longest(*generated):
        for candidate in row:
            if candidate is not None and len(shown) < MOST_SHOWN:
                shown.setdefault(candidate[1].position, candidate)
    return list(shown.values())


def _with_answers(
    store: Store, comparison_id: str, shown: Sequence[Candidate], items: dict[int, Item]
) -> Iterator[Flip]:
    positions = {flip.position for _, flip in shown}
    answers = {
        arm: {(one.position, one.repeat): one for one in store.answers(comparison_id, arm=arm, positions=positions)}
        for arm in ArmName
    }
    for spec, flip in shown:
        place = (flip.position, flip.repeat)
        if not all(place in of_arm for of_arm in answers.values()):
            continue  # scores of a comparison whose answers are elsewhere
        yield Flip(
            metric=spec.id,
            key=flip.metric,
            item=items[flip.position],
            repeat=flip.repeat,
            baseline_score=flip.baseline,
            candidate_score=flip.candidate,
            baseline=answers[ArmName.BASELINE][place],
            candidate=answers[ArmName.CANDIDATE][place],
        )


def _with_extracted(flip: Flip, registry: Registry, comparison_id: str) -> Flip:
    """With what the filters made of both answers: of (target, prediction) the prediction, of a list every entry."""
    _, _, scores = registry.pair(comparison_id, flip.item.position)
    found = {one.arm: extracted(one.detail) for one in scores if (one.metric, one.repeat) == (flip.key, flip.repeat)}
    both = found.get(ArmName.BASELINE, ""), found.get(ArmName.CANDIDATE, "")
    return replace(flip, extracted=both) if all(both) else flip


def extracted(detail: tuple[Any, ...] | None) -> str:
    """What a score holds of the answer that it was made from; empty where that is its number alone."""
    if detail is None:
        return ""
    if all(isinstance(one, bool) for one in detail):
        return " ".join("✓" if one else "✗" for one in detail)
    return visible_text(str(detail[-1] if len(detail) == 2 else list(detail)))


def flips_section(source: Source, words: Words) -> Section:
    """The excerpts, or why there are none."""
    found = source.flips
    blocks: list[Block] = []
    if found is None or not found.n_flips:
        blocks.append(Paragraph(text=words("no scores" if found is None else "no flips")))
    elif not found.shown:
        blocks.append(Paragraph(text=words("no texts")))
    else:
        key = "flips how" if found.are_losses else "gains how"
        blocks.append(Paragraph(text=words(key, n=len(found.shown), total=count(found.n_shown_kind))))
        blocks += (_excerpt(one, source, words) for one in found.shown)
        if not any(one.extracted for one in found.shown):
            blocks.append(Paragraph(text=words("not extracted"), is_muted=True))
    return Section(id="flips", title=words("flips"), blocks=tuple(blocks))


def _excerpt(flip: Flip, source: Source, words: Words) -> Excerpt:
    off, on = (answer.reply.text or "" for answer in (flip.baseline, flip.candidate))
    place = first_difference(off, on)
    facts = [
        Fact(label=words("prompt end"), text=_ending(flip.item)),
        Fact(label=words("target"), text=visible_text(_cut(flip.item.target, PROMPT))),
        Fact(
            label=words("scores"),
            text=words("scores of", off=f"{flip.baseline_score:g}", on=f"{flip.candidate_score:g}"),
        ),
        Fact(label=words("extracted"), text=_extracted(flip, words)),
        Fact(label=words("first difference place"), text=words("at character" if place else "at once", n=count(place))),
    ]
    return Excerpt(
        title=words("flip title", item=flip.item.id, metric=flip.metric),
        facts=tuple(fact for fact in facts if fact.text),
        shared=visible_text(off[max(0, place - BEFORE) : place]),
        is_cut=place > BEFORE,
        baseline=_side(source.key("baseline arm"), off, place, flip.baseline, words),
        candidate=_side(source.key("candidate arm"), on, place, flip.candidate, words),
    )


def _extracted(flip: Flip, words: Words) -> str:
    if flip.extracted is None:
        return ""
    off, on = flip.extracted
    return words("extracted of", off=off, on=on)


def _side(key: str, text: str, place: int, answer: Answer, words: Words) -> Side:
    reply = answer.reply
    tokens = words("not said") if reply.completion_tokens is None else count(reply.completion_tokens)
    return Side(
        title=words(key),
        text=marked(text[place : place + AFTER]),
        is_cut=len(text) > place + AFTER,
        facts=words("side facts", status=reply.finish_reason or reply.status.value, tokens=tokens),
    )


def marked(text: str) -> str:
    """White space that a difference begins with is shown: it may be all there is."""
    rest = text.lstrip(" \t\n")
    blank = text[: len(text) - len(rest)]
    return visible_text("".join(SPACES[character] for character in blank) + rest)


def _ending(item: Item) -> str:
    """The end of what was asked; of a chat, of its last message."""
    text = item.prompts[0].text if item.prompts else ""
    if item.prompts and item.prompts[0].is_chat:
        text = str(json.loads(text)[-1]["content"])
    return visible_text(f"{'…' if len(text) > PROMPT else ''}{text[-PROMPT:]}")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def first_difference(one: str, other: str) -> int:
    """The character, from 0, at which two texts differ first; their length where they do not."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
