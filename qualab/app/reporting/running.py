"""How the comparison was run: enough to run it again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from qualab.app.reporting.power import looks_text
from qualab.app.reporting.source import Source, cells, columns, facts
from qualab.app.reporting.verdicts import bounds_text
from qualab.app.reporting.words import Words
from qualab.domain.names import ArmName
from qualab.domain.numbers import count
from qualab.domain.plan import TaskSpec
from qualab.domain.report import Cell, Paragraph, Row, Section, Table

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
