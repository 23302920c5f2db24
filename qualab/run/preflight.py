"""Checks of a pair before its first item: the arms answer, they are two, and the drafter alone differs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import combinations
from typing import TYPE_CHECKING

from qualab.analysis.drafter import Difference, differences, tells_where_other_is_silent, unread
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
from qualab.model.plan import DecisionRule, Plan, RequestPolicy, SamplingPlan, TaskSpec
from qualab.model.reason import Reason
from qualab.model.registry import urls_of
from qualab.report.words import ENGLISH
from qualab.run.prepare import PairServices

if TYPE_CHECKING:
    from qualab.endpoints.replicas import Endpoint

Endpoints = Mapping[ArmName, "Endpoint"]
Replies = Mapping[ArmName, Reply]
BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE

TRIAL_TOKENS = 16
PROBE_TOKENS = 32
PROBE_TEXTS = (
    "Go on: one two three one two three one two three one two",
    "Write this line three times, and nothing else: the quick brown fox jumps over the lazy dog and then the quick "
    "brown fox jumps over the lazy cat",
    "A B C D E F G H\nA B C D E F G H\nA B C D E F G H\nA B C",
)
"""Repetitive, so that a drafter that looks up its tokens in the prompt finds some. Sent in turn until one drafts."""
COUNTER_PAUSES_S = (0.5, 1.0)
"""Engines update their counters now and then."""
N_TOKENIZED = 5
ROOM_TO_ANSWER = 256
"""Tokens of answer and template beside a long prompt."""

NO_ECHO = (
    "{task} scores log-likelihoods (echo with logprobs, as vLLM serves them); "
    "use the generative forms in suite release instead"
)
TAKEN = "Leave it out, or give it the engine's own name; --allow-extra sends it all the same"
ASK_BOTH = "Leave the setting out of gen_kwargs, or use a drafter that supports it"
SAME = "Start both arms from one image, one checkpoint and one configuration, but for the drafter"
SAME_PROMPTS = "Serve both arms with the same tokenizer, chat template and version"
DRAFTER_ON = "Start the candidate with its drafter (vLLM: --speculative-config), or correct its URL"
DRAFTER_OFF = "Start the baseline without a drafter, or correct its URL"
TWO_SERVERS = "Give the URLs of two servers, one without and one with the drafter"
AS_IT_WAS = "Start it as it was, or begin a new comparison"
OTHER_MODEL = "Let both arms be answered by this model under one name, and by no router's fallback"
ALLOWED = "let a verdict stand without it: --allow-unobserved"
OPEN = "Open /metrics of both arms (llama.cpp: --metrics; SGLang: --enable-metrics)"
TELLING = {
    EngineKind.SGLANG: "Use a version of SGLang that counts sglang:spec_verify_calls_total",
    EngineKind.TENSORRT_LLM: "Start TensorRT-LLM with enable_iter_perf_stats: true",
}
"""Setting that makes open metrics count drafts."""
ROOM_FOR_CACHE = ("cache_config.*", "max_total_num_tokens", "max_req_input_len")
"""Settings that an engine measures anew at each start; the others follow from the drafter alone."""


def check_urls(urls: Mapping[ArmName, str], is_same_server: Callable[[str, str], bool]) -> None:
    """Raise InvalidValue where two URLs of the arms, or of one arm's replicas, are one server."""
    each = [(arm, url) for arm, text in urls.items() for url in urls_of(text)]
    for (arm, url), (other_arm, other) in combinations(each, 2):
        if not is_same_server(url, other):
            continue
        wrong = {other_arm.value: f"must name another server than {url}"}
        if arm is other_arm:
            hint = "List each replica once"
            raise InvalidValue(f"The {arm} lists one server twice ({url}, {other})", hint=hint, fields=wrong)
        raise InvalidValue(
            f"Baseline and candidate are the same server ({other})",
            hint="Give two endpoints: --baseline with the drafter off, --candidate with it on",
            fields=wrong,
        )


@asynccontextmanager
async def open_arms(
    services: PairServices, urls: Mapping[ArmName, str], *, policy: RequestPolicy
) -> AsyncIterator[Endpoints]:
    """Open both arms, or the one that is served. Raises as `check_urls`."""
    check_urls(urls, services.is_same_server)
    async with AsyncExitStack() as stack:
        yield {
            arm: await stack.enter_async_context(services.open_endpoint(url, policy=policy, key=services.keys.get(arm)))
            for arm, url in urls.items()
        }


async def inspect_arms(endpoints: Endpoints, *, model: str, say: Callable[[str], None]) -> dict[ArmName, bool]:
    """Check that each arm serves the model; tell whether it tokenizes. Raises the first error, naming the arm."""
    say("Checking both endpoints" if len(endpoints) > 1 else f"Checking the {next(iter(endpoints))}")

    inspections = (endpoint.inspect(model=model) for endpoint in endpoints.values())
    answers = dict(zip(endpoints, await asyncio.gather(*inspections, return_exceptions=True), strict=True))
    for arm, answer in answers.items():
        if isinstance(answer, QualabError):
            answer.message = f"{arm.value.capitalize()}: {answer.message}"
        if isinstance(answer, BaseException):
            raise answer
    return {arm: answer is True for arm, answer in answers.items()}


async def fitting_tasks(
    pairs: Sequence[Endpoints], tasks: Sequence[TaskSpec], model: str, *, is_frozen: bool, say: Callable[[str], None]
) -> tuple[str, ...]:
    """Name the tasks whose prompts fit into every arm's context, and say which do not; of one untold all do.

    Raises InvalidValue where none fits, or not all of a frozen plan, and as `inspect_arms`.
    """
    lengths = {task.name: task.prompt_tokens + ROOM_TO_ANSWER for task in tasks if task.prompt_tokens}
    contexts: list[int] = []
    for endpoints in pairs if lengths else ():
        await inspect_arms(endpoints, model=model, say=say)
        engines = await asyncio.gather(*(endpoint.engine(model=model) for endpoint in endpoints.values()))
        contexts += [engine.max_model_len for engine in engines if engine.max_model_len]
    too_long = [name for name, tokens in lengths.items() if contexts and tokens > min(contexts)]
    fitting = tuple(task.name for task in tasks if task.name not in too_long)
    if too_long:
        message = f"{', '.join(too_long)}: too long for the context of {min(contexts):,} tokens"
        if is_frozen or not fitting:
            hint = f"Plan again with {','.join(fitting)}" if fitting else "Choose shorter tasks, as long_1k"
            raise InvalidValue(message, hint=f"{hint}, or serve both arms with a larger max_model_len")
        say(f"Left out {message}")
    return fitting


async def counters_of(endpoints: Endpoints) -> dict[ArmName, Counters | None]:
    """Read each engine's counters at once."""
    counters = await asyncio.gather(*(endpoint.counters() for endpoint in endpoints.values()))
    return dict(zip(endpoints, counters, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """Stored facts of the arms where a comparison goes on; empty for a new one."""

    engines: Mapping[ArmName, Engine] = field(default_factory=dict)
    tokens: Mapping[ArmName, str] = field(default_factory=dict)
    fingerprints: Mapping[ArmName, set[str]] = field(default_factory=dict)
    baseline: Mapping[int, Reply] = field(default_factory=dict)
    """The baseline's answers to the items that are tried, where its turn is over."""


async def check_arms(
    endpoints: Endpoints, plan: Plan, items: Sequence[Item], tokenize: Mapping[ArmName, bool], before: Before
) -> Preflight:
    """Check both arms, or the one that is served, before the next item; pins are added last.

    An arm that is not served is what it was `before`. Raises EndpointMisconfigured, EndpointUnreachable.
    """
    model, arms = plan.sampling.model, [*endpoints]
    is_new = not before.engines.keys() >= endpoints.keys()
    now = dict(zip(arms, await asyncio.gather(*(endpoints[arm].engine(model=model) for arm in arms)), strict=True))
    engines = {**before.engines, **now}
    telling, texts = [arm for arm in arms if is_new and tokenize[arm]], samples(items)
    ids = await asyncio.gather(*(endpoints[arm].tokenize(texts, model=model) for arm in telling))
    tokens = {arm: sha256(canonical_json(own)) for arm, own in zip(telling, ids, strict=True)}
    known = [arm for arm in arms if arm in before.engines]
    findings = [finding for arm in known for finding in _changes(arm, before.engines[arm], now[arm])]
    if not plan.tasks:  # timed alone: engines may differ
        return Preflight(engines=now, findings=tuple(findings))
    findings += _engine_findings(engines)
    if len({*{**before.tokens, **tokens}.values()}) > 1:
        findings.append(_finding("preflight.tokenizers-differ", SAME))
    if is_new:  # what an arm takes was tried before its first item
        tried, models = await try_requests(endpoints, items, seed=plan.sampling.seed, baseline=before.baseline)
        findings += [*tried, *_model_findings(engines, models, model)]
        now = {arm: replace(own, names=(*own.names, *sorted(models[arm] - {*own.names}))) for arm, own in now.items()}
        findings += await setting_findings(endpoints, now, items, plan.sampling)
    if any(task.kind is RequestKind.GENERATION for task in plan.tasks):
        probes = await probe_drafters(endpoints, sampling=plan.sampling)
        findings += [*_drafter_findings(probes, engines, plan.rule), *_other_answers(probes, before.fingerprints)]
    else:
        findings.append(_finding("preflight.nothing-generates"))
    return Preflight(engines=now, tokens=tokens, findings=tuple(findings))


def stop_at(findings: Iterable[Finding]) -> None:
    """Raise PairDiffers with every finding that stops; its details hold the `reason`."""
    stopping = [finding for finding in findings if finding.stops]
    if stopping:
        reason = Reason("stopped.pair-differs", {"findings": tuple(finding.what for finding in stopping)})
        hints = dict.fromkeys(finding.hint for finding in stopping)
        raise PairDiffers(ENGLISH.reason(reason), hint=". ".join(hints), reason=reason)


def _finding(code: str, hint: str = "", stops: bool | None = None, /, **values: object) -> Finding:
    """Make a finding that stops if it has a hint, unless `stops` says otherwise."""
    return Finding(stops=bool(hint) if stops is None else stops, what=Reason(code, values), hint=hint)


def changed_settings(earlier: Engine, now: Engine) -> list[Difference]:
    """List settings that two starts of one server may not have differently."""
    return [
        part
        for part in differences(earlier, now)
        if not part.follows or not any(fnmatchcase(part.name, pattern) for pattern in ROOM_FOR_CACHE)
    ]


def _changes(arm: ArmName, earlier: Engine, now: Engine) -> Iterator[Finding]:
    for part in changed_settings(earlier, now):
        values = {"arm": arm, "setting": part.name, "before": part.baseline, "now": part.candidate}
        yield _finding("preflight.setting-changed", AS_IT_WAS, **values)
    if earlier.config and not now.config:
        yield _finding("preflight.configuration-closed-now", AS_IT_WAS, arm=arm)
    counted = [engine.counters for engine in (earlier, now) if engine.counters and engine.counters.tells_drafting]
    if len({part.drafting is None for part in counted}) > 1:
        code = "preflight.drafter-gone" if counted[-1].drafting is None else "preflight.drafter-new"
        yield _finding(code, AS_IT_WAS, arm=arm)


def _engine_findings(engines: Mapping[ArmName, Engine]) -> Iterator[Finding]:
    baseline, candidate = engines[BASELINE], engines.get(CANDIDATE)
    if candidate is not None:
        for part in differences(baseline, candidate):
            if not part.follows:
                values = {"setting": part.name, "baseline": part.baseline, "candidate": part.candidate}
                yield _finding("preflight.setting-differs", SAME, **values)
        instances = {engine.config.get("instance_id", "") for engine in (baseline, candidate)}
        if len(instances) == 1 and instances != {""}:
            yield _finding("preflight.one-server", TWO_SERVERS)
    if baseline.drafter:
        yield _finding("baseline-has-drafter", DRAFTER_OFF, drafter=baseline.drafter)
    elif baseline.has_drafted:
        yield _finding("preflight.baseline-counts-drafts", DRAFTER_OFF)
    if not all(engine.config for engine in engines.values()):
        yield _finding("preflight.configuration-closed")
    for kind in sorted({engine.kind for engine in engines.values()} & TELLS_IN_PART):
        yield _finding("preflight.configuration-in-part", engine=kind)


def samples(items: Sequence[Item]) -> list[str]:
    """Choose the shortest prompts, the same in every process: turns are compared across them."""
    texts = {prompt.text for item in items for prompt in item.prompts}
    return sorted(texts, key=lambda text: (len(text), text))[:N_TOKENIZED]


async def try_requests(
    endpoints: Endpoints, items: Sequence[Item], *, seed: int, baseline: Mapping[int, Reply]
) -> tuple[list[Finding], dict[ArmName, frozenset[str]]]:
    """Send each arm the shortest request of each kind and of each set of generation settings that the plan has.

    A long one may be too long for the model. Returns findings, and the models that each arm's answers name. Raises
    EndpointMisconfigured, EndpointUnreachable for what no arm answers; what only one arm rejects is a finding. Answers
    of the `baseline` stand in for trials of it.
    """
    findings: list[Finding] = []
    models: dict[ArmName, frozenset[str]] = dict.fromkeys(endpoints, frozenset())
    for item in trial_items(items):
        first = item.requests[0]
        max_tokens = 1 if item.kind is RequestKind.LOGLIKELIHOOD else TRIAL_TOKENS
        request = replace(first, payload={**first.payload, "max_tokens": max_tokens})
        replies = await _ask(endpoints, request, seed=seed)
        models = {arm: models[arm] | {reply.model} - {""} for arm, reply in replies.items()}
        both = ({BASELINE: baseline[item.position]} if item.position in baseline else {}) | replies
        rejected = [arm for arm, reply in both.items() if reply.status is AnswerStatus.REJECTED]
        if len(rejected) == 1 and len(both) > 1:
            values = {"arm": rejected[0], "task": item.task, "error": both[rejected[0]].error}
            findings.append(_finding("preflight.one-rejects", ASK_BOTH, **values))
        if findings:
            continue
        for arm, reply in replies.items():
            _check_tried(reply, item, f"{arm.value.capitalize()} at {endpoints[arm].url}", request)
        lengths = {arm.value: reply.prompt_tokens for arm, reply in both.items()}
        if None not in lengths.values() and len(set(lengths.values())) > 1:
            findings.append(_finding("preflight.lengths-differ", SAME_PROMPTS, task=item.task, **lengths))
    return findings, models


def trial_items(items: Sequence[Item]) -> list[Item]:
    """Choose the item with the shortest prompt of each kind and each set of generation settings."""
    shortest: dict[str, Item] = {}
    for item in items:
        settings = canonical_json(_settings(item)) if item.kind is RequestKind.GENERATION else ""
        known = shortest.get(settings)
        if known is None or _most_tokens(item) < _most_tokens(known):
            shortest[settings] = item
    return list(shortest.values())


def _most_tokens(item: Item) -> float:
    """Estimate a prompt's length: four letters of English a token; of other scripts, for the worst, a byte."""
    text = item.prompts[0].text
    return len(text.encode(errors="surrogatepass")) - 0.75 * len(text)


def _settings(item: Item) -> dict[str, object]:
    return {name: value for name, value in item.requests[0].payload.items() if name not in ("prompt", "messages")}


def _check_tried(reply: Reply, item: Item, arm: str, request: Request) -> None:
    if reply.status.is_answer or not reply.error:
        return
    is_generation = item.kind is RequestKind.GENERATION
    # a body without log-likelihoods is what a server gives that cannot serve them
    if reply.status.is_failure and (is_generation or reply.status is not AnswerStatus.BAD_BODY):
        raise EndpointUnreachable(f"{arm} did not answer a trial request of {item.task}: {reply.error}")
    route = "The trial request went to the completions route"
    if request.api is Api.CHAT:
        route = "The trial request went to the chat route; --no-apply_chat_template uses completions"
    hint = route if is_generation else NO_ECHO.format(task=item.task)
    raise EndpointMisconfigured(f"{arm} does not serve requests of {item.task}: {reply.error}", hint=hint)


async def _ask(endpoints: Endpoints, request: Request, *, seed: int) -> dict[ArmName, Reply]:
    body = encode_body(request.payload, seed=seed)
    replies = await asyncio.gather(*(endpoint.ask(request, body) for endpoint in endpoints.values()))
    return dict(zip(endpoints, replies, strict=True))


def _model_findings(
    engines: Mapping[ArmName, Engine], models: Mapping[ArmName, frozenset[str]], asked: str
) -> Iterator[Finding]:
    """Find answers under a name that is not the model's; one name in both arms is a name of it."""
    others = {arm: names - {asked, *engines[arm].names} for arm, names in models.items()}
    baseline = others.get(BASELINE, frozenset(engines[BASELINE].names) - {asked})
    for arm, names in others.items():
        alike = baseline if arm is CANDIDATE else others.get(CANDIDATE, names)
        for name in sorted(names):
            hint = "" if name in alike else OTHER_MODEL
            yield _finding("preflight.other-model", hint, arm=arm, model=name, asked=asked)


async def setting_findings(
    endpoints: Endpoints, engines: Mapping[ArmName, Engine], items: Sequence[Item], sampling: SamplingPlan
) -> list[Finding]:
    """Find generation settings that an engine ignores, by what it publishes or its kind is known to take."""
    given = {sent_name(name) for name in sampling.gen_kwargs} - SENT_SETTINGS - {""}
    trials = [item for item in trial_items(items) if item.kind is RequestKind.GENERATION]
    of_tasks = {name for item in trials for name in _settings(item)} - given - SENT_SETTINGS - {"model"}
    findings: list[Finding] = []
    for arm, endpoint in endpoints.items() if given | of_tasks else ():
        taken = await endpoint.settings(sampling.api)
        if taken is None and engines[arm].kind.value in ENGINE_SETTINGS:
            taken = OPENAI_SETTINGS | ENGINE_SETTINGS[engines[arm].kind.value]
        if taken is None:
            checks = [("preflight.settings-untold", given - OPENAI_SETTINGS, "", False)]
        else:
            stops = not sampling.allow_extra
            checks = [
                ("preflight.settings-ignored", given - taken, TAKEN, stops),
                ("preflight.task-settings-ignored", of_tasks - taken, "", False),
            ]
        findings += [
            _finding(code, hint, stops, arm=arm, settings=tuple(sorted(names)))
            for code, names, hint, stops in checks
            if names
        ]
    return findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    before: Counters | None
    after: Counters | None
    reply: Reply

    @property
    def draft_tokens(self) -> int | None:
        """At least so many tokens were drafted; None where neither counters nor the answer tell."""
        drafted = self.reply.drafted
        told = None
        if drafted is not None:
            told = drafted.accepted_tokens if drafted.draft_tokens is None else drafted.draft_tokens
        counted = self.after.drafting_since(self.before) if self.before and self.after else None
        return counted.least_drafted if counted and counted.is_possible and not told else told


async def probe_drafters(endpoints: Endpoints, *, sampling: SamplingPlan) -> dict[ArmName, Probe]:
    """Let each arm generate a few tokens, and see whether its drafter did anything."""
    before = await counters_of(endpoints)
    settings = {"max_gen_toks": PROBE_TOKENS, "until": [], "temperature": 0}
    is_chat = sampling.api is Api.CHAT

    async def probed(replies: Replies) -> dict[ArmName, Probe]:
        after = await counters_of(endpoints)
        return {arm: Probe(before=before[arm], after=after[arm], reply=reply) for arm, reply in replies.items()}

    for text in PROBE_TEXTS:
        sent = canonical_json([{"role": "user", "content": text}]) if is_chat else text
        request = generation_request(Prompt(text=sent, is_chat=is_chat, gen_kwargs=settings), sampling=sampling)
        replies = await _ask(endpoints, request, seed=sampling.seed)
        probes = await probed(replies)
        if _is_told(probes):
            return probes
    for pause_s in COUNTER_PAUSES_S:
        await asyncio.sleep(pause_s)
        probes = await probed(replies)
        if _is_told(probes):
            break
    return probes


def _is_told(probes: Mapping[ArmName, Probe]) -> bool:
    """True where a further probe would say nothing new: the candidate (the baseline in its turn) drafted, or cannot."""
    *_, last = (probes[arm] for arm in ArmName if arm in probes)
    may_tell_yet = last.draft_tokens is None and last.after is not None and not last.after.tells_drafting
    return last.draft_tokens != 0 and not may_tell_yet


def _drafter_findings(
    probes: Mapping[ArmName, Probe], engines: Mapping[ArmName, Engine], rule: DecisionRule
) -> Iterator[Finding]:
    baseline, candidate = probes.get(BASELINE), probes.get(CANDIDATE)
    if baseline and baseline.draft_tokens:
        yield _finding("preflight.baseline-drafted", DRAFTER_OFF, n=baseline.draft_tokens)
    elif baseline and not _tells(engines, baseline, candidate):
        yield _not_observable(BASELINE, engines[BASELINE], rule)
    if candidate is None:
        return
    engine = engines[CANDIDATE]
    if candidate.reply.error:
        yield _finding("preflight.probe-unanswered", "Look into the server's log", error=candidate.reply.error)
    elif candidate.draft_tokens == 0:
        yield _finding("preflight.nothing-drafted", DRAFTER_ON)
    elif candidate.draft_tokens is not None:
        return
    elif candidate.after is not None and candidate.after.tells_drafting and candidate.after.drafting is None:
        yield _finding("preflight.no-drafter", DRAFTER_ON)
    elif candidate.after is not None and engine.drafter:
        yield _finding("preflight.drafter-not-shown", drafter=engine.drafter)
    else:
        yield _not_observable(CANDIDATE, engine, rule)


def _not_observable(arm: ArmName, engine: Engine, rule: DecisionRule) -> Finding:
    way = TELLING.get(engine.kind) if engine.has_metrics else OPEN
    hint = f"{way}, or {ALLOWED}" if way else ALLOWED.capitalize()
    values = {"arm": arm, "why": unread(engine)}
    return _finding("preflight.drafting-unobserved", hint, not rule.allow_unobserved, **values)


def _tells(engines: Mapping[ArmName, Engine], baseline: Probe, candidate: Probe | None) -> bool:
    # llama.cpp's answers are silent where it does not draft
    engine, after = engines[BASELINE], baseline.after
    if baseline.reply.drafted is not None or engine.tells_drafter or (after is not None and after.tells_drafting):
        return True
    if engine.kind is EngineKind.LLAMA_CPP and candidate is not None and candidate.reply.drafted is not None:
        return True
    others = [candidate.after] if candidate is not None and candidate.after is not None else []
    return after is not None and tells_where_other_is_silent(engine, engines.get(CANDIDATE), others)


def _other_answers(probes: Mapping[ArmName, Probe], fingerprints: Mapping[ArmName, set[str]]) -> Iterator[Finding]:
    """Find arms under another fingerprint than before: two engines' answers would be mixed."""
    for arm, probe in probes.items():
        now, stored = probe.reply.system_fingerprint, fingerprints.get(arm, set())
        if now and stored and now not in stored:
            values = {"arm": arm, "before": tuple(sorted(stored)), "now": now}
            yield _finding("preflight.other-engine", AS_IT_WAS, **values)
