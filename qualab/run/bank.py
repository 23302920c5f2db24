"""Banks a baseline's answers, lets them stand in for a new comparison's, and checks that the baseline still gives them.

The copies are the new comparison's own. A sample of them is asked again in step with the candidate, at the run's load.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from qualab.analysis.drafter import differences
from qualab.analysis.scoring import raw_value, scores_of
from qualab.errors import BankNotFound, InvalidValue, RunStopped, WrongState
from qualab.model.bank import Bank, Banked
from qualab.model.canonical import body_hash, encode_body
from qualab.model.comparison import Analysis
from qualab.model.engine import BankSeen, Finding, Preflight, engines_seen, last_seen, pins_seen, tokens_seen
from qualab.model.items import Answer, Item, generations
from qualab.model.names import ArmName, ComparisonStatus, RequestKind
from qualab.model.plan import BankNoise, BankPlan, Plan, deciding_metrics
from qualab.model.reason import Reason
from qualab.model.registry import AuditEntry
from qualab.report.words import ENGLISH
from qualab.run.prepare import Run, refuse_imported
from qualab.run.prune import resume_hint
from qualab.settings import Settings
from qualab.stats.noise import excess_rate

if TYPE_CHECKING:
    from qualab.store import Store

SAMPLE, SAMPLE_PER_SLOT = 100, 4
"""Items of the sample: so many, or so many a slot where that is more, so that it is asked at the run's load."""
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}")
MOST_SHOWN = 80
BASELINE = ArmName.BASELINE
START_ANEW = "Run without the bank (leave out --bank), and bank that baseline: qualab baseline add NAME ID"


def add_bank(
    store: Store,
    name: str,
    comparison_id: str,
    *,
    who: str,
    now: datetime,
    details: Mapping[str, str] = MappingProxyType({}),
) -> Bank:
    """Bank the baseline of a finished comparison. `details` go into the record of changes.

    Raises InvalidValue for a malformed name, and for a baseline whose noise is not known or that came from a bank;
    ComparisonNotFound; WrongState where the name is taken, it is not finished, or looks ended it early.
    """
    if not NAME.fullmatch(name):
        allowed = "Letters, digits, '.', '_' and '-', at most 64 characters, a letter or digit first"
        raise InvalidValue(f"'{name[:MOST_SHOWN]}' is not a name", hint=allowed, fields={"name": allowed})
    comparison = refuse_imported(store.get(comparison_id), "banked")
    plan, analysis = comparison.plan, store.analysis(comparison.id)
    if comparison.status is not ComparisonStatus.FINISHED or analysis is None:
        raise WrongState(
            f"Comparison {comparison.id} is {comparison.status}: only a finished one can be banked",
            hint=resume_hint(comparison.id),
        )
    if plan.bank:
        raise InvalidValue(
            f"The baseline's answers of {comparison.id} come from bank {plan.bank.name} themselves",
            hint=f"Bank {plan.bank.comparison_id}, which asked them",
            fields={"comparison_id": "has answers of a bank"},
        )
    noise = _noise_of(plan, analysis)
    if noise is None:
        raise InvalidValue(
            f"Comparison {comparison.id} does not tell how much two runs of its baseline differ",
            hint="Bank one with a further run of the baseline (noise_floor: {runs: 1}, or --noise-floor-runs 1)",
            fields={"comparison_id": "has no further run of the baseline"},
        )
    if analysis.looks and analysis.looks.stopped_early:
        raise WrongState(
            f"Comparison {comparison.id} ended at a look: its baseline answered {analysis.looks.n_items:,} of "
            f"{analysis.looks.n_items_planned:,} items",
            hint="Bank one without looks, or that asked all items",
        )
    seen = store.observations(comparison.id)
    bank = Bank(
        name=name,
        comparison_id=comparison.id,
        plan_hash=comparison.plan_hash,
        model=plan.sampling.model,
        n_runs=plan.n_baseline_runs,
        banked_at=now,
        engine=engines_seen(seen)[BASELINE],
        tokens=tokens_seen(seen).get(BASELINE, ""),
        pins=tuple(pin for pin in pins_seen(seen) if pin.arm is BASELINE),
        noise=noise,
    )
    entry = AuditEntry(at=now, who=who, action="baseline.add", subject=name, details={**details, "id": comparison.id})
    store.add_bank(bank, entry=entry)
    return bank


def _noise_of(plan: Plan, analysis: Analysis) -> BankNoise | None:
    """Count differences of two runs; an item's repeats, which depend on each other, count once."""
    floor, repeats = analysis.noise, plan.sampling.repeats
    if floor is None or floor.baseline is None:
        return None
    deciding = {spec.id for spec in deciding_metrics(plan.metrics).values()}
    own = [metric for metric in floor.metrics if metric.metric in deciding]
    flips = sum((metric.flip_rate_baseline or 0.0) * metric.n_answers for metric in own)
    return BankNoise(
        n_texts=floor.baseline.n_pairs // repeats,
        n_texts_differ=round((floor.baseline.n_pairs - floor.baseline.same_text) / repeats),
        n_scores=sum(metric.n_answers for metric in own) // repeats,
        n_scores_differ=round(flips / repeats),
    )


def find_banked(store: Store, name: str) -> Banked | None:
    """Read a bank with its plan; None for no name. Raises InvalidValue where none has the name."""
    if not name:
        return None
    try:
        bank = store.bank(name)
    except BankNotFound as exc:
        raise InvalidValue(exc.message, hint=exc.hint, fields={"bank": "must name a banked baseline"}) from exc
    return Banked(bank, store.get(bank.comparison_id).plan)


def with_bank(plan: Plan, settings: Settings, banked: Banked | None) -> Plan:
    """Let a bank's answers, all its runs, stand in for the baseline's. Raises InvalidValue with all that differs."""
    if banked is None:
        return plan
    bank, floor = banked.bank, banked.plan.noise_floor
    different = list(_differing(banked.plan, plan))
    if plan.noise_floor not in (None, floor):
        different.append("the noise floor (leave it out: the bank's further runs stand in)")
    if not any(task.kind is RequestKind.GENERATION for task in plan.tasks):
        different.append("that no task here generates: there is no sample to ask")
    if different:
        message = f"Bank {bank.name} cannot stand in for the baseline: it differs in {'; '.join(different)}"
        raise InvalidValue(message, hint=START_ANEW, fields={"bank": f"differs in {'; '.join(different)}"})
    n_most = sum(task.n_items for task in plan.tasks)
    own = BankPlan(
        name=bank.name,
        comparison_id=bank.comparison_id,
        plan_hash=bank.plan_hash,
        noise=bank.noise,
        sample=min(n_most, settings.bank_sample or max(SAMPLE, SAMPLE_PER_SLOT * plan.policy.concurrency)),
        signoff=settings.bank_signoff,
    )
    return replace(plan, noise_floor=floor, bank=own)


def _differing(before: Plan, now: Plan) -> Iterator[str]:
    old, new = before.sampling, now.sampling
    values: dict[str, tuple[object, object]] = {
        "model": (old.model, new.model),
        "chat template": (old.api, new.api),
        "system instruction": (old.system_instruction, new.system_instruction),
        "generation settings": (old.gen_kwargs, new.gen_kwargs),
        "seed": (old.seed, new.seed),
        "repeats": (old.repeats, new.repeats),
        "concurrency": (before.policy.concurrency, now.policy.concurrency),
        "limit": (before.limit, now.limit),
        "lm-eval version": (before.harness_version, now.harness_version),
        "pinned image": (before.pins.image, now.pins.image),
        "pinned revision": (before.pins.revision, now.pins.revision),
        "pinned checkpoint": (before.pins.checkpoint_hash, now.pins.checkpoint_hash),
    }
    yield from (f"{name} ({was or 'none'}, now {is_ or 'none'})" for name, (was, is_) in values.items() if was != is_)
    known = {task.name: task for task in before.tasks}
    for task in now.tasks:
        if task.name not in known:
            yield f"task {task.name}, which it does not have"
        elif changed := [
            part for part, name in PARTS.items() if getattr(known[task.name], name) != getattr(task, name)
        ]:
            yield f"{' and '.join(changed)} of {task.name}"


PARTS = {
    "data revision": "revision",
    "data set": "dataset",
    "documents": "data_hash",
    "configuration": "config_hash",
    "version": "version",
    "few-shot examples": "num_fewshot",
    "number of items": "n_items",
}


def bank_findings(banked: Banked, plan: Plan, checked: Preflight) -> Iterator[Finding]:
    """Find what the baseline is now and was not when it was banked: configuration, tokenizer, pins."""
    bank, now = banked.bank, checked.engines[BASELINE]
    for part in differences(bank.engine, now):
        values = {"bank": bank.name, "setting": part.name, "before": part.baseline, "now": part.candidate}
        if not part.follows:
            yield _finding(Reason("bank.setting-changed", values))
    if bool(bank.engine.config) is not bool(now.config):
        yield _finding(Reason("bank.configuration-untold", {"bank": bank.name}))
    tokens = checked.tokens.get(BASELINE, "")
    # what is tokenized are prompts of the tasks
    is_comparable = {task.name for task in plan.tasks} == {task.name for task in banked.plan.tasks}
    if is_comparable and bank.tokens and tokens and bank.tokens != tokens:
        yield _finding(Reason("bank.tokenizer-changed", {"bank": bank.name}))
    then = {pin.part: pin for pin in bank.pins if pin.is_verified}
    for pin in checked.pins:
        if pin.arm is BASELINE and pin.is_verified and pin.part in then and pin.is_other_than(then[pin.part]):
            values = {"bank": bank.name, "part": pin.part, "before": then[pin.part].values[0], "now": pin.values[0]}
            yield _finding(Reason("bank.pin-changed", values))


def _finding(what: Reason) -> Finding:
    return Finding(stops=True, what=what, hint=f"Serve the baseline as it was then. {START_ANEW}")


def check_requests(store: Store, plan: Plan, items: Sequence[Item]) -> None:
    """Raise InvalidValue where a request is not byte for byte what the bank asked."""
    if plan.bank is None:
        return
    source, sampling = plan.bank.comparison_id, plan.sampling
    names = {item.position: item.id for item in store.items(source)}
    asked = {
        (names[answer.position], answer.choice, answer.repeat): answer.request_hash
        for answer in store.answers(source, arm=BASELINE)
    }
    other = {
        item.id: None
        for item in items
        for request in item.requests
        for repeat in range(sampling.repeats)
        if asked.get((item.id, request.choice, repeat))
        != body_hash(encode_body(request.payload, seed=sampling.seed + repeat))
    }
    if other:
        named = f"the requests of {len(other):,} of {len(items):,} items (the first is {next(iter(other))})"
        raise InvalidValue(
            f"Bank {plan.bank.name} cannot stand in for the baseline: {named} are not byte for byte what it asked",
            hint=f"Prompts, chat template or settings have changed (the audit adds some). {START_ANEW}",
            fields={"bank": "asked other requests"},
        )


def banked_answers(store: Store, plan: Plan, items: Iterable[Item]) -> Iterator[Answer]:
    """Copy the bank's answers, all its runs, to the places of these items; nothing where the plan has no bank."""
    if plan.bank is None:
        return
    source, positions = plan.bank.comparison_id, {item.id: item.position for item in items}
    places = {item.position: positions.get(item.id) for item in store.items(source)}
    for number in range(sample_run(plan)):
        for answer in store.answers(source, arm=BASELINE, run=number):
            if (position := places[answer.position]) is not None:
                yield replace(answer, position=position)


def sample_run(plan: Plan) -> int:
    """Number the run of the baseline that holds the sample: the one after those that stand in."""
    return 1 + (plan.noise_floor.runs if plan.noise_floor else 0)


def sample_of(plan: Plan, items: Sequence[Item]) -> list[Item]:
    """Draw the generating items that the baseline is asked again, by the plan's seed, in the run's order."""
    if plan.bank is None:
        return []
    generating = list(generations(items))
    drawn = random.Random(f"{plan.sampling.seed}:bank").sample(generating, min(plan.bank.sample, len(generating)))
    return sorted(drawn, key=lambda item: item.position)


def sample_left(run: Run) -> list[Item]:
    """Return the sample; nothing where it agreed before. Raises RunStopped where it differed before."""
    seen = last_seen(run.services.store.observations(run.id), BankSeen) if run.plan.bank else None
    if seen and seen.trouble:
        raise _stopped(run, seen.trouble)
    return [] if seen else sample_of(run.plan, run.items)


def check_sample(run: Run) -> None:
    """Compare the re-asked answers with the bank's, and store what that says. Raises RunStopped where they differ."""
    store, bank = run.services.store, run.plan.bank
    assert bank is not None
    drawn = {item.position for item in sample_of(run.plan, run.items)}
    before, now = (
        [
            answer
            for answer in store.answers(run.id, arm=BASELINE, run=number, positions=drawn)
            if answer.repeat == 0 and answer.reply.status.is_answer
        ]
        for number in (0, sample_run(run.plan))
    )
    texts = _differ(*({answer.position: answer.reply.text for answer in own} for own in (before, now)))
    deciding = {task: spec.key for task, spec in deciding_metrics(run.plan.metrics).items()}
    scores: list[dict[int, object]] = [
        {
            score.position: raw_value(score)
            for score in scores_of(iter(own), run.tasks, run.items)
            if score.metric == deciding.get(run.items[score.position].task)
        }
        for own in (before, now)
    ]
    flips = _differ(*scores)
    if 2 * len(texts) < len(drawn):
        values = {"name": bank.name, "n": len(texts), "total": len(drawn)}
        raise _stopped(run, Reason("stopped.bank-unanswered", values), hint=resume_hint(_way(run), retry_failed=True))
    seen = BankSeen(
        seen_at=run.services.clock.now(),
        name=bank.name,
        comparison_id=bank.comparison_id,
        n_sampled=len(drawn),
        n_compared=len(texts),
        n_texts_differ=sum(texts),
        texts_pvalue=_pvalue(texts, bank.noise.n_texts_differ, bank.noise.n_texts),
        n_scores_differ=sum(flips),
        scores_pvalue=_pvalue(flips, bank.noise.n_scores_differ, bank.noise.n_scores),
        trouble=None,
    )
    fingerprints = [{answer.reply.system_fingerprint for answer in own} - {""} for own in (before, now)]
    seen = replace(seen, trouble=_trouble(seen, fingerprints[0], fingerprints[1], alpha=run.plan.rule.alpha))
    store.add_observation(run.id, seen)
    if seen.trouble:
        raise _stopped(run, seen.trouble)


def _differ(before: Mapping[int, object], now: Mapping[int, object]) -> list[bool]:
    return [repr(before[place]) != repr(now[place]) for place in sorted(before.keys() & now.keys())]


def _pvalue(differ: Sequence[bool], n_noise_differ: int, n_noise: int) -> float:
    return excess_rate(sum(differ), len(differ), n_noise_differ=n_noise_differ, n_noise=n_noise)


def _trouble(seen: BankSeen, before: set[str], now: set[str], *, alpha: float) -> Reason | None:
    values: dict[str, object] = {"name": seen.name}
    if before and now - before:
        engines = {"before": tuple(sorted(before)), "now": tuple(sorted(now))}
        return Reason("stopped.bank-other-engine", values | engines)
    if min(seen.texts_pvalue, seen.scores_pvalue) > alpha / 2.0:  # of two tests
        return None
    names = ("n_compared", "n_texts_differ", "n_scores_differ")
    values |= {"texts_p": seen.texts_pvalue, "scores_p": seen.scores_pvalue}
    return Reason("stopped.bank-differs", values | {name: getattr(seen, name) for name in names})


def _stopped(run: Run, trouble: Reason, hint: str = "") -> RunStopped:
    kept = f"The candidate's answers are kept; `qualab resume {_way(run)}` stops here again"
    return RunStopped(ENGLISH.reason(trouble), hint=hint or f"{START_ANEW}. {kept}", reason=trouble)


def _way(run: Run) -> str:
    """The id by which all that share a bank's sample go on."""
    return run.plan.group.id if run.plan.group else run.id
