"""The two arms side by side, and what differs between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from qualab.app.differences import Difference, differences
from qualab.app.reporting.source import Source, arms, cells, columns
from qualab.app.reporting.words import Words
from qualab.domain.comparison import ArmSummary, Thoughts
from qualab.domain.engine import Engine, EngineKind
from qualab.domain.names import ArmName
from qualab.domain.numbers import count, seconds
from qualab.domain.observations import engines_seen
from qualab.domain.pins import PinFound, PinPart
from qualab.domain.report import Block, Column, Paragraph, Row, Section, Table
from qualab.domain.treatment import EngineSummary

DRAFTER = "the drafter itself"
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
    ordered = sorted((one for one in found if one.follows != DRAFTER), key=lambda one: bool(one.follows))
    rows = [_difference(one, words) for one in ordered]
    if own := [one for one in found if one.follows == DRAFTER]:
        rows.append(_drafters_own(own, candidate, words))
    heads = columns(words, "setting", "baseline", "candidate", "why expected", n_texts=4)
    return Table(columns=heads, rows=tuple(rows))


def _difference(one: Difference, words: Words) -> Row:
    why = words.sentence(one.follows) if one.follows else words("unexpected")
    return cells(one.name, one.baseline or "–", one.candidate or "–", why)


def _drafters_own(own: Sequence[Difference], candidate: Engine, words: Words) -> Row:
    name = own[0].name.partition(".")[0] if len(own) > 1 else own[0].name
    settings = words("settings of", name=name, n=len(own))
    return cells(settings, words("no drafter"), candidate.drafter or words("not said"), words.sentence(DRAFTER))
