"""The worst flips of a comparison, each with both answers around their first difference."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from qualab.model.comparison import Comparison
from qualab.model.items import ScoreFlip
from qualab.model.names import ArmName, RequestKind
from qualab.model.plan import deciding_metrics
from qualab.model.report import Block, Excerpt, Fact, Paragraph, Side
from qualab.model.wording import count, visible_text
from qualab.report.source import CategoryFlips, Cells, Flip, Flips, Source, table
from qualab.report.words import Words

if TYPE_CHECKING:
    from qualab.store import Store

MOST_SHOWN = 6
BEFORE = 160
"""Characters that are shown of what both texts share."""
AFTER = 420
"""Characters that are shown of each text from its first difference on."""
PROMPT = 240
"""Characters that are shown of the end of a prompt, and of a right answer."""
SPACES = {" ": "␣", "\t": "→\t", "\n": "⏎\n"}


def find_flips(store: Store, comparison: Comparison) -> Flips | None:
    """Read the worst flips of the primary metrics; None where no flip can be known, for lack of scores."""
    plan, deciding = comparison.plan, deciding_metrics(comparison.plan.metrics)
    members = ((member, spec) for spec in plan.primaries for member in plan.members_of(spec))
    owners = {(member.task, member.key): spec for member, spec in members if deciding.get(member.task) == member}
    changes = list(store.flips(comparison.id, metrics={key for _, key in owners}))
    if not changes and next(iter(store.scores(comparison.id)), None) is None:
        return None
    flips: list[tuple[float, int, ScoreFlip, str]] = []
    for change in changes:
        if spec := owners.get((change.task, change.metric)):
            gain = (change.candidate - change.baseline) * (1.0 if spec.higher_is_better else -1.0)
            flips.append((gain, change.position, change, spec.id))
    losses = [flip for flip in flips if flip[0] < 0.0]
    gains = [(gain, position) for gain, position, *_ in flips]
    by_category = categories_of(store.documents(comparison.id), gains) if gains else ()
    worst = sorted(losses or flips, key=lambda flip: flip[:2])
    generated = [flip for flip in worst if flip[2].kind is RequestKind.GENERATION]
    by_metric = ([change for *_, change, owner in generated if owner == spec.id] for spec in plan.primaries)
    shown: dict[int, ScoreFlip] = {}
    for turn in chain.from_iterable(zip_longest(*by_metric)):  # one metric after the other, each item once
        if turn is not None:
            shown.setdefault(turn.position, turn)
    pairs = []
    for change in list(shown.values())[:MOST_SHOWN]:
        item, answers, scores = store.pair(comparison.id, change.position)
        both = {answer.arm: answer for answer in answers if answer.repeat == change.repeat}
        if len(both) < len(ArmName):  # they are stored elsewhere
            continue
        own = [score for score in scores if (score.metric, score.repeat) == (change.metric, change.repeat)]
        details = {score.arm: extracted(score.detail) for score in own}
        texts = tuple(details.get(arm, "") for arm in ArmName)
        answered = tuple(both[arm] for arm in ArmName)
        pairs.append(Flip(item=item, change=change, answers=answered, extracted=texts if all(texts) else ()))
    return Flips(
        are_losses=bool(losses), n_flips=len(flips), n_worst=len(worst), shown=tuple(pairs), by_category=by_category
    )


CATEGORIES = ("category", "subject", "topic", "domain", "instruction_id_list")
"""Fields of documents that name a category, or several; of "a:b" the part before the colon."""
MOST_CATEGORIES = 40


def categories_of(
    documents: Iterable[tuple[int, str, str]], flips: Iterable[tuple[float, int]]
) -> tuple[CategoryFlips, ...]:
    """Count flips by the categories that documents name, most losses first.

    Args:
        documents: position, task and JSON of each item.
        flips: gain (below 0 for a loss) and position; of an item's several the worst counts.
    """
    changes: dict[int, float] = {}
    for gain, position in flips:
        changes[position] = min(gain, changes.get(position, gain))
    counts: dict[tuple[str, str], list[int]] = {}
    for position, task, text in documents:
        if not any(f'"{name}"' in text for name in CATEGORIES):
            continue
        doc = json.loads(text)
        value = next((doc[name] for name in CATEGORIES if isinstance(doc, dict) and doc.get(name)), ())
        named = [value] if isinstance(value, str) else value if isinstance(value, list) else ()
        for category in {str(own).partition(":")[0] for own in named}:
            own = counts.setdefault((task, category), [0, 0, 0])
            change = changes.get(position, 0.0)
            own[0], own[1], own[2] = own[0] + 1, own[1] + (change < 0.0), own[2] + (change > 0.0)
    rows = (
        CategoryFlips(task=task, category=category, n_items=n, losses=losses, gains=gains)
        for (task, category), (n, losses, gains) in counts.items()
        if losses or gains
    )
    return tuple(sorted(rows, key=lambda row: (-row.losses, -row.gains, row.task, row.category)))


def category_blocks(flips: Flips, words: Words) -> Iterator[Block]:
    """Show flips by task and category, where documents name one."""
    if flips.by_category:
        rows: list[Cells] = [
            {
                "task": own.task,
                "category": visible_text(own.category),
                "items": (own.n_items, "count"),
                "losses": (own.losses, "count"),
                "gained": (own.gains, "count"),
            }
            for own in flips.by_category[:MOST_CATEGORIES]
        ]
        yield Paragraph(text=words("categories how"), is_muted=True)
        yield table(words, tuple(rows[0]), rows, n_texts=2, legends={})


def extracted(detail: tuple[Any, ...] | None) -> str:
    """Show what a score holds of its answer: of (target, prediction) the prediction, of a list every entry."""
    if detail is None:
        return ""
    if all(isinstance(entry, bool) for entry in detail):
        return " ".join("✓" if entry else "✗" for entry in detail)
    return visible_text(str(detail[-1] if len(detail) == 2 else list(detail)))


def flips_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show the excerpts, or why there are none."""
    flips = source.flips
    if flips is None or not flips.n_flips:
        yield Paragraph(text=words("no scores" if flips is None else "no flips"))
        return
    yield from category_blocks(flips, words)
    if not flips.shown:
        yield Paragraph(text=words("no texts"))
    else:
        key = "flips how" if flips.are_losses else "gains how"
        yield Paragraph(text=words(key, n=len(flips.shown), total=flips.n_worst))
        yield from (_excerpt(flip, words) for flip in flips.shown)
        if not any(flip.extracted for flip in flips.shown):
            yield Paragraph(text=words("not extracted"), is_muted=True)


def _excerpt(flip: Flip, words: Words) -> Excerpt:
    item, change = flip.item, flip.change
    prompt = item.prompts[0].text if item.prompts else ""
    if item.prompts and item.prompts[0].is_chat:
        prompt = str(json.loads(prompt)[-1]["content"])
    texts = [answer.reply.text or "" for answer in flip.answers]
    start = first_difference(*texts)
    facts = {
        "prompt end": visible_text(f"{'…' if len(prompt) > PROMPT else ''}{prompt[-PROMPT:]}"),
        "target": visible_text(item.target[:PROMPT] + ("…" if len(item.target) > PROMPT else "")),
        "scores": f"{change.baseline:g} → {change.candidate:g}",
        "extracted": " → ".join(flip.extracted),
        "texts": words("differ after", n=start),
    }
    sides = []
    for answer, text in zip(flip.answers, texts, strict=True):
        reply = answer.reply
        n_tokens = "?" if reply.completion_tokens is None else count(reply.completion_tokens)
        length = words("one token") if reply.completion_tokens == 1 else words("tokens", n=n_tokens)
        sides.append(
            Side(
                title=words(answer.arm),
                text=marked(text[start : start + AFTER]),
                is_cut=len(text) > start + AFTER,
                facts=f"{reply.finish_reason or reply.status}, {length}",
            )
        )
    return Excerpt(
        title=f"{item.id} · {change.metric}",
        facts=tuple(Fact(label=words(key), text=text) for key, text in facts.items() if text),
        shared=visible_text(texts[0][max(0, start - BEFORE) : start]),
        is_cut=start > BEFORE,
        sides=tuple(sides),
    )


def marked(text: str) -> str:
    """Show the white space that a text begins with: it may be all that differs."""
    rest = text.lstrip(" \t\n")
    blank = text[: len(text) - len(rest)]
    return visible_text("".join(SPACES[character] for character in blank) + rest)


def first_difference(baseline: str, candidate: str) -> int:
    """Return the character, from 0, at which two texts differ first; the shorter's length where one continues."""
    pairs = zip(baseline, candidate, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(baseline), len(candidate)))
