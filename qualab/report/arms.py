"""The two arms side by side, and what differs between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from qualab.analysis.drafter import Difference, differences
from qualab.model.comparison import (
    ArmSummary,
    MetricNoise,
    NoiseFloor,
    OddOneOut,
    RepeatNoise,
    RepeatSummary,
    TextsCompared,
    Thoughts,
)
from qualab.model.engine import Engine, EngineKind, EngineSummary, engines_seen
from qualab.model.names import ArmName
from qualab.model.plan import PinFound, PinPart, TaskSpec
from qualab.model.reason import Reason
from qualab.model.report import Block, Cell, Column, Paragraph, Row, Section, Table
from qualab.model.wording import count, pvalue, seconds, share
from qualab.report.evidence import looks_text
from qualab.report.source import Source, arms, cells, columns, facts
from qualab.report.summary import bounds_text
from qualab.report.tokens import token_notes, token_rows
from qualab.report.words import Words

DRAFTER = Reason("follows.drafter")
"""Why settings differ that are the drafter's own: they are many, and one row stands for them."""


def arms_section(source: Source, words: Words) -> Section:
    """What each arm is, how fast it answered, and what differs."""
    heads = [Column(id=arm, title=title, is_number=False) for arm, title in arms(source, words)]
    first = Column(id="part", title=words("part"), is_number=False)
    blocks: list[Block] = [Table(columns=(first, *heads), rows=tuple(_rows(source, words)))]
    blocks += _differences(source, words)
    return Section(id="arms", title=words("arms"), blocks=tuple(blocks))


def _rows(source: Source, words: Words) -> Iterator[Row]:
    comparison, analysis = source.comparison, source.analysis
    yield _row("url", words, {ArmName.BASELINE: comparison.baseline_url, ArmName.CANDIDATE: comparison.candidate_url})
    yield _row("model", words, source.models)
    if any(one.models.keys() - {source.plan.sampling.model} for one in analysis.arms):
        yield _row("answered by", words, {one.arm: _models(one) for one in analysis.arms})
    treatment = analysis.treatment
    engines = {one.arm: one for one in treatment.engines} if treatment else {}
    for key, tell in ENGINE_FACTS.items():
        if engines:
            yield _row(key, words, {arm: tell(engine, words) for arm, engine in engines.items()})
    found = analysis.pinning.found if analysis.pinning else ()
    for part in PinPart:
        told = {one.arm: _pin(one, words) for one in found if one.part is part}
        if told or part is not PinPart.CHECKPOINT:
            yield _row(f"pin {part}", words, told)
    summaries = {one.arm: one for one in analysis.arms}
    yield _row("latency", words, {arm: _latency(one, words) for arm, one in summaries.items()})
    generated = {arm: "" if source.plan.imported else count(one.completion_tokens) for arm, one in summaries.items()}
    yield _row("generated", words, generated)
    if reasoning := analysis.reasoning:
        yield _row("thoughts", words, {arm: _thoughts(getattr(reasoning, arm), words) for arm in ArmName})
    for leak in analysis.leaks:
        numbers = {ArmName.BASELINE: leak.n_baseline, ArmName.CANDIDATE: leak.n_candidate}
        texts = {arm: words("leaks of", n=count(n), total=count(leak.n_pairs)) for arm, n in numbers.items()}
        yield _row(leak.kind.value, words, texts)


def _row(key: str, words: Words, texts: Mapping[ArmName, str]) -> Row:
    return cells(words(key), *(texts.get(arm) or words("not said") for arm in ArmName))


def _drafter(engine: EngineSummary, words: Words) -> str:
    """Of an engine that is not known, not even that the baseline has none."""
    is_known = engine.arm is ArmName.BASELINE and engine.kind is not EngineKind.UNKNOWN
    return engine.drafter or words("no drafter" if is_known else "not said")


def _engine(engine: EngineSummary, words: Words) -> str:
    return words("unknown") if engine.kind is EngineKind.UNKNOWN else f"{engine.kind} {engine.version}".strip()


ENGINE_FACTS: Mapping[str, Callable[[EngineSummary, Words], str]] = {
    "engine": _engine,
    "checkpoint": lambda one, _: one.model_root,
    "drafter": _drafter,
    "max_model_len": lambda one, words: words("tokens of", n=count(one.max_model_len)) if one.max_model_len else "",
    "kv_cache": lambda one, words: words("tokens of", n=count(one.kv_cache_tokens)) if one.kv_cache_tokens else "",
}


def _pin(one: PinFound, words: Words) -> str:
    value = one.values[0]
    return words("verified by", value=value, source=one.source) if one.is_verified else words("declared", value=value)


def _models(one: ArmSummary) -> str:
    return ", ".join(f"{name} ({count(n)})" for name, n in one.models.items())


def _latency(one: ArmSummary, words: Words) -> str:
    if one.latency_p50_s is None or one.latency_p99_s is None:
        return ""
    return words("latency of", p50=seconds(one.latency_p50_s), p99=seconds(one.latency_p99_s))


def _thoughts(one: Thoughts, words: Words) -> str:
    mean = count(round(one.mean_characters)) if one.mean_characters else "0"
    return words("thoughts of", n=count(one.n_answers), mean=mean, cut=count(one.cut))


def _differences(source: Source, words: Words) -> Iterator[Block]:
    engines = engines_seen(source.observations)
    if len(engines) < len(ArmName):
        yield Paragraph(text=words("no engines"))
        return
    baseline, candidate = engines[ArmName.BASELINE], engines[ArmName.CANDIDATE]
    if not baseline.config or not candidate.config:
        yield Paragraph(text=words("no configuration"))
    found = differences(baseline, candidate)
    if found:
        yield Paragraph(text=words("differs"), is_muted=True)
        yield _difference_table(found, candidate, words)
    elif baseline.config and candidate.config:
        yield Paragraph(text=words("differs in nothing"))


def _difference_table(found: Sequence[Difference], candidate: Engine, words: Words) -> Table:
    ordered = sorted((one for one in found if one.follows != DRAFTER), key=lambda one: one.follows is not None)
    rows = [_difference(one, words) for one in ordered]
    if own := [one for one in found if one.follows == DRAFTER]:
        rows.append(_drafters_own(own, candidate, words))
    heads = columns(words, "setting", "baseline", "candidate", "why expected", n_texts=4)
    return Table(columns=heads, rows=tuple(rows))


def _difference(one: Difference, words: Words) -> Row:
    why = words.reason(one.follows) if one.follows else words("unexpected")
    return cells(one.name, one.baseline or "–", one.candidate or "–", why)


def _drafters_own(own: Sequence[Difference], candidate: Engine, words: Words) -> Row:
    name = own[0].name.partition(".")[0] if len(own) > 1 else own[0].name
    settings = words("settings of", name=name, n=len(own))
    return cells(settings, words("no drafter"), candidate.drafter or words("not said"), words.reason(DRAFTER))


NO_COMMITS = ("local", "unknown")
"""Revisions that are words."""


def running_section(source: Source, words: Words) -> Section:
    """Hashes, times, settings, requests, versions, and one row a task."""
    names = ("task", "items", "few-shot", "request kind", "dataset", "revision")
    rows = tuple(_task(one, words) for one in source.plan.tasks)
    heads = tuple(replace(one, is_number=one.id in ("items", "few-shot")) for one in columns(words, *names))
    looks = source.analysis.looks
    blocks = (
        facts(words, _facts(source, words)),
        Paragraph(text=_requests(source, words)),
        Table(columns=heads, rows=rows),
        *((Paragraph(text=looks_text(looks, words)),) if looks and looks.stopped_early else ()),
    )
    return Section(id="running", title=words("running"), blocks=blocks)


def _requests(source: Source, words: Words) -> str:
    if imported := source.plan.imported:
        return words("not asked", off=imported.baseline, on=imported.candidate)
    differing = source.analysis.pairs.request_hashes_differ
    return words("other bytes", n=count(differing)) if differing else words("same bytes")


def _facts(source: Source, words: Words) -> Iterator[tuple[str, str]]:
    comparison, analysis, plan = source.comparison, source.analysis, source.plan
    yield "comparison", comparison.id
    yield "label", comparison.label
    yield "plan hash", analysis.plan_hash
    yield "input hash", analysis.input_hash
    yield "seal", source.seal
    yield "times", _times(source, words)
    yield "suite", plan.suite if plan.requested == (plan.suite,) else f"{plan.suite} ({', '.join(plan.requested)})"
    rule = plan.rule
    objective = words(f"objective {rule.objective}", bounds=bounds_text(plan), alpha=f"{rule.alpha:g}")
    yield "objective", f"{objective}; {words('strict')}" if rule.strict else objective
    yield "sampling", _sampling(source, words)
    if plan.imported is None:
        policy = plan.policy
        limits = {"timeout": f"{policy.timeout_s:g}", "attempts": policy.max_attempts}
        yield "sending", words("policy of", concurrency=policy.concurrency, **limits)
        yield "sent", _sent(source, words)
    yield "versions", ", ".join(f"{name} {version}" for name, version in analysis.versions.items())
    yield "seed of analysis", str(analysis.suite.seed)


def _times(source: Source, words: Words) -> str:
    start, end = source.comparison.started_at, source.comparison.finished_at
    if start is None:
        return words("not known")
    if end is None:
        return words("started alone", start=words.moment(start))
    duration = words.duration((end - start).total_seconds())
    return words("times of", start=words.moment(start), end=words.moment(end), duration=duration)


def _sampling(source: Source, words: Words) -> str:
    sampling = source.plan.sampling
    settings = ", ".join(
        f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in sampling.gen_kwargs.items()
    )
    places = {"api": sampling.api.value, "seed": sampling.seed, "repeats": sampling.repeats}
    return words("sampling of", settings=settings or words("task settings"), **places)


def _sent(source: Source, words: Words) -> str:
    arms = {one.arm: one for one in source.analysis.arms}
    off, on = arms.get(ArmName.BASELINE), arms.get(ArmName.CANDIDATE)
    if off is None or on is None:
        return ""
    retries = {"retries_off": count(off.retries), "retries_on": count(on.retries)}
    duplicates = count(source.comparison.duplicates)
    return words("sent of", off=count(off.n_requests), on=count(on.n_requests), duplicates=duplicates, **retries)


def _task(one: TaskSpec, words: Words) -> Row:
    items = words("items of", n=count(one.n_items), total=count(one.n_available))
    return cells(
        one.name,
        Cell(text=items, value=one.n_items),
        str(one.num_fewshot),
        words(one.kind.value),
        one.dataset,
        words(one.revision) if one.revision in NO_COMMITS else one.revision,
    )


NOTHING = Cell(text="–")
Texts = TextsCompared | None


def noise_section(source: Source, words: Words) -> Section:
    """The noise floor, or that none was measured; then what repeats of an item show."""
    found, repeats = source.analysis.noise, source.analysis.repeats
    blocks: list[Block] = []
    if found is None:
        blocks.append(Paragraph(text=words("no noise")))
        blocks.append(Paragraph(text=_arms_alone(source, words)))
        rows = tuple(cells(one.label, one.candidate) for one in token_rows(source.analysis.tokens, words))
        blocks += _with_notes(columns(words, "noise what", "noise arms"), rows, (), source, words)
    else:
        blocks += _floor(found, source, words)
    if repeats:
        blocks += _repeats(repeats, source, words)
    return Section(id="noise", title=words("noise"), blocks=tuple(blocks))


def _with_notes(
    heads: tuple[Column, ...], rows: tuple[Row, ...], legend: tuple[str, ...], source: Source, words: Words
) -> Iterator[Block]:
    """The table with what is to be said of tokens under it, or that alone."""
    notes = tuple(token_notes(source.plan, source.analysis, words))
    if rows:
        yield Table(columns=heads, rows=rows, legend=(*legend, *notes))
    else:
        yield from (Paragraph(text=note, is_muted=True) for note in notes)


def _arms_alone(source: Source, words: Words) -> str:
    pairs = source.analysis.pairs
    if not pairs.n_pairs:
        return words("no generations")
    same = share(pairs.same_text / pairs.n_pairs)
    places = {"n": count(pairs.same_text), "total": count(pairs.n_pairs), "finish": count(pairs.finish_reasons_differ)}
    return words("arms only", share=same, **places)


def _floor(found: NoiseFloor, source: Source, words: Words) -> Iterator[Block]:
    runs = words("runs one") if found.n_runs == 1 else words("runs many", n=found.n_runs)
    asked = {"n": count(found.n_answered), "total": count(found.n_asked), "concurrency": found.concurrency}
    yield Paragraph(text=words("noise how", runs=runs, arms=source.plan.policy.concurrency, **asked))
    if found.note:
        yield Paragraph(text=words.reason(found.note))
    heads = columns(words, "noise what", "noise baseline", "noise arms", "noise odd")
    primaries = {row.id for row in source.primaries}
    rows = [
        *_text_rows(found, words),
        *_token_rows(source, words),
        *(_flips(one, words) for one in found.metrics if one.metric in primaries),
    ]
    yield from _with_notes(heads, tuple(rows), (words("noise legend"),), source, words)


def _text_rows(found: NoiseFloor, words: Words) -> Iterator[Row]:
    both = (found.baseline, found.candidate)
    if not all(both):
        return
    yield cells(
        words("same text"), *(_of(one, one.same_text, words) for one in both if one), _odd(found.odd_texts, words)
    )
    yield cells(words("changed"), *(_of(one, one.changed, words) for one in both if one), NOTHING)
    yield cells(words("first difference"), *(_place(one) for one in both if one), NOTHING)


def _token_rows(source: Source, words: Words) -> Iterator[Row]:
    for one in token_rows(source.analysis.tokens, words):
        yield cells(one.label, one.baseline or NOTHING, one.candidate, NOTHING)


def _of(texts: TextsCompared, number: int, words: Words) -> Cell:
    part = number / texts.n_pairs
    text = words("share of", n=count(number), total=count(texts.n_pairs), share=share(part))
    return Cell(text=text, value=part)


def _place(texts: TextsCompared) -> Cell:
    if texts.first_difference is None:
        return NOTHING
    return Cell(text=f"{texts.first_difference:,.0f}", value=texts.first_difference)


def _flips(one: MetricNoise, words: Words) -> Row:
    rates = (one.flip_rate_baseline, one.flip_rate_candidate)
    shown = (NOTHING if rate is None else Cell(text=words.units(share(rate)), value=rate) for rate in rates)
    return cells(words("flips in", metric=one.metric), *shown, _odd(one.odd, words))


def _odd(found: OddOneOut | None, words: Words) -> Cell:
    if found is None:
        return NOTHING
    if not found.n_odd:
        return Cell(text=words("no odd"))
    places = {"n": count(found.n_candidate_odd), "total": count(found.n_odd), "p": pvalue(found.pvalue)}
    return Cell(text=words("odd of", **places), value=found.pvalue)


def _repeats(found: RepeatSummary, source: Source, words: Words) -> Iterator[Block]:
    primaries = {row.id for row in source.primaries}
    rows = tuple(_repeat(one, words) for one in found.metrics if one.metric in primaries)
    yield Paragraph(text=words("repeats"), is_muted=True)
    if rows:
        heads = columns(words, "metric", "repeat arm", "n", "flip rate", "between", "icc", "icc mean", n_texts=2)
        yield Table(columns=heads, rows=rows)


def _repeat(one: RepeatNoise, words: Words) -> Row:
    items = Cell(text=count(one.n_items), value=one.n_items)
    flips = NOTHING if one.flip_rate is None else Cell(text=words.units(share(one.flip_rate)), value=one.flip_rate)
    return cells(one.metric, words(one.arm.value), items, flips, *_variance(one, words))


def _variance(one: RepeatNoise, words: Words) -> Iterator[Cell]:
    yield NOTHING if one.icc is None else Cell(text=words.units(share(one.icc)), value=one.icc)
    for value in (one.icc, one.icc_mean):
        yield NOTHING if value is None else Cell(text=f"{value:.2f}", value=value)
