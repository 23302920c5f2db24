"""The two arms: what they are, how they differ, what the drafter did, how they were asked, and their noise."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from qualab.model.comparison import OddOneOut, TextsCompared, Thoughts
from qualab.model.engine import (
    EngineKind,
    EngineSummary,
    FirstTokenSummary,
    TaskDrafting,
    TokensCompared,
    Treatment,
    engines_seen,
)
from qualab.model.names import ArmName, RequestKind
from qualab.model.plan import PinFound, PinPart
from qualab.model.reason import Reason, of
from qualab.model.registry import urls_of
from qualab.model.report import NOTHING, Bar, Block, Cell, Fact, Facts, Histogram, PairHistogram, Paragraph, Table
from qualab.model.wording import count, share
from qualab.report.source import Cells, Number, Source, table
from qualab.report.verdict import bounds_text
from qualab.report.words import Words

DRAFTER = Reason("follows.drafter")
"""One row stands for all settings that follow from it."""
Texts = Mapping[ArmName, str]


def arms_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show what each arm is, and how fast it answered."""
    yield facts_table(_arm_facts(source, words), words)
    if imported := source.plan.imported:
        yield Paragraph(text=words("not asked", n=sum(join.paired for join in imported.joins)))
    if sum(map(bool, source.latencies.values())) == len(ArmName) and not imported:
        yield _latencies(source.latencies, words)
        yield Paragraph(text=words("latency note"), is_muted=True)


LATENCY_EDGES_S = (0.0, *(digit * 10.0**power for power in range(-2, 3) for digit in (1, 2, 5)))


def _latencies(seconds: Mapping[ArmName, Sequence[float]], words: Words) -> PairHistogram:
    bins = {arm: Counter(bisect_right(LATENCY_EDGES_S, value) - 1 for value in seconds[arm]) for arm in ArmName}
    used = range(min(map(min, bins.values())), max(map(max, bins.values())) + 1)
    edges, names = tuple(f"{LATENCY_EDGES_S[place]:g}" for place in used), tuple(words(arm) for arm in ArmName)
    counts = tuple(tuple(own[place] for place in used) for own in bins.values())
    lists = (
        f"{name}: {', '.join(f'{edge}: {count(n)}' for edge, n in zip(edges, own, strict=True) if n)}"
        for name, own in zip(names, counts, strict=True)
    )
    title, axis = words("latency title"), words("latency axis")
    return PairHistogram(
        title=title,
        edges=edges,
        names=names,
        counts=counts,
        axis=axis,
        vertical_axis=words("latency vertical"),
        limit=None,
        limit_text="",
        description=f"{title}. {axis}: {'; '.join(lists)}",
    )


def configuration_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show what image and checkpoint are pinned to, and how the engines' configurations differ."""
    if pins := tuple(pin_facts(source.analysis.pinning.found if source.analysis.pinning else (), words)):
        yield facts_table(pins, words)
    if source.observations is not None:
        yield from _differences(source, words)


def facts_table(facts: Iterable[tuple[str, Texts]], words: Words) -> Table:
    """Lay out what is known of each arm, one part a row."""
    unknown = words("not said")
    rows = [{"part": words(part), **{arm: texts.get(arm) or unknown for arm in ArmName}} for part, texts in facts]
    return table(words, ("part", *ArmName), rows, n_texts=3)


def _arm_facts(source: Source, words: Words) -> Iterator[tuple[str, Texts]]:
    comparison, analysis, imported = source.comparison, source.analysis, source.plan.imported
    arms = {summary.arm: summary for summary in analysis.arms}
    if imported:
        yield "log", {ArmName.BASELINE: imported.baseline, ArmName.CANDIDATE: imported.candidate}
    else:
        given = {ArmName.BASELINE: comparison.baseline_url, ArmName.CANDIDATE: comparison.candidate_url}
        shown = dict(given)
        for arm, urls in ((arm, urls_of(text)) for arm, text in given.items()):
            if len(urls) > 1:
                told = [words("answered here", url=url, n=n) for url, n in source.by_replica.get(arm, {}).items()]
                shown[arm] = words("replicas", n=len(urls), urls=", ".join(told or urls))
        yield "url", shown
    yield "model", source.models
    if any(own.models.keys() - {source.plan.sampling.model} for own in arms.values()):
        names = {arm: [f"{name} ({count(n)})" for name, n in own.models.items()] for arm, own in arms.items()}
        yield "answered by", {arm: ", ".join(own) for arm, own in names.items()}
    if analysis.treatment:
        yield from engine_facts(analysis.treatment.engines, words)
    if source.has_no_tasks:
        return
    yield "latency", {arm: words("latency of", arm=own) for arm, own in arms.items() if own.latency_p50_s is not None}
    if not imported:
        yield "generated", {arm: count(own.completion_tokens) for arm, own in arms.items()}
    if any(len(own.fingerprints) > 1 for own in arms.values()):
        yield "fingerprints", {arm: count(len(own.fingerprints)) for arm, own in arms.items()}
    if analysis.reasoning:
        thoughts: list[Thoughts] = [getattr(analysis.reasoning, arm) for arm in ArmName]
        texts = [words("thoughts of", thoughts=own, mean=round(own.mean_characters or 0)) for own in thoughts]
        yield "thoughts", dict(zip(ArmName, texts, strict=True))
    for leak in analysis.leaks:
        numbers = zip(ArmName, (leak.n_baseline, leak.n_candidate), strict=True)
        yield leak.kind.value, {arm: words("n of", n=n, total=leak.n_pairs) for arm, n in numbers}
    if analysis.pairs.prompt_tokens_differ:
        yield "prompt lengths", dict.fromkeys(ArmName, count(analysis.pairs.prompt_tokens_differ))


def engine_facts(engines: Sequence[EngineSummary], words: Words) -> Iterator[tuple[str, Texts]]:
    """Name each arm's engine and its drafter."""

    def tokens_of(name: str) -> Texts:
        lengths: dict[ArmName, int | None] = {engine.arm: getattr(engine, name) for engine in engines}
        return {arm: words("tokens", n=count(n)) for arm, n in lengths.items() if n is not None}

    if not engines:
        return
    known = {engine.arm: engine.kind is not EngineKind.UNKNOWN for engine in engines}
    names = {engine.arm: f"{engine.kind} {engine.version}".strip() for engine in engines}
    yield "engine", {arm: name if known[arm] else words("not known") for arm, name in names.items()}
    yield "model_root", {engine.arm: engine.model_root for engine in engines}
    none = {ArmName.BASELINE: words("none")} if known.get(ArmName.BASELINE) else {}
    yield "drafter", none | {engine.arm: engine.drafter for engine in engines if engine.drafter}
    yield "max_model_len", tokens_of("max_model_len")
    yield "kv_cache", tokens_of("kv_cache_tokens")


def pin_facts(found: Sequence[PinFound], words: Words) -> Iterator[tuple[str, Texts]]:
    """Name what each arm's image and checkpoint are pinned to."""
    for part in PinPart:
        pins = {pin.arm: pin for pin in found if pin.part is part}
        texts = {
            arm: words("verified by" if pin.is_verified else "declared", value=pin.values[0], source=pin.source)
            for arm, pin in pins.items()
        }
        if texts or part is not PinPart.CHECKPOINT:
            yield part, texts


def _differences(source: Source, words: Words) -> Iterator[Block]:
    engines = engines_seen(source.observations or ())
    if len(engines) < len(ArmName):
        yield Paragraph(text=words("no engines"))
        return
    baseline, candidate = engines[ArmName.BASELINE], engines[ArmName.CANDIDATE]
    from qualab.analysis.drafter import differences  # noqa: PLC0415  numpy: no terminal shows them

    settings = differences(baseline, candidate)
    if not (baseline.config and candidate.config):
        yield Paragraph(text=words("no configuration"))
    elif not settings:
        yield Paragraph(text=words("differs in nothing"))
    if not settings:
        return
    rows: list[Cells] = [
        {
            "setting": setting.name,
            "baseline": setting.baseline or "–",
            "candidate": setting.candidate or "–",
            "why": words.reason(setting.follows) if setting.follows else words("unexpected"),
        }
        for setting in sorted(settings, key=lambda setting: setting.follows is not None)
        if setting.follows != DRAFTER
    ]
    if drafter := [setting.name for setting in settings if setting.follows == DRAFTER]:
        name = drafter[0]
        if len(drafter) > 1:
            name = words("settings of", name=name.partition(".")[0], n=len(drafter))
        value = candidate.drafter or words("not said")
        rows.append({"setting": name, "baseline": words("none"), "candidate": value, "why": words.reason(DRAFTER)})
    yield Paragraph(text=words("differs"), is_muted=True)
    yield table(words, tuple(rows[0]), rows, n_texts=4, titles={"why": words("why expected")})


NO_COMMITS = ("local", "unknown")
"""Revisions that are words."""
OF_ITEMS = ("suite", "objective", "sampling", "sending", "sent")
"""How items are asked and judged."""


def running_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show hashes, times, settings, requests and versions, and one row a task."""
    plan = source.plan
    facts = ((key, text) for key, text in _run_facts(source, words) if plan.tasks or key not in OF_ITEMS)
    yield Facts(facts=tuple(Fact(label=words(key), text=text) for key, text in facts if text))
    differing = source.analysis.pairs.request_hashes_differ
    if plan.imported is None:
        yield Paragraph(text=words("other bytes", n=differing) if differing else words("same bytes"))
    rows: list[Cells] = [
        {
            "task": task.name,
            "items": Cell(text=words("n of", n=task.n_items, total=task.n_available), value=task.n_items),
            "few-shot": (task.num_fewshot, "count"),
            "request kind": words(task.kind),
            "dataset": task.dataset,
            "revision": words(task.revision) if task.revision in NO_COMMITS else task.revision,
        }
        for task in plan.tasks
    ]
    titles = {"revision": words("dataset revision")}
    if rows:
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
    settings = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in sampling.gen_kwargs.items())
    yield "sampling", words("sampling of", sampling=sampling, settings=", ".join(settings) or words("task settings"))
    if plan.imported is None:
        yield "sending", words("policy of", policy=plan.policy)
        if len(analysis.arms) == len(ArmName):
            arms = {summary.arm: summary for summary in analysis.arms}
            yield "sent", words("sent of", **arms, duplicates=comparison.duplicates)
    yield "versions", ", ".join(f"{name} {version}" for name, version in analysis.versions.items())
    yield "seed of analysis", str(analysis.suite.seed)


NOISE_COLUMNS = ("noise what", "noise baseline", "noise arms", "noise odd")
NoiseRow = tuple[str, Cell | Number, Cell | Number, Cell]
"""Values of `NOISE_COLUMNS`."""


def noise_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show the noise floor beside the arms, or that none was measured; then the repeats of items."""
    noise, pairs, repeats = source.analysis.noise, source.analysis.pairs, source.analysis.repeats
    if noise:
        yield Paragraph(text=words("noise how", noise=noise, arms=source.plan.policy.concurrency))
        if noise.note:
            yield Paragraph(text=words.reason(noise.note))
        if (n_runs := source.plan.n_baseline_runs) > 1:
            left = {own.metric: own.variance_left for own in noise.metrics}
            shares = [
                of(row.id, Reason("discount", {"share": share}))
                for row in source.primaries
                if (share := left.get(row.id)) is not None
            ]
            yield Paragraph(text=words("runs in test", n_runs=n_runs))
            if shares:
                yield Paragraph(text=words("variance left", shares=tuple(shares)))
    else:
        yield Paragraph(text=words("no noise"))
        key = "arms only" if pairs.n_pairs else "no generations"
        yield Paragraph(text=words(key, pairs=pairs, share=pairs.same_text / max(1, pairs.n_pairs)))
    notes = tuple(_token_notes(source, words))
    rows: list[Cells] = [dict(zip(NOISE_COLUMNS, row, strict=True)) for row in _noise_rows(source, words)]
    if rows:
        yield table(words, NOISE_COLUMNS, rows, n_texts=4, notes=notes)
    else:
        yield from (Paragraph(text=note, is_muted=True) for note in notes)
    primaries = {row.id for row in source.primaries}
    repeated: list[Cells] = [
        {
            "metric": repeat.metric,
            "arm": words(repeat.arm),
            "n": (repeat.n_items, "count"),
            "flip rate": (repeat.flip_rate, "share"),
            "between": (repeat.icc, "share"),
            "icc": (repeat.icc, "tokens"),
            "icc mean": (repeat.icc_mean, "tokens"),
        }
        for repeat in (repeats.metrics if repeats else ())
        if repeat.metric in primaries
    ]
    if repeated:
        yield Paragraph(text=words("repeats"), is_muted=True)
        yield table(words, tuple(repeated[0]), repeated, n_texts=2)


def _noise_rows(source: Source, words: Words) -> Iterator[NoiseRow]:
    noise, tokens = source.analysis.noise, source.analysis.tokens

    def part(texts: TextsCompared, n: int) -> Cell:
        value = n / texts.n_pairs
        return Cell(text=words("share of", n=n, total=texts.n_pairs, share=value), value=value)

    if noise and noise.baseline and noise.candidate:
        texts = noise.baseline, noise.candidate
        same, changed = ([part(own, getattr(own, name)) for own in texts] for name in ("same_text", "changed"))
        yield words("same text"), same[0], same[1], _odd(noise.odd_texts, words)
        yield words("changed"), changed[0], changed[1], NOTHING
        first, other = ((own.first_difference, "place") for own in texts)
        yield words("first difference"), first, other, NOTHING
    if tokens:
        yield from _token_rows(tokens, words)
    primaries = {row.id for row in source.primaries}
    for own in noise.metrics if noise else ():
        if own.metric in primaries:
            rates = ((own.flip_rate_baseline, "share"), (own.flip_rate_candidate, "share"))
            yield words("flips in", metric=own.metric), *rates, _odd(own.odd, words)


def _odd(odd: OddOneOut | None, words: Words) -> Cell:
    if odd is None:
        return NOTHING
    return Cell(text=words("odd of", odd=odd), value=odd.pvalue) if odd.n_odd else Cell(text=words("no odd"))


def _token_rows(tokens: FirstTokenSummary, words: Words) -> Iterator[NoiseRow]:

    def place(texts: TokensCompared) -> Cell:
        key = "token at"
        if not texts.n_differ:
            key = "no text differs"
        elif texts.first_difference is None:
            key = "tokens the same" if texts.n_tokenized else "tokens unknown"
        return Cell(text=words(key, texts=texts), value=texts.first_difference)

    labelled = [(words("first token"), tokens.baseline, tokens.candidate)]
    if len(tokens.tasks) > 1:
        labelled += [(words("first token in", task=own.task), own.baseline, own.candidate) for own in tokens.tasks]
    for label, baseline, candidate in labelled:
        if candidate.n_differ or (baseline and baseline.n_differ):
            yield label, place(baseline) if baseline else NOTHING, place(candidate), NOTHING


def _token_notes(source: Source, words: Words) -> Iterator[str]:
    """Whose tokens they are, or why there are none; nothing where nothing generates, or no text differs."""
    tokens = source.analysis.tokens
    if tokens is None:
        if source.plan.imported:
            yield words("tokens imported")
        elif any(task.kind is RequestKind.GENERATION for task in source.plan.tasks):
            yield words("tokens unseen")
        return
    tokenizer = words(f"tokens {tokens.by}")
    if any(texts.n_tokenized for texts in (tokens.baseline, tokens.candidate) if texts):
        yield words("tokens how", who=tokenizer)
    if tokens.lack:
        yield words(f"tokens lack {tokens.lack}", who=tokenizer)


DRAFTING_COLUMNS = (
    *("task", "answers", "rounds", "drafted", "accepted", "length", "median", "p10", "zero", "an answer"),
    *("thirds", "cost", "break even"),
)
DISPENSABLE = ("an answer", "median", "p10", "thirds", "cost", "answers", "zero", "break even")


def acceptance_blocks(treatment: Treatment | None, words: Words) -> Iterator[Block]:
    """Show what the drafter did, task by task: one number for all would hide that tasks draft differently."""
    if treatment is None or not treatment.is_observed:
        yield Paragraph(text=words("not observed" if treatment else "no treatment"))
        return
    break_even = treatment.break_even_length
    notes = [] if break_even is None else [words("break even is", length=break_even)]
    yield table(words, DRAFTING_COLUMNS, map(_drafting, treatment.tasks), notes=notes, dispensable=DISPENSABLE)
    if bins := treatment.bins:
        yield Paragraph(text=words("bins"), is_muted=True)
        rows: list[Cells] = [
            {
                "prompt tokens": words("from to", low=count(own.from_tokens), high=count(own.to_tokens)),
                "answers": (own.n_answers, "count"),
                "drafted": (own.draft_tokens, "count"),
                "accepted": (own.accepted_tokens / own.draft_tokens if own.draft_tokens else None, "share"),
            }
            for own in bins
        ]
        yield table(words, tuple(rows[0]), rows)
    drawn = [task for task in treatment.tasks if sum(task.histogram)]
    highest = max((max(task.histogram) / sum(task.histogram) for task in drawn), default=0.0)
    yield from (_histogram(task, highest, words) for task in drawn)
    if not drawn:
        yield Paragraph(text=words("no histogram"))


def _drafting(task: TaskDrafting) -> Cells:
    first, last = task.first_third, task.last_third
    return {
        "task": task.task,
        "answers": (task.n_answers, "count"),
        "rounds": (task.rounds, "count"),
        "drafted": (task.draft_tokens, "count"),
        "accepted": (task.accepted_share, "share"),
        "length": (task.mean_length, "tokens"),
        "median": (task.median_length, "tokens"),
        "p10": (task.p10_length, "tokens"),
        "zero": (task.zero_share, "share"),
        "an answer": (task.request_mean_length, "tokens"),
        "thirds": None if first is None or last is None else f"{first:.2f} → {last:.2f}",
        "cost": (task.round_cost, "tokens"),
        "break even": (task.break_even_margin, "over"),
    }


def _histogram(task: TaskDrafting, highest: float, words: Words) -> Histogram:
    total = sum(task.histogram)
    bars = tuple(
        Bar(label=str(accepted), count=n, share=n / total, text=words.units(share(n / total)))
        for accepted, n in enumerate(task.histogram)
    )
    title, axis = words("histogram title", task=task.task, n=total), words("histogram axis")
    return Histogram(
        title=title,
        bars=bars,
        axis=axis,
        vertical_axis=words("histogram vertical"),
        description=f"{title}. {axis}: {', '.join(f'{bar.label}: {bar.text}' for bar in bars)}",
        highest=highest,
    )
