"""Requests sent before a run, to find out what both arms accept and whether the candidate drafts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from qualab.app.preflight import Endpoints, counters_of
from qualab.domain.bodies import ENGINE_SETTINGS, OPENAI_SETTINGS, SENT_SETTINGS, generation_request, sent_name
from qualab.domain.canonical import canonical_json, encode_body
from qualab.domain.engine import Counters, Engine
from qualab.domain.items import Item, Prompt, Reply, Request
from qualab.domain.names import AnswerStatus, Api, ArmName, RequestKind
from qualab.domain.plan import SamplingPlan
from qualab.domain.preflight import Finding
from qualab.errors import EndpointMisconfigured, EndpointUnreachable

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
