"""Which answers are missing, and whether it matters how they are treated."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from qualab.analysis.ruling import MAX_ITEMS, bounds_of, is_one_sided, is_out_of_reach
from qualab.model.comparison import (
    ArmSummary,
    Comparison,
    Evidence,
    ItemsRange,
    LooksTaken,
    MetricResult,
    PolicyResult,
    StatusMissing,
)
from qualab.model.items import Answer, Item, ItemHead, ScoreFlip
from qualab.model.names import AnswerStatus, ArmName, EvidenceKind, MetricKind, MissingPolicy, RequestKind, Verdict
from qualab.model.plan import DecisionRule, MetricSpec, deciding_metrics
from qualab.model.report import Block, Cell, Column, Excerpt, Fact, Paragraph, Row, Section, Side, Table, Tone
from qualab.model.wording import count, percent, pvalue, share, signed, tokens, visible_text
from qualab.report.source import Flip, Flips, Source, cells, columns
from qualab.report.words import Words

if TYPE_CHECKING:
    from qualab.store import Store
    from qualab.store.registry import Registry

ANSWERED = frozenset(status.value for status in AnswerStatus if status.is_answer)


def missing_section(source: Source, words: Words) -> Section:
    """By arm, then by metric and policy."""
    analysis = source.analysis
    blocks: list[Block] = [_arm_table(source, words)]
    missing = analysis.suite.missing
    n_lost = sum(arm.n_requests - arm.n_answers for arm in analysis.arms)
    if not n_lost and not missing.baseline_only + missing.candidate_only + missing.both + missing.left_out:
        blocks.append(Paragraph(text=words("nothing missing", n=count(sum(arm.n_requests for arm in analysis.arms)))))
    else:
        off, on, both = (count(n) for n in (missing.baseline_only, missing.candidate_only, missing.both))
        blocks.append(Paragraph(text=words("missing in", off=off, on=on, both=both, p=pvalue(missing.pvalue))))
        blocks += [Paragraph(text=_status(one, words)) for one in missing.by_status]
        if missing.left_out:
            blocks.append(Paragraph(text=words("left out", n=count(missing.left_out))))
        blocks += _policies(source, words)
    return Section(id="missing", title=words("missing answers"), blocks=tuple(blocks))


def _arm_table(source: Source, words: Words) -> Table:
    names = ("arm", "requests", "answered", "unanswered", "truncated", "empty", "stop strings", "retries")
    rows = tuple(_arm(one, source, words) for one in source.analysis.arms)
    table = Table(columns=columns(words, *names), rows=rows, legend=(words("missing legend"),))
    return _told(table) if source.plan.imported else table


def _told(table: Table) -> Table:
    """Without what no log tells."""
    kept = [place for place, one in enumerate(table.columns) if one.id not in ("truncated", "stop strings", "retries")]
    rows = tuple(replace(row, cells=tuple(row.cells[place] for place in kept)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[place] for place in kept), rows=rows, legend=())


def _arm(one: ArmSummary, source: Source, words: Words) -> Row:
    cut = one.truncated_share
    numbers = (one.n_requests, one.n_answers)
    more = (one.empty_answers, one.stop_string_answers, one.retries)
    return cells(
        words(source.key(f"{one.arm} arm")),
        *(Cell(text=count(n), value=n) for n in numbers),
        Cell(text=unanswered(one, words) or "0"),
        Cell(text="–" if cut is None else words.units(share(cut)), value=cut),
        *(Cell(text=count(n), value=n) for n in more),
    )


def unanswered(one: ArmSummary, words: Words) -> str:
    """How requests ended that have no answer; empty where all have."""
    lost = {status: n for status, n in one.statuses.items() if status not in ANSWERED}
    return ", ".join(words("status", n=count(n), status=words(status)) for status, n in lost.items())


def _status(one: StatusMissing, words: Words) -> str:
    off, on, both = (count(n) for n in (one.baseline_only, one.candidate_only, one.both))
    return words("missing by status", status=words(one.status), off=off, on=on, both=both, p=pvalue(one.pvalue))


def _policies(source: Source, words: Words) -> Iterator[Block]:
    rows = [row for row in source.analysis.metrics if row.policies and not row.equals]
    if not rows:
        yield Paragraph(text=words("policies unneeded"))
        return
    yield Paragraph(text=words("policies how", level=percent(1.0 - 2.0 * source.plan.rule.alpha)), is_muted=True)
    policies = list(dict.fromkeys(one.policy for row in rows for one in row.policies))
    named = (Column(id=policy.name.lower(), title=words(policy.value)) for policy in policies)
    last = (Column(id="all", title=words("all agree")), *columns(words, "tipping point"))
    yield Table(
        columns=(*columns(words, "metric"), *named, *last),
        rows=tuple(_policy_row(row, policies, words) for row in rows),
        is_wide=True,
        legend=(words("tipping legend"),),
    )


def _policy_row(row: MetricResult, policies: Sequence[MissingPolicy], words: Words) -> Row:
    """Each way of treating missing answers, and whether all of them prove the objective."""
    found = {one.policy: _policy(one, words) for one in row.policies}
    agree = all(one.is_equivalent for one in row.policies)
    texts = (found.get(policy, Cell(text="–")) for policy in policies)
    holds = words("tipping all")
    if row.tipping_point is not None:
        holds = words("tipping", most=count(row.tipping_point), n=count(row.n_missing))
    elif not agree:
        holds = "–"
    return cells(row.id, *texts, words("yes" if agree else "no"), holds)


def _policy(one: PolicyResult, words: Words) -> Cell:
    difference = signed(one.difference)
    text = f"{difference} ({words.interval(one.interval.low, one.interval.high)})" if one.interval else difference
    return Cell(text=text, value=one.difference, tone=Tone.GOOD if one.is_equivalent else Tone.OPEN)


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


_HAIR = 1e-9
PLANNED = ("planned discordance", "planned effect", "planned power")
ACHIEVED = ("n", "seen discordance", "seen effect", "proven margin", "items needed", "needed observed")
NOTHING = Cell(text="–")


def power_section(source: Source, words: Words) -> Section:
    """One row a primary metric, the plan's assumptions beside what was observed."""
    blocks: list[Block] = []
    if source.primaries:
        blocks.append(_table(source, words))
    if source.plan.assumptions is None:
        blocks.append(Paragraph(text=words("not planned")))
    blocks.append(Paragraph(text=_joint(source, words)))
    if source.analysis.looks:
        blocks.append(Paragraph(text=looks_text(source.analysis.looks, words)))
    return Section(id="power", title=words("power"), blocks=tuple(blocks))


def _table(source: Source, words: Words) -> Table:
    is_planned = source.plan.assumptions is not None
    names = ("metric", "margin", *(PLANNED if is_planned else ()), *ACHIEVED)
    shown = columns(words, *names)
    rows = tuple(_row(row, shown, source, words) for row in source.primaries)
    return Table(columns=shown, rows=rows, legend=(words("power legend", power=percent(source.plan.rule.power)),))


def _row(row: MetricResult, shown: tuple[Column, ...], source: Source, words: Words) -> Row:
    spec = next(one for one in source.plan.metrics if one.id == row.id)
    rule = source.plan.rule_for(spec)
    found = {"metric": Cell(text=row.id), "margin": Cell(text=words.units(bounds_of(rule)), value=rule.margin)}
    found |= _planned(row, spec, rule, source, words)
    if row.evidence:
        found |= dict(_achieved(row.evidence, rule, words))
    if row.evidence and row.verdict is Verdict.INCONCLUSIVE:
        found |= _needed(row.evidence, rule, words, higher_is_better=spec.higher_is_better)
    return Row(cells=tuple(found.get(one.id, NOTHING) for one in shown))


def _planned(row: MetricResult, spec: MetricSpec, rule: DecisionRule, source: Source, words: Words) -> dict[str, Cell]:
    taken = source.plan.assumptions
    if taken is None or row.id not in taken.discordance:
        return {}
    discordance, effect = taken.discordance[row.id], taken.design_effect.get(row.id, 1.0)
    cells = {
        "planned discordance": Cell(text=words.units(percent(discordance)), value=discordance),
        "planned effect": Cell(text=tokens(effect), value=effect),
    }
    if spec.kind in (MetricKind.BINARY_MEAN, MetricKind.GROUP_MEAN):
        # scipy: planned runs only
        from qualab.planning.power import Missing, verdict_power  # noqa: PLC0415
        from qualab.stats.sizing import discordance_with_repeats  # noqa: PLC0415

        noise = taken.noise.get(row.id, 0.0)
        evidence, repeats = row.evidence, source.plan.sampling.repeats
        is_clustered = evidence is not None and evidence.kind is EvidenceKind.CLUSTERS
        n_clusters = evidence.n_clusters if evidence and is_clustered else None
        variance = discordance_with_repeats(discordance=discordance, noise=noise, repeats=repeats)
        power = verdict_power(
            n_items=max(1, math.floor(row.n_items / effect + _HAIR)),
            discordance=variance,
            margin=rule.margin,
            alpha=rule.alpha,
            is_one_sided=is_one_sided(rule),
            missing=Missing(share=taken.missing, lost=rule.missing_lost),
            n_clusters=n_clusters,
        )
        cells["planned power"] = Cell(text=words.units(share(power)), value=power)
    return cells


def _achieved(evidence: Evidence, rule: DecisionRule, words: Words) -> Iterator[tuple[str, Cell]]:
    yield "n", Cell(text=count(evidence.n_items), value=evidence.n_items)
    if evidence.kind in (EvidenceKind.COUNTS, EvidenceKind.CLUSTERS):
        discordance = (evidence.gains + evidence.losses) / evidence.n_items
        yield "seen discordance", Cell(text=words.units(share(discordance, 2)), value=discordance)
        yield "seen effect", Cell(text=tokens(evidence.design_effect), value=evidence.design_effect)
    yield "proven margin", _margin(evidence.provable_margin, rule, words)


def _needed(evidence: Evidence, rule: DecisionRule, words: Words, *, higher_is_better: bool) -> dict[str, Cell]:
    """Items to prove the margin, of a metric that is open: at no true difference, and at the observed one."""
    if evidence.provable_margin is None:
        return {"items needed": Cell(text=words("no bound"))}
    found = {"items needed": _items(evidence.items_needed, evidence.items_needed_range, words)}
    if is_out_of_reach(evidence, rule, higher_is_better=higher_is_better):
        return found | {"needed observed": Cell(text=words("out of reach"))}
    observed, over = evidence.items_needed_observed, evidence.items_needed_observed_range
    if observed is None and over is None:
        return found  # of an earlier version
    return found | {"needed observed": _items(observed, over, words)}


def _items(needed: int | None, over: ItemsRange | None, words: Words) -> Cell:
    def said(n: int | None) -> str:
        return words("more than", n=count(MAX_ITEMS)) if n is None else count(n)

    if over is None or needed is None:
        return Cell(text=said(needed), value=needed)
    return Cell(text=words("items range", n=said(needed), low=said(over.low), high=said(over.high)), value=needed)


def _margin(margin: float | None, rule: DecisionRule, words: Words) -> Cell:
    if margin is None:
        return Cell(text=words("no bound"))
    if margin >= 1.0:
        return Cell(text=words("none proven"), value=margin)
    return Cell(text=words.units(bounds_of(rule, margin)), value=margin)


def _joint(source: Source, words: Words) -> str:
    suite = source.analysis.suite
    if suite.joint_power is None:
        return words("no joint power", why=words.sentence(suite.joint_power_reason))
    return words("joint power", power=share(suite.joint_power))


def looks_text(taken: LooksTaken, words: Words) -> str:
    """Where a run with looks ended."""
    places = {
        "planned": taken.n_planned,
        "n": count(taken.n_items),
        "total": count(taken.n_items_planned),
        "saved": count(taken.n_requests_saved),
        "look": taken.looks[-1].number if taken.looks else 0,
    }
    return words("looks stopped" if taken.stopped_early else "looks to the end", **places)
