"""The worst flips of a comparison, each with both answers around their first difference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from qualab.model.comparison import Comparison
from qualab.model.items import Answer, Item, ItemHead, ScoreFlip
from qualab.model.names import ArmName, RequestKind
from qualab.model.plan import MetricSpec, deciding_metrics
from qualab.model.report import Block, Excerpt, Fact, Paragraph, Side
from qualab.model.wording import count, visible_text
from qualab.report.source import Flip, Flips, Source
from qualab.report.words import Words

if TYPE_CHECKING:
    from qualab.store import Store
    from qualab.store.registry import Registry

MOST_SHOWN = 6
BEFORE = 160
"""Characters that are shown of what both texts share."""
AFTER = 420
"""Characters that are shown of each text from its first difference on."""
PROMPT = 240
"""Characters that are shown of the end of a prompt, and of a right answer."""
SPACES = {" ": "␣", "\t": "→\t", "\n": "⏎\n"}
Candidate = tuple[MetricSpec, ScoreFlip]


def find_flips(store: Store, registry: Registry, comparison: Comparison) -> Flips | None:
    """Read the worst flips of the primary metrics; None where no flip can be known, for lack of scores."""
    plan, deciding = comparison.plan, deciding_metrics(comparison.plan.metrics).values()
    members = {
        spec.id: [(spec, member) for member in plan.members_of(spec) if member in deciding] for spec in plan.primaries
    }
    keys = {member.key for pairs in members.values() for _, member in pairs}
    changed = list(store.flips(comparison.id, metrics=keys)) if keys else []
    if not changed and next(iter(store.scores(comparison.id)), None) is None:
        return None
    heads = {head.position: head for head in store.heads(comparison.id, positions={one.position for one in changed})}
    by_metric: list[list[Candidate]] = []
    for pairs in members.values():
        specs = {(member.task, member.key): spec for spec, member in pairs}
        found = [(specs[key], one) for one in changed if (key := (heads[one.position].task, one.metric)) in specs]
        by_metric.append(sorted(found, key=lambda candidate: (_gain(candidate), candidate[1].position)))
    losses = [[one for one in own if _gain(one) < 0.0] for own in by_metric]
    kind = losses if any(losses) else by_metric
    return Flips(
        are_losses=any(losses),
        n_flips=sum(map(len, by_metric)),
        n_shown_kind=sum(map(len, kind)),
        shown=tuple(_with_answers(store, registry, comparison.id, _worst(kind, heads))),
    )


def _gain(candidate: Candidate) -> float:
    """Negative where the candidate lost."""
    spec, flip = candidate
    change = flip.candidate - flip.baseline
    return change if spec.higher_is_better else -change


def _worst(by_metric: Sequence[Sequence[Candidate]], heads: dict[int, ItemHead]) -> list[Candidate]:
    """One metric after the other, each item once, of tasks that generate."""
    shown: dict[int, Candidate] = {}
    generated = [[one for one in own if heads[one[1].position].kind is RequestKind.GENERATION] for own in by_metric]
    for row in zip_longest(*generated):
        for candidate in row:
            if candidate is not None and len(shown) < MOST_SHOWN:
                shown.setdefault(candidate[1].position, candidate)
    return list(shown.values())


def _with_answers(store: Store, registry: Registry, comparison_id: str, shown: Sequence[Candidate]) -> Iterator[Flip]:
    positions = {flip.position for _, flip in shown}
    items = {item.position: item for item in store.items(comparison_id, positions=positions)}
    off, on = (
        {(one.position, one.repeat): one for one in store.answers(comparison_id, arm=arm, positions=positions)}
        for arm in ArmName
    )
    for spec, flip in shown:
        place = (flip.position, flip.repeat)
        if place not in off or place not in on:
            continue  # scores of a comparison whose answers are elsewhere
        _, _, scores = registry.pair(comparison_id, flip.position)
        details = {one.arm: one.detail for one in scores if (one.metric, one.repeat) == (flip.metric, flip.repeat)}
        both = extracted(details.get(ArmName.BASELINE)), extracted(details.get(ArmName.CANDIDATE))
        yield Flip(
            metric=spec.id,
            key=flip.metric,
            item=items[flip.position],
            repeat=flip.repeat,
            scores=(flip.baseline, flip.candidate),
            answers=(off[place], on[place]),
            extracted=both if all(both) else None,
        )


def extracted(detail: tuple[Any, ...] | None) -> str:
    """Show what a score holds of its answer: of (target, prediction) the prediction, of a list every entry."""
    if detail is None:
        return ""
    if all(isinstance(one, bool) for one in detail):
        return " ".join("✓" if one else "✗" for one in detail)
    return visible_text(str(detail[-1] if len(detail) == 2 else list(detail)))


def flips_blocks(source: Source, words: Words) -> Iterator[Block]:
    """The excerpts, or why there are none."""
    found = source.flips
    if found is None or not found.n_flips:
        yield Paragraph(text=words("no scores" if found is None else "no flips"))
    elif not found.shown:
        yield Paragraph(text=words("no texts"))
    else:
        key = "flips how" if found.are_losses else "gains how"
        yield Paragraph(text=words(key, n=len(found.shown), total=found.n_shown_kind))
        yield from (_excerpt(flip, words) for flip in found.shown)
        if not any(flip.extracted for flip in found.shown):
            yield Paragraph(text=words("not extracted"), is_muted=True)


def _excerpt(flip: Flip, words: Words) -> Excerpt:
    texts = [answer.reply.text or "" for answer in flip.answers]
    place = first_difference(*texts)
    before, after = (f"{value:g}" for value in flip.scores)
    facts = {
        "prompt end": _prompt_end(flip.item),
        "target": visible_text(flip.item.target[:PROMPT] + ("…" if len(flip.item.target) > PROMPT else "")),
        "scores": f"{before} → {after}",
        "extracted": " → ".join(flip.extracted or ()),
        "texts": words("differ after", n=place),
    }
    return Excerpt(
        title=f"{flip.item.id} · {flip.key}",
        facts=tuple(Fact(label=words(key), text=text) for key, text in facts.items() if text),
        shared=visible_text(texts[0][max(0, place - BEFORE) : place]),
        is_cut=place > BEFORE,
        sides=tuple(_side(words(answer.arm), answer, place, words) for answer in flip.answers),
    )


def _side(title: str, answer: Answer, place: int, words: Words) -> Side:
    reply, text = answer.reply, answer.reply.text or ""
    n_tokens = "?" if reply.completion_tokens is None else count(reply.completion_tokens)
    return Side(
        title=title,
        text=marked(text[place : place + AFTER]),
        is_cut=len(text) > place + AFTER,
        facts=f"{reply.finish_reason or reply.status}, {words('tokens', n=n_tokens)}",
    )


def marked(text: str) -> str:
    """Show the white space that a text begins with: it may be all that differs."""
    rest = text.lstrip(" \t\n")
    blank = text[: len(text) - len(rest)]
    return visible_text("".join(SPACES[character] for character in blank) + rest)


def _prompt_end(item: Item) -> str:
    """Of a chat, of its last message."""
    text = item.prompts[0].text if item.prompts else ""
    if item.prompts and item.prompts[0].is_chat:
        text = str(json.loads(text)[-1]["content"])
    return visible_text(f"{'…' if len(text) > PROMPT else ''}{text[-PROMPT:]}")


def first_difference(baseline: str, candidate: str) -> int:
    """Return the character, from 0, at which two texts differ first; the shorter's length where one continues."""
    pairs = zip(baseline, candidate, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(baseline), len(candidate)))
