"""Both arms, opened: they answer, and they are two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from qualab.analysis.drafter import differences, tells_where_other_is_silent, unread
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, InvalidValue, PairDiffers, QualabError
from qualab.model.canonical import canonical_json, encode_body, sha256
from qualab.model.engine import TELLS_IN_PART, Counters, Engine, EngineKind, Finding, Preflight
from qualab.model.items import (
    ENGINE_SETTINGS,
    OPENAI_SETTINGS,
    SENT_SETTINGS,
    Item,
    Prompt,
    Reply,
    Request,
    generation_request,
    sent_name,
)
from qualab.model.names import AnswerStatus, Api, ArmName, RequestKind
from qualab.model.plan import DecisionRule, Plan, RequestPolicy, SamplingPlan
from qualab.model.ports import Endpoint, EndpointInfo
from qualab.run.services import PairServices

if TYPE_CHECKING:
    from qualab.store import Store

Keys = Mapping[ArmName, str | None]
Endpoints = Mapping[ArmName, Endpoint]
FINGERPRINTED = range(500)
"""Items whose answers tell an arm's fingerprints: replicas behind one URL take turns."""


@asynccontextmanager
async def open_arms(
    services: PairServices, urls: Mapping[ArmName, str], *, policy: RequestPolicy, keys: Keys
) -> AsyncIterator[Endpoints]:
    """Both arms' endpoints. Raises InvalidValue when the two URLs are one server."""
    if services.is_same_server(urls[ArmName.BASELINE], urls[ArmName.CANDIDATE]):
        raise InvalidValue(
            f"Baseline and candidate are the same server ({urls[ArmName.BASELINE]})",
            hint="Give two endpoints: --baseline with the drafter off, --candidate with it on",
        )
    async with AsyncExitStack() as stack:
        yield {
            arm: await stack.enter_async_context(services.open_endpoint(urls[arm], policy=policy, key=keys.get(arm)))
            for arm in ArmName
        }


@asynccontextmanager
async def open_arm(
    services: PairServices, arm: ArmName, url: str, *, policy: RequestPolicy, keys: Keys
) -> AsyncIterator[Endpoints]:
    """One arm's endpoint alone, where the arms take turns."""
    async with services.open_endpoint(url, policy=policy, key=keys.get(arm)) as endpoint:
        yield {arm: endpoint}


async def counters_of(endpoints: Endpoints) -> dict[ArmName, Counters | None]:
    """Each engine's counters now, taken at once."""
    found = await asyncio.gather(*(endpoint.counters() for endpoint in endpoints.values()))
    return dict(zip(endpoints, found, strict=True))


def fingerprints_of(store: Store, comparison_id: str) -> dict[ArmName, frozenset[str]]:
    """Each arm's fingerprints among its first stored answers: what goes on has to answer under one of them."""
    found = {arm: store.answers(comparison_id, arm=arm, positions=FINGERPRINTED) for arm in ArmName}
    return {arm: frozenset(one.reply.system_fingerprint for one in own) - {""} for arm, own in found.items()}


async def inspect_arms(endpoints: Endpoints, *, model: str) -> dict[ArmName, EndpointInfo]:
    """What each arm says of itself. Raises the first arm's trouble, named."""
    asked = (endpoint.inspect(model=model) for endpoint in endpoints.values())
    found = await asyncio.gather(*asked, return_exceptions=True)
    infos: dict[ArmName, EndpointInfo] = {}
    for arm, info in zip(endpoints, found, strict=True):
        if isinstance(info, QualabError):
            raise type(info)(f"{arm.value.capitalize()}: {info.message}", hint=info.hint) from info
        if isinstance(info, BaseException):
            raise info
        infos[arm] = info
    return infos


NO_ECHO = (
    "{task} scores log-likelihoods (echo with logprobs, as vLLM serves them); "
    "use the generative forms in suite release instead"
)
TRIAL_TOKENS = 16
"""Enough for a reasoning model to begin; one token may come back as nothing at all."""
PROBE_TOKENS = 32
PROBE_TEXTS = (
    "Go on: one two three one two three one two three one two",
    "Write this line three times, and nothing else: the quick brown fox jumps over the lazy dog and then the quick "
    "brown fox jumps over the lazy cat",
    "A B C D E F G H\nA B C D E F G H\nA B C D E F G H\nA B C",
)
"""Say the same again and again, so that a drafter that looks up its tokens in the prompt has something to find. One
after the other, until the candidate drafts."""
COUNTER_PAUSES_S = (0.5, 1.0)
"""Engines update their counters now and then."""
TAKEN = "Leave it out, or give it the engine's own name; --allow-extra sends it all the same"
ASK_BOTH = "Leave the setting out of gen_kwargs, or use a drafter that supports it"

Replies = Mapping[ArmName, Reply]


Stored = Mapping[int, Reply]
"""The baseline's answers by position, where its turn is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What trials found, and the models that each arm's answers to them name."""

    findings: tuple[Finding, ...]
    models: Mapping[ArmName, frozenset[str]]


async def try_requests(
    endpoints: Endpoints, items: Sequence[Item], *, seed: int, baseline: Stored | None = None
) -> Tried:
    """Sends each arm the shortest request of each kind and of each set of generation settings that the plan has.

    The shortest, because a long one may be too long for the model. Raises EndpointMisconfigured, EndpointUnreachable
    for what no arm answers; what only one arm rejects is a finding. With `baseline`, its answers to these items stand
    in for trials of it.
    """
    findings: list[Finding] = []
    models: dict[ArmName, frozenset[str]] = dict.fromkeys(endpoints, frozenset())
    for item in trial_items(items):
        request = _trial(item)
        body = encode_body(request.payload, seed=seed)
        asked = await _ask(endpoints, request, body)
        earlier = {ArmName.BASELINE: baseline[item.position]} if baseline and item.position in baseline else {}
        models = {arm: models[arm] | {reply.model} - {""} for arm, reply in asked.items()}
        findings += _one_sided(earlier | asked, item)
        if not findings:
            for arm, reply in asked.items():
                _check_tried(reply, item, f"{arm.value.capitalize()} at {endpoints[arm].url}", request)
            findings += _lengths(earlier | asked, item)
    return Tried(findings=tuple(findings), models=models)


async def _ask(endpoints: Endpoints, request: Request, body: bytes) -> dict[ArmName, Reply]:
    replies = await asyncio.gather(*(endpoint.ask(request, body) for endpoint in endpoints.values()))
    return dict(zip(endpoints, replies, strict=True))


async def setting_findings(
    endpoints: Endpoints, engines: Mapping[ArmName, Engine], items: Sequence[Item], sampling: SamplingPlan
) -> list[Finding]:
    """Generation settings that an arm's engine ignores, by what the engine publishes or its kind is known to take."""
    given = {sent_name(name) for name in sampling.gen_kwargs} - SENT_SETTINGS - {""}
    trials = [item for item in trial_items(items) if item.kind is RequestKind.GENERATION]
    of_tasks = {name for item in trials for name in _settings(item)} - given - SENT_SETTINGS - {"model"}
    findings: list[Finding] = []
    for arm, endpoint in endpoints.items() if given | of_tasks else ():
        taken = await endpoint.settings(sampling.api)
        if taken is None and engines[arm].kind.value in ENGINE_SETTINGS:
            taken = OPENAI_SETTINGS | ENGINE_SETTINGS[engines[arm].kind.value]
        if taken is None and (unsure := given - OPENAI_SETTINGS):
            what = f"whether the {arm}'s engine takes {_named(unsure)} is not observable: it publishes no settings"
            findings.append(Finding(stops=False, what=what, mend=""))
        if taken is not None and (ignored := given - taken):
            what = f"the {arm}'s engine does not take {_named(ignored)} of gen_kwargs"
            findings.append(Finding(stops=not sampling.allow_extra, what=what, mend=TAKEN))
        if taken is not None and (ignored := of_tasks - taken):
            what = f"the {arm}'s engine does not take {_named(ignored)}, which a task sets"
            findings.append(Finding(stops=False, what=what, mend=""))
    return findings


def _named(names: set[str]) -> str:
    return ", ".join(sorted(names))


def trial_items(items: Sequence[Item]) -> list[Item]:
    """Of each kind and each set of generation settings the item with the shortest prompt."""
    shortest: dict[str, Item] = {}
    for item in items:
        settings = canonical_json(_settings(item)) if item.kind is RequestKind.GENERATION else ""
        known = shortest.get(settings)
        if known is None or len(item.prompts[0].text) < len(known.prompts[0].text):
            shortest[settings] = item
    return list(shortest.values())


def _settings(item: Item) -> dict[str, object]:
    return {name: value for name, value in item.requests[0].payload.items() if name not in ("prompt", "messages")}


def _trial(item: Item) -> Request:
    first = item.requests[0]
    max_tokens = 1 if item.kind is RequestKind.LOGLIKELIHOOD else TRIAL_TOKENS
    return replace(first, payload={**first.payload, "max_tokens": max_tokens})


def _one_sided(replies: Replies, item: Item) -> Iterator[Finding]:
    rejected = [arm for arm, reply in replies.items() if reply.status is AnswerStatus.REJECTED]
    if len(rejected) == 1 and len(replies) > 1:
        (arm,) = rejected
        yield Finding(
            stops=True,
            what=f"the {arm} alone rejects requests of {item.task}: {replies[arm].error}",
            mend=ASK_BOTH,
        )


def _lengths(replies: Replies, item: Item) -> Iterator[Finding]:
    lengths = {arm: reply.prompt_tokens for arm, reply in replies.items()}
    if None not in lengths.values() and len(set(lengths.values())) > 1:
        yield Finding(
            stops=True,
            what=f"a prompt of {item.task} has {lengths[ArmName.BASELINE]} tokens in the baseline and "
            f"{lengths[ArmName.CANDIDATE]} in the candidate",
            mend="Serve both arms with the same tokenizer, chat template and version",
        )


def _check_tried(reply: Reply, item: Item, arm: str, request: Request) -> None:
    if reply.status.is_answer or not reply.error:
        return
    is_generation = item.kind is RequestKind.GENERATION
    # a body without log-likelihoods is what a server gives that cannot serve them
    if reply.status.is_failure and (is_generation or reply.status is not AnswerStatus.BAD_BODY):
        raise EndpointUnreachable(f"{arm} did not answer a trial request of {item.task}: {reply.error}")
    hint = _route_hint(request) if is_generation else NO_ECHO.format(task=item.task)
    raise EndpointMisconfigured(f"{arm} does not serve requests of {item.task}: {reply.error}", hint=hint)


def _route_hint(request: Request) -> str:
    if request.api is Api.CHAT:
        return "The trial request went to the chat route; --no-apply_chat_template uses completions"
    return "The trial request went to the completions route"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One arm's generation, with its engine's counters around it."""

    before: Counters | None
    after: Counters | None
    reply: Reply

    @property
    def draft_tokens(self) -> int | None:
        """What was drafted meanwhile, at least; None where neither counters nor the answer tell."""
        said = self.reply.drafted
        told = None if said is None else said.accepted_tokens if said.draft_tokens is None else said.draft_tokens
        counted = self.after.drafting_since(self.before) if self.before and self.after else None
        return counted.least_drafted if counted and counted.is_possible and not told else told

    @property
    def has_no_drafter(self) -> bool:
        """Whether the engine counts, but counts no drafts: it has no drafter."""
        return self.after is not None and self.after.tells_drafting and self.after.drafting is None


async def probe_drafters(endpoints: Endpoints, *, sampling: SamplingPlan) -> dict[ArmName, Probe]:
    """Lets each arm generate a few tokens and sees whether their drafters did anything."""
    before = await counters_of(endpoints)
    for text in PROBE_TEXTS:
        request = _probe_request(text, sampling)
        replies = await _ask(endpoints, request, encode_body(request.payload, seed=sampling.seed))
        probes = _probes(before, await counters_of(endpoints), replies)
        if _is_told(probes):
            return probes
    for pause_s in COUNTER_PAUSES_S:
        await asyncio.sleep(pause_s)
        probes = _probes(before, await counters_of(endpoints), replies)
        if _is_told(probes):
            break
    return probes


def _is_told(probes: Mapping[ArmName, Probe]) -> bool:
    """Whether a further probe would say nothing new: the candidate (the baseline in its turn) drafted, or cannot."""
    *_, last = (probes[arm] for arm in ArmName if arm in probes)
    may_tell_yet = last.draft_tokens is None and last.after is not None and not last.after.tells_drafting
    return last.draft_tokens != 0 and not may_tell_yet


def _probes(
    before: Mapping[ArmName, Counters | None], after: Mapping[ArmName, Counters | None], replies: Replies
) -> dict[ArmName, Probe]:
    return {arm: Probe(before=before[arm], after=after[arm], reply=reply) for arm, reply in replies.items()}


def _probe_request(text: str, sampling: SamplingPlan) -> Request:
    is_chat = sampling.api is Api.CHAT
    text = canonical_json([{"role": "user", "content": text}]) if is_chat else text
    settings = {"max_gen_toks": PROBE_TOKENS, "until": [], "temperature": 0}
    return generation_request(Prompt(text=text, is_chat=is_chat, gen_kwargs=settings), sampling=sampling)


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
    engines = _checks_named(engines, tried)
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
    return TurnChecked(engine=_checks_named(now, tried)[arm], tokens=tokens.get(arm, ""), findings=tuple(findings))


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


def _checks_named(engines: Mapping[ArmName, Engine], tried: Tried) -> dict[ArmName, Engine]:
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
