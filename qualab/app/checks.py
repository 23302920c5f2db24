"""Whether two endpoints can be compared: one drafter, in the candidate, and nothing else different."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from qualab.app.analysis.drafter_signs import unread
from qualab.app.analysis.seen import tells_where_other_is_silent
from qualab.app.differences import differences
from qualab.app.preflight import Endpoints
from qualab.app.trials import Probe, Stored, Tried, probe_drafters, setting_findings, try_requests
from qualab.domain.canonical import canonical_json, sha256
from qualab.domain.engine import TELLS_IN_PART, Engine, EngineKind
from qualab.domain.items import Item
from qualab.domain.names import ArmName, RequestKind
from qualab.domain.plan import DecisionRule, Plan
from qualab.domain.preflight import Finding, Preflight
from qualab.errors import PairDiffers
from qualab.ports import EndpointInfo

BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE
SAMPLES = 5
"""Prompts that both tokenizers are given."""
SAME = "Start both arms from one image, one checkpoint and one configuration, but for the drafter"
DRAFTER_ON = "Start the candidate with its drafter (vLLM: --speculative-config), or correct its URL"
DRAFTER_OFF = "Start the baseline without a drafter, or correct its URL"
TWO_SERVERS = "Give the URLs of two servers, one without and one with the drafter"
AS_IT_WAS = "Start it as it was, or begin a new comparison"
ROOM_FOR_CACHE = ("cache_config.*", "max_total_num_tokens", "max_req_input_len")
"""What an engine measures anew at each start; the rest of what follows from a drafter follows from the same one."""
OPEN = (
    "Open /metrics of both arms (llama.cpp: --metrics; SGLang: --enable-metrics), or let a verdict stand without it: "
    "--allow-unobserved"
)
ALLOWED = "Let a verdict stand without it: --allow-unobserved"
TELLING = {
    EngineKind.SGLANG: "Use a version of SGLang that counts sglang:spec_verify_calls_total, or let a verdict stand "
    "without it: --allow-unobserved",
    EngineKind.TENSORRT_LLM: "Start TensorRT-LLM with enable_iter_perf_stats: true, or let a verdict stand without it: "
    "--allow-unobserved",
}
"""How metrics that are open come to tell of drafting."""
OTHER_MODEL = "Let both arms be answered by this model under one name, and by no router's fallback"


async def check_pair(
    endpoints: Endpoints, plan: Plan, items: Sequence[Item], infos: Mapping[ArmName, EndpointInfo]
) -> Preflight:
    """Everything that can be found before the first item. Raises EndpointMisconfigured, EndpointUnreachable."""
    engines = await see_engines(endpoints, model=plan.sampling.model)
    tokens = await sample_tokens(endpoints, items, infos, plan.sampling.model)
    findings = [*_engine_findings(engines), *_token_findings(tokens)]
    tried = await try_requests(endpoints, items, seed=plan.sampling.seed)
    findings += [*tried.findings, *_model_findings(engines, tried, plan.sampling.model)]
    engines = _named(engines, tried)
    findings += await setting_findings(endpoints, engines, items, plan.sampling)
    if _generates(plan):
        findings += _drafter_findings(await probe_drafters(endpoints, sampling=plan.sampling), engines, plan.rule)
    else:
        findings.append(Finding(stops=False, what="no task of this plan generates: no drafter is exercised", mend=""))
    return Preflight(engines=engines, findings=tuple(sorted(findings, key=lambda one: not one.stops)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What earlier turns have seen, where the arms take turns on one device."""

    engines: Mapping[ArmName, Engine] = field(default_factory=dict)
    tokens: Mapping[ArmName, str] = field(default_factory=dict)
    """As `sample_tokens` gave them."""
    fingerprints: Mapping[ArmName, frozenset[str]] = field(default_factory=dict)
    """Those of the answers that are stored."""
    baseline: Stored | None = None
    """Its answers to the items that are tried, once its turn is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnChecked:
    """What one arm's turn began with."""

    engine: Engine
    tokens: str
    """As `sample_tokens` gave them; empty where the arm does not tokenize."""
    findings: tuple[Finding, ...]


async def check_turn(
    endpoints: Endpoints, plan: Plan, items: Sequence[Item], infos: Mapping[ArmName, EndpointInfo], before: Before
) -> TurnChecked:
    """Everything that can be found of the one arm that is served, beside what is known of the other one.

    Raises EndpointMisconfigured, EndpointUnreachable.
    """
    (arm,) = endpoints
    now = await see_engines(endpoints, model=plan.sampling.model)
    engines = {**before.engines, **now}
    tokens = await sample_tokens(endpoints, items, infos, plan.sampling.model)
    findings = [*_changes(arm, before.engines[arm], now[arm])] if arm in before.engines else []
    findings += [*_engine_findings(engines), *_token_findings({**before.tokens, **tokens})]
    tried = await try_requests(endpoints, items, seed=plan.sampling.seed, baseline=before.baseline)
    findings += [*tried.findings, *_model_findings(engines, tried, plan.sampling.model)]
    findings += await setting_findings(endpoints, now, items, plan.sampling)
    if _generates(plan):
        probes = await probe_drafters(endpoints, sampling=plan.sampling)
        findings += [*_drafter_findings(probes, engines, plan.rule), *_other_answers(probes, before.fingerprints)]
    return TurnChecked(engine=_named(now, tried)[arm], tokens=tokens.get(arm, ""), findings=tuple(findings))


async def see_engines(endpoints: Endpoints, *, model: str) -> dict[ArmName, Engine]:
    """What each engine says of itself."""
    found = await asyncio.gather(*(endpoint.engine(model=model) for endpoint in endpoints.values()))
    return dict(zip(endpoints, found, strict=True))


def _generates(plan: Plan) -> bool:
    return any(task.kind is RequestKind.GENERATION for task in plan.tasks)


async def check_again(
    endpoints: Endpoints,
    plan: Plan,
    earlier: Mapping[ArmName, Engine],
    fingerprints: Mapping[ArmName, frozenset[str]],
) -> dict[ArmName, Engine]:
    """What both engines say of themselves, before a comparison goes on. `fingerprints`: of the stored answers.

    Raises PairDiffers when the arms differ, an arm is not what it was when the comparison started, or its drafter does
    not do what it should.
    """
    engines = await see_engines(endpoints, model=plan.sampling.model)
    changes = [one for arm in ArmName if arm in earlier for one in _changes(arm, earlier[arm], engines[arm])]
    stop_at([*changes, *_engine_findings(engines)])
    if _generates(plan):
        probes = await probe_drafters(endpoints, sampling=plan.sampling)
        stop_at([*_drafter_findings(probes, engines, plan.rule), *_other_answers(probes, fingerprints)])
    return engines


def _other_answers(
    probes: Mapping[ArmName, Probe], fingerprints: Mapping[ArmName, frozenset[str]]
) -> Iterator[Finding]:
    """Where an arm answers under another fingerprint than before: two engines' answers would be mixed."""
    for arm, probe in probes.items():
        now, stored = probe.reply.system_fingerprint, fingerprints.get(arm, frozenset())
        if now and stored and now not in stored:
            before = ", ".join(sorted(stored))
            what = f"the {arm}'s answers come from another engine than those stored: {before}, now {now}"
            yield Finding(stops=True, what=what, mend=AS_IT_WAS)


def stop_at(findings: Sequence[Finding] | Iterator[Finding]) -> None:
    """Raises PairDiffers with every finding that stops."""
    stopping = [one for one in findings if one.stops]
    if stopping:
        found = "; ".join(one.what for one in stopping)
        mends = dict.fromkeys(one.mend for one in stopping)
        raise PairDiffers(f"The pair cannot be compared: {found}", hint=". ".join(mends))


def _changes(arm: ArmName, earlier: Engine, now: Engine) -> Iterator[Finding]:
    for one in differences(earlier, now):
        if not one.follows or not any(fnmatchcase(one.name, pattern) for pattern in ROOM_FOR_CACHE):
            yield Finding(
                stops=True,
                what=f"the {arm}'s engine has another {one.name} than when the comparison started: "
                f"{one.baseline}, now {one.candidate}",
                mend=AS_IT_WAS,
            )
    if earlier.config and not now.config:
        what = f"the {arm}'s engine told its configuration when the comparison started, and does not now"
        yield Finding(stops=True, what=what, mend=AS_IT_WAS)
    counted = [one.counters for one in (earlier, now) if one.counters and one.counters.tells_drafting]
    if len({one.drafting is None for one in counted}) > 1:
        has = "no drafter any more" if counted[-1].drafting is None else "a drafter now"
        yield Finding(stops=True, what=f"the {arm}'s engine has {has}", mend=AS_IT_WAS)


def _engine_findings(engines: Mapping[ArmName, Engine]) -> Iterator[Finding]:
    """Of the baseline alone as long as it is all that was seen."""
    baseline = engines[BASELINE]
    if CANDIDATE in engines:
        yield from _pair_findings(baseline, engines[CANDIDATE])
    if baseline.drafter or baseline.has_drafted:
        what = f"the baseline is configured with a drafter ({baseline.drafter or 'its engine counts drafts'})"
        yield Finding(stops=True, what=what, mend=DRAFTER_OFF)
    if not all(engine.config for engine in engines.values()):
        what = "the engines' configuration is not open: only their names, versions and models were compared"
        yield Finding(stops=False, what=what, mend="")
    for kind in sorted({engine.kind for engine in engines.values()} & TELLS_IN_PART):
        what = f"{kind} tells a part of its configuration: what it does not tell is not compared"
        yield Finding(stops=False, what=what, mend="")


def _pair_findings(baseline: Engine, candidate: Engine) -> Iterator[Finding]:
    for one in differences(baseline, candidate):
        if not one.follows:
            what = f"{one.name} is {one.baseline} in the baseline and {one.candidate} in the candidate"
            yield Finding(stops=True, what=what, mend=SAME)
    instances = {engine.config.get("instance_id", "") for engine in (baseline, candidate)}
    if len(instances) == 1 and instances != {""}:
        what = "both URLs lead to one server: its instance_id is the same"
        yield Finding(stops=True, what=what, mend=TWO_SERVERS)


async def sample_tokens(
    endpoints: Endpoints, items: Sequence[Item], infos: Mapping[ArmName, EndpointInfo], model: str
) -> dict[ArmName, str]:
    """The hash of what each arm's tokenizer makes of a few prompts; without an arm that offers none."""
    texts = samples(items)
    telling = [arm for arm in endpoints if infos[arm].tokenizes]
    found = await asyncio.gather(*(endpoints[arm].tokenize(texts, model=model) for arm in telling))
    return {arm: sha256(canonical_json(tokens)) for arm, tokens in zip(telling, found, strict=True)}


def samples(items: Sequence[Item]) -> list[str]:
    """The shortest prompts, the same in every process: turns are compared across them."""
    return sorted({prompt.text for item in items for prompt in item.prompts}, key=lambda text: (len(text), text))[
        :SAMPLES
    ]


def _token_findings(tokens: Mapping[ArmName, str]) -> Iterator[Finding]:
    if len(set(tokens.values())) > 1:
        what = "the two tokenizers give different tokens for the same text"
        yield Finding(stops=True, what=what, mend=SAME)


def _model_findings(engines: Mapping[ArmName, Engine], tried: Tried, asked: str) -> Iterator[Finding]:
    """Where trials are answered under a name that is not the model's: one name in both arms is a name of it."""
    others = {arm: models - {asked, *engines[arm].names} for arm, models in tried.models.items()}
    baseline = others.get(BASELINE, frozenset(engines[BASELINE].names) - {asked})
    for arm, models in others.items():
        for model in sorted(models):
            is_alike = arm is BASELINE and model in others.get(CANDIDATE, models)
            is_alike |= arm is CANDIDATE and model in baseline
            what = f"the {arm} answers as {model}, and {asked} was asked"
            yield Finding(stops=not is_alike, what=what, mend="" if is_alike else OTHER_MODEL)


def _named(engines: Mapping[ArmName, Engine], tried: Tried) -> dict[ArmName, Engine]:
    """The engines with the names that trials were answered under."""
    return {
        arm: replace(engine, names=(*engine.names, *sorted(tried.models.get(arm, frozenset()) - {*engine.names})))
        for arm, engine in engines.items()
    }


def _drafter_findings(
    probes: Mapping[ArmName, Probe], engines: Mapping[ArmName, Engine], rule: DecisionRule
) -> Iterator[Finding]:
    if BASELINE in probes:
        yield from _baseline_probed(probes, engines, rule)
    if CANDIDATE in probes:
        yield from _candidate_probed(probes[CANDIDATE], engines[CANDIDATE], rule)


def _baseline_probed(
    probes: Mapping[ArmName, Probe], engines: Mapping[ArmName, Engine], rule: DecisionRule
) -> Iterator[Finding]:
    if n_tokens := probes[BASELINE].draft_tokens:
        yield Finding(stops=True, what=f"the baseline drafted {n_tokens} tokens for a probe", mend=DRAFTER_OFF)
    elif not _tells(engines, probes[BASELINE], probes.get(CANDIDATE)):
        yield _not_observable(BASELINE, engines[BASELINE], rule)


def _not_observable(arm: ArmName, engine: Engine, rule: DecisionRule) -> Finding:
    what = f"whether the {arm} drafts is not observable: {unread(engine)}"
    mend = TELLING.get(engine.kind, ALLOWED) if engine.has_metrics else OPEN
    return Finding(stops=not rule.allow_unobserved, what=what, mend=mend)


def _candidate_probed(candidate: Probe, engine: Engine, rule: DecisionRule) -> Iterator[Finding]:
    if candidate.reply.error:
        what = f"the candidate did not answer a probe: {candidate.reply.error}"
        yield Finding(stops=True, what=what, mend="Look into the server's log")
    elif candidate.has_no_drafter and candidate.draft_tokens is None:
        yield Finding(stops=True, what="the candidate's engine counts no drafts: it has no drafter", mend=DRAFTER_ON)
    elif candidate.draft_tokens is None and candidate.after is not None and engine.drafter:
        what = f"the candidate is configured with a drafter ({engine.drafter}), which its metrics do not show yet"
        yield Finding(stops=False, what=what, mend="")
    elif candidate.draft_tokens is None:
        yield _not_observable(CANDIDATE, engine, rule)
    elif candidate.draft_tokens == 0:
        yield Finding(stops=True, what="the candidate drafted nothing for a probe", mend=DRAFTER_ON)


def _tells(engines: Mapping[ArmName, Engine], baseline: Probe, candidate: Probe | None) -> bool:
    """Whether anything says that the baseline drafts, or does not. llama.cpp's answers are silent where it does not."""
    engine, after = engines[BASELINE], baseline.after
    if baseline.reply.drafted is not None or engine.tells_drafter or (after is not None and after.tells_drafting):
        return True
    if engine.kind is EngineKind.LLAMA_CPP and candidate is not None and candidate.reply.drafted is not None:
        return True
    others = [candidate.after] if candidate is not None and candidate.after is not None else []
    return after is not None and tells_where_other_is_silent(engine, engines.get(CANDIDATE), others)
