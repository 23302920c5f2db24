"""The two arms: what they are, how they differ, what the drafter did, how they were asked, and their noise."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qualab.model.comparison import ArmSummary, NoiseFloor, OddOneOut, RepeatNoise, TextsCompared, Thoughts
from qualab.model.engine import (
    EngineKind,
    EngineSummary,
    FirstTokenSummary,
    LengthBin,
    TaskDrafting,
    TokensCompared,
    Treatment,
    engines_seen,
)
from qualab.model.names import ArmName, RequestKind
from qualab.model.plan import PinFound, PinPart
from qualab.model.reason import Reason
from qualab.model.report import NOTHING, Bar, Block, Cell, Fact, Facts, Histogram, Paragraph
from qualab.model.wording import MINUS, count, seconds, share, tokens
from qualab.report.source import Cells, Source, number, table
from qualab.report.verdict import bounds_text
from qualab.report.words import Words

if TYPE_CHECKING:
    from qualab.analysis.drafter import Difference

DRAFTER = Reason("follows.drafter")
"""Why settings differ that are the drafter's own: they are many, and one row stands for them."""
Texts = Mapping[ArmName, str]


def arms_blocks(source: Source, words: Words) -> Iterator[Block]:
    """What each arm is, how fast it answered, and what differs."""
    rows = [
        {"part": words(part), **{arm: texts.get(arm) or words("not said") for arm in ArmName}}
        for part, texts in _arm_facts(source, words)
    ]
    yield table(words, ("part", *ArmName), rows, n_texts=3)
    if imported := source.plan.imported:
        yield Paragraph(text=words("not asked", n=sum(join.paired for join in imported.joins)))
    if source.observations is not None:
        yield from _differences(source, words)


def _arm_facts(source: Source, words: Words) -> Iterator[tuple[str, Texts]]:
    comparison, analysis, imported = source.comparison, source.analysis, source.plan.imported
    arms = {one.arm: one for one in analysis.arms}
    if imported:
        yield "log", {ArmName.BASELINE: imported.baseline, ArmName.CANDIDATE: imported.candidate}
    else:
        yield "url", {ArmName.BASELINE: comparison.baseline_url, ArmName.CANDIDATE: comparison.candidate_url}
    yield "model", source.models
    if any(one.models.keys() - {source.plan.sampling.model} for one in analysis.arms):
        yield "answered by", {arm: _models(one) for arm, one in arms.items()}
    if analysis.treatment:
        yield from engine_facts(analysis.treatment.engines, words)
    yield from pin_facts(analysis.pinning.found if analysis.pinning else (), words)
    yield "latency", {arm: _latency(one) for arm, one in arms.items()}
    if not imported:
        yield "generated", {arm: count(one.completion_tokens) for arm, one in arms.items()}
    if any(len(one.fingerprints) > 1 for one in analysis.arms):
        yield "fingerprints", {arm: count(len(one.fingerprints)) for arm, one in arms.items()}
    if reasoning := analysis.reasoning:
        yield "thoughts", {arm: _thoughts(getattr(reasoning, arm), words) for arm in ArmName}
    for leak in analysis.leaks:
        numbers = {ArmName.BASELINE: leak.n_baseline, ArmName.CANDIDATE: leak.n_candidate}
        yield leak.kind.value, {arm: words("n of", n=n, total=leak.n_pairs) for arm, n in numbers.items()}
    if analysis.pairs.prompt_tokens_differ:
        yield "prompt lengths", dict.fromkeys(ArmName, count(analysis.pairs.prompt_tokens_differ))


def engine_facts(engines: Sequence[EngineSummary], words: Words) -> Iterator[tuple[str, Texts]]:
    """What each arm's engine is, and its drafter."""

    def of_each(text: Mapping[ArmName, str | int | None]) -> Texts:
        return {
            arm: words("tokens", n=count(value)) if isinstance(value, int) else value or ""
            for arm, value in text.items()
        }

    if not engines:
        return
    unknown = words("not known")
    kinds = {one.arm: one.kind is not EngineKind.UNKNOWN for one in engines}
    yield "engine", {one.arm: f"{one.kind} {one.version}".strip() if kinds[one.arm] else unknown for one in engines}
    yield "model_root", {one.arm: one.model_root for one in engines}
    has_none = {one.arm: kinds[one.arm] and one.arm is ArmName.BASELINE for one in engines}
    yield "drafter", {one.arm: one.drafter or (words("none") if has_none[one.arm] else "") for one in engines}
    yield "max_model_len", of_each({one.arm: one.max_model_len for one in engines})
    yield "kv_cache", of_each({one.arm: one.kv_cache_tokens for one in engines})


def pin_facts(found: Sequence[PinFound], words: Words) -> Iterator[tuple[str, Texts]]:
    """What each arm's image and checkpoint are pinned to."""
    for part in PinPart:
        own = {pin.arm: pin for pin in found if pin.part is part}
        if own or part is not PinPart.CHECKPOINT:
            yield (
                part,
                {
                    arm: words("verified by" if pin.is_verified else "declared", value=pin.values[0], source=pin.source)
                    for arm, pin in own.items()
                },
            )


def _models(one: ArmSummary) -> str:
    return ", ".join(f"{name} ({count(n)})" for name, n in one.models.items())


def _latency(one: ArmSummary) -> str:
    if one.latency_p50_s is None or one.latency_p99_s is None:
        return ""
    return f"{seconds(one.latency_p50_s)} / {seconds(one.latency_p99_s)}"


def _thoughts(one: Thoughts, words: Words) -> str:
    return words("thoughts of", n=one.n_answers, mean=round(one.mean_characters or 0), cut=one.cut)


def _differences(source: Source, words: Words) -> Iterator[Block]:
    engines = engines_seen(source.observations or ())
    if len(engines) < len(ArmName):
        yield Paragraph(text=words("no engines"))
        return
    baseline, candidate = engines[ArmName.BASELINE], engines[ArmName.CANDIDATE]
    is_told = bool(baseline.config and candidate.config)
    if not is_told:
        yield Paragraph(text=words("no configuration"))
    from qualab.analysis.drafter import differences  # noqa: PLC0415  numpy: no terminal shows them

    found = differences(baseline, candidate)
    if not found and is_told:
        yield Paragraph(text=words("differs in nothing"))
    if not found:
        return
    others = sorted((one for one in found if one.follows != DRAFTER), key=lambda one: one.follows is not None)
    rows = [_difference(one, words) for one in others]
    if own := [one for one in found if one.follows == DRAFTER]:
        name = own[0].name
        if len(own) > 1:
            name = words("settings of", name=name.partition(".")[0], n=len(own))
        drafter = candidate.drafter or words("not said")
        rows.append({"setting": name, "baseline": words("none"), "candidate": drafter, "why": words.reason(DRAFTER)})
    yield Paragraph(text=words("differs"), is_muted=True)
    titles = {"why": words("why expected")}
    yield table(words, ("setting", "baseline", "candidate", "why"), rows, n_texts=4, titles=titles)


def _difference(one: Difference, words: Words) -> Cells:
    why = words.reason(one.follows) if one.follows else words("unexpected")
    return {"setting": one.name, "baseline": one.baseline or "–", "candidate": one.candidate or "–", "why": why}


NO_COMMITS = ("local", "unknown")
"""Revisions that are words."""


def running_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Hashes, times, settings, requests, versions, and one row a task."""
    plan = source.plan
    yield Facts(facts=tuple(Fact(label=words(key), text=text) for key, text in _run_facts(source, words) if text))
    differing = source.analysis.pairs.request_hashes_differ
    if plan.imported is None:
        yield Paragraph(text=words("other bytes", n=differing) if differing else words("same bytes"))
    rows: list[Cells] = [
        {
            "task": task.name,
            "items": Cell(text=words("n of", n=task.n_items, total=task.n_available), value=task.n_items),
            "few-shot": number(task.num_fewshot, "count", words),
            "request kind": words(task.kind),
            "dataset": task.dataset,
            "revision": words(task.revision) if task.revision in NO_COMMITS else task.revision,
        }
        for task in plan.tasks
    ]
    titles = {"revision": words("dataset revision")}
    yield table(words, tuple(rows[0]), rows, texts=("request kind", "dataset", "revision"), titles=titles)


def _run_facts(source: Source, words: Words) -> Iterator[tuple[str, str]]:
    comparison, analysis, plan, rule = source.comparison, source.analysis, source.plan, source.plan.rule
    yield "comparison", comparison.id
    yield "label", comparison.label
    yield "plan hash", analysis.plan_hash
    yield "input hash", analysis.input_hash
    yield "seal", source.seal
    start, end = comparison.started_at, comparison.finished_at
    if start and end:
        duration_s = (end - start).total_seconds()
        yield "times", words("times of", start=words.moment(start), end=words.moment(end), duration=duration_s)
    else:
        yield "times", words("started", start=words.moment(start)) if start else words("not known")
    yield "suite", plan.suite if plan.requested == (plan.suite,) else f"{plan.suite} ({', '.join(plan.requested)})"
    objective = words(f"objective {rule.objective}", bounds=bounds_text(plan), alpha=rule.alpha)
    yield "objective", f"{objective}; {words('strict')}" if rule.strict else objective
    sampling = plan.sampling
    settings = (f"{name} = {json.dumps(one, ensure_ascii=False)}" for name, one in sampling.gen_kwargs.items())
    shown = ", ".join(settings) or words("task settings")
    places = {"api": sampling.api, "seed": sampling.seed, "repeats": sampling.repeats, "settings": shown}
    yield "sampling", words("sampling of", **places)
    if plan.imported is None:
        policy = plan.policy
        limits = {"timeout": policy.timeout_s, "attempts": policy.max_attempts}
        yield "sending", words("policy of", concurrency=policy.concurrency, **limits)
        n_sent = {arm.arm: arm.n_requests for arm in analysis.arms}
        if len(n_sent) == len(ArmName):
            retries = {f"retries_{arm.arm}": arm.retries for arm in analysis.arms}
            yield "sent", words("sent of", **n_sent, **retries, duplicates=comparison.duplicates)
    yield "versions", ", ".join(f"{name} {version}" for name, version in analysis.versions.items())
    yield "seed of analysis", str(analysis.suite.seed)


NOISE_COLUMNS = ("noise what", "noise baseline", "noise arms", "noise odd")


def noise_blocks(source: Source, words: Words) -> Iterator[Block]:
    """The noise floor beside the arms, or that none was measured; then the repeats of items."""
    noise, pairs = source.analysis.noise, source.analysis.pairs
    rows: list[Cells] = []
    if noise is None:
        yield Paragraph(text=words("no noise"))
        finish = pairs.finish_reasons_differ
        same = {"same": pairs.same_text, "total": pairs.n_pairs, "share": pairs.same_text / max(1, pairs.n_pairs)}
        yield Paragraph(text=words("arms only", **same, finish=finish) if pairs.n_pairs else words("no generations"))
    else:
        asked = {"n": noise.n_answered, "total": noise.n_asked, "concurrency": noise.concurrency}
        yield Paragraph(text=words("noise how", runs=noise.n_runs, arms=source.plan.policy.concurrency, **asked))
        if noise.note:
            yield Paragraph(text=words.reason(noise.note))
        rows += _text_rows(noise, words)
    rows += _token_rows(source.analysis.tokens, words)
    primaries = {row.id for row in source.primaries}
    for one in noise.metrics if noise else ():
        if one.metric in primaries:
            rows.append(
                {
                    "noise what": words("flips in", metric=one.metric),
                    "noise baseline": number(one.flip_rate_baseline, "share", words),
                    "noise arms": number(one.flip_rate_candidate, "share", words),
                    "noise odd": _odd(one.odd, words),
                }
            )
    notes = tuple(_token_notes(source, words))
    if rows:
        yield table(words, NOISE_COLUMNS, rows, n_texts=4, notes=notes)
    else:
        yield from (Paragraph(text=note, is_muted=True) for note in notes)
    if source.analysis.repeats:
        repeats = [one for one in source.analysis.repeats.metrics if one.metric in primaries]
        yield Paragraph(text=words("repeats"), is_muted=True)
        names = ("metric", "arm", "n", "flip rate", "between", "icc", "icc mean")
        yield table(words, names, [_repeat(one, words) for one in repeats], n_texts=2)


def _text_rows(noise: NoiseFloor, words: Words) -> Iterator[Cells]:
    if noise.baseline is None or noise.candidate is None:
        return

    def row(key: str, *cells: Cell, odd: Cell = NOTHING) -> Cells:
        return dict(zip(NOISE_COLUMNS, (Cell(text=words(key)), *cells, odd), strict=True))

    def part(one: TextsCompared, n: int) -> Cell:
        value = n / one.n_pairs
        return Cell(text=words("share of", n=n, total=one.n_pairs, share=value), value=value)

    both = (noise.baseline, noise.candidate)
    yield row("same text", *(part(one, one.same_text) for one in both), odd=_odd(noise.odd_texts, words))
    yield row("changed", *(part(one, one.changed) for one in both))
    yield row("first difference", *(number(one.first_difference, "place", words) for one in both))


def _odd(found: OddOneOut | None, words: Words) -> Cell:
    if found is None:
        return NOTHING
    if not found.n_odd:
        return Cell(text=words("no odd"))
    text = words("odd of", n=found.n_candidate_odd, total=found.n_odd, p=found.pvalue)
    return Cell(text=text, value=found.pvalue)


def _token_rows(found: FirstTokenSummary | None, words: Words) -> Iterator[Cells]:
    """Where texts that differ begin to, in tokens: over all tasks, then in each where there are several."""
    if found is None:
        return
    labelled = [(words("first token"), found.baseline, found.candidate)]
    if len(found.tasks) > 1:
        labelled += [(words("first token in", task=one.task), one.baseline, one.candidate) for one in found.tasks]
    for label, baseline, candidate in labelled:
        if candidate.n_differ or (baseline and baseline.n_differ):
            own = _token_place(baseline, words) if baseline else NOTHING
            yield {"noise what": label, "noise baseline": own, "noise arms": _token_place(candidate, words)}


def _token_place(one: TokensCompared, words: Words) -> Cell:
    if not one.n_differ:
        return Cell(text=words("no text differs"))
    key = "token at"
    if one.first_difference is None:
        key = "tokens the same" if one.n_tokenized else "tokens unknown"
    text = words(key, n=one.first_difference, known=one.n_tokenized, total=one.n_differ)
    return Cell(text=text, value=one.first_difference)


def _token_notes(source: Source, words: Words) -> Iterator[str]:
    """Whose tokens they are, or why there are none; nothing where nothing generates, or no text differs."""
    found = source.analysis.tokens
    if found is None:
        if source.plan.imported:
            yield words("tokens imported")
        elif any(task.kind is RequestKind.GENERATION for task in source.plan.tasks):
            yield words("tokens unseen")
        return
    tokenizer = words(f"tokens {found.by}")
    if any(one.n_tokenized for one in (found.baseline, found.candidate) if one):
        yield words("tokens how", who=tokenizer)
    if found.lack:
        yield words(f"tokens lack {found.lack}", who=tokenizer)


def _repeat(one: RepeatNoise, words: Words) -> Cells:
    return {
        "metric": one.metric,
        "arm": words(one.arm),
        "n": number(one.n_items, "count", words),
        "flip rate": number(one.flip_rate, "share", words),
        "between": number(one.icc, "share", words),
        "icc": number(one.icc, "tokens", words),
        "icc mean": number(one.icc_mean, "tokens", words),
    }


DRAFTING_COLUMNS = (
    *("task", "answers", "rounds", "drafted", "accepted", "length", "median", "p10", "zero", "an answer"),
    *("thirds", "cost", "break even"),
)
DISPENSABLE = ("an answer", "median", "p10", "thirds", "cost", "answers", "zero", "break even")


def acceptance_blocks(found: Treatment | None, words: Words) -> Iterator[Block]:
    """What the drafter did, task by task: one number for all would hide that tasks draft differently."""
    if found is None or not found.is_observed:
        yield Paragraph(text=words("not observed" if found else "no treatment"))
        return
    notes = [] if found.break_even_length is None else [words("break even is", length=found.break_even_length)]
    rows = [_drafting(task, words) for task in found.tasks]
    yield table(words, DRAFTING_COLUMNS, rows, notes=notes, dispensable=DISPENSABLE)
    if found.bins:
        yield Paragraph(text=words("bins"), is_muted=True)
        yield table(
            words, ("prompt tokens", "answers", "drafted", "accepted"), [_bin(one, words) for one in found.bins]
        )
    histograms = [_histogram(task, words) for task in found.tasks if sum(task.histogram)]
    highest = max((bar.share for chart in histograms for bar in chart.bars), default=0.0)
    yield from (replace(chart, highest=highest) for chart in histograms)
    if not histograms:
        yield Paragraph(text=words("no histogram"))


def _drafting(one: TaskDrafting, words: Words) -> Cells:
    thirds, margin = (one.first_third, one.last_third), one.break_even_margin
    return {
        "task": one.task,
        "answers": number(one.n_answers, "count", words),
        "rounds": number(one.rounds, "count", words),
        "drafted": number(one.draft_tokens, "count", words),
        "accepted": number(one.accepted_share, "share", words),
        "length": number(one.mean_length, "tokens", words),
        "median": number(one.median_length, "tokens", words),
        "p10": number(one.p10_length, "tokens", words),
        "zero": number(one.zero_share, "share", words),
        "an answer": number(one.request_mean_length, "tokens", words),
        "thirds": " → ".join(tokens(one) for one in thirds if one is not None) if None not in thirds else None,
        "cost": number(one.round_cost, "tokens", words),
        "break even": None if margin is None else Cell(text=f"{margin:+.2f}".replace("-", MINUS), value=margin),
    }


def _histogram(one: TaskDrafting, words: Words) -> Histogram:
    total = sum(one.histogram)
    bars = tuple(
        Bar(label=str(accepted), count=n, share=n / total, text=words.units(share(n / total)))
        for accepted, n in enumerate(one.histogram)
    )
    title = words("histogram title", task=one.task, n=total)
    shares = ", ".join(f"{bar.label}: {bar.text}" for bar in bars)
    return Histogram(
        title=title,
        bars=bars,
        axis=words("histogram axis"),
        vertical_axis=words("histogram vertical"),
        description=f"{title}. {words('histogram axis')}: {shares}",
    )


def _bin(one: LengthBin, words: Words) -> Cells:
    accepted = one.accepted_tokens / one.draft_tokens if one.draft_tokens else None
    return {
        "prompt tokens": words("from to", low=count(one.from_tokens), high=count(one.to_tokens)),
        "answers": number(one.n_answers, "count", words),
        "drafted": number(one.draft_tokens, "count", words),
        "accepted": number(accepted, "share", words),
    }
