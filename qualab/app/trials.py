"""Requests sent before a run, to find out what both arms accept and whether the candidate drafts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from qualab.app.preflight import Endpoints, counters_of
from qualab.domain.bodies import generation_request
from qualab.domain.canonical import canonical_json, encode_body
from qualab.domain.engine import Counters, Drafting
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
ASK_BOTH = "Leave the setting out of gen_kwargs, or use a drafter that supports it"

Replies = Mapping[ArmName, Reply]


async def try_requests(endpoints: Endpoints, items: Sequence[Item], *, seed: int) -> list[Finding]:
    """Sends both arms the shortest request of each kind and of each set of generation settings that the plan has.

    The shortest, because a long one may be too long for the model. Raises EndpointMisconfigured, EndpointUnreachable
    for what neither arm answers; what only one arm rejects is a finding.
    """
    findings: list[Finding] = []
    for item in _shortest(items):
        request = _trial(item)
        body = encode_body(request.payload, seed=seed)
        replies = await _ask(endpoints, request, body)
        findings += _one_sided(replies, item)
        if not findings:
            for arm, reply in replies.items():
                _check_tried(reply, item, f"{arm.value.capitalize()} at {endpoints[arm].url}", request)
            findings += _lengths(replies, item)
    return findings


async def _ask(endpoints: Endpoints, request: Request, body: bytes) -> Replies:
    replies = await asyncio.gather(*(endpoints[arm].ask(request, body) for arm in ArmName))
    return dict(zip(ArmName, replies, strict=True))


def _shortest(items: Sequence[Item]) -> list[Item]:
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
    if len(rejected) == 1:
        (arm,) = rejected
        yield Finding(
            stops=True,
            what=f"the {arm} alone rejects requests of {item.task}: {replies[arm].error}",
            mend=ASK_BOTH,
        )


def _lengths(replies: Replies, item: Item) -> Iterator[Finding]:
    baseline, candidate = (replies[arm].prompt_tokens for arm in ArmName)
    if None not in (baseline, candidate) and baseline != candidate:
        yield Finding(
            stops=True,
            what=f"a prompt of {item.task} has {baseline} tokens in the baseline and {candidate} in the candidate",
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
        """What was drafted meanwhile; None where neither counters nor the answer tell."""
        told = self.reply.drafted.draft_tokens if self.reply.drafted else None
        counted = self._counted()
        return counted.draft_tokens if counted and counted.is_possible and not told else told

    def _counted(self) -> Drafting | None:
        if not self.before or not self.after or self.before.drafting is None or self.after.drafting is None:
            return None
        return self.after.drafting - self.before.drafting

    @property
    def has_no_drafter(self) -> bool:
        """Whether the engine counts, but counts no drafts: it has no drafter."""
        return self.after is not None and self.after.drafting is None


async def probe_drafters(endpoints: Endpoints, *, sampling: SamplingPlan) -> dict[ArmName, Probe]:
    """Lets both arms generate a few tokens and sees whether their drafters did anything."""
    before = await counters_of(endpoints)
    for text in PROBE_TEXTS:
        request = _probe_request(text, sampling)
        replies = await _ask(endpoints, request, encode_body(request.payload, seed=sampling.seed))
        probes = _probes(before, await counters_of(endpoints), replies)
        if probes[ArmName.CANDIDATE].draft_tokens != 0:
            return probes
    for pause_s in COUNTER_PAUSES_S:
        await asyncio.sleep(pause_s)
        probes = _probes(before, await counters_of(endpoints), replies)
        if probes[ArmName.CANDIDATE].draft_tokens != 0:
            break
    return probes


def _probes(
    before: Mapping[ArmName, Counters | None], after: Mapping[ArmName, Counters | None], replies: Replies
) -> dict[ArmName, Probe]:
    return {arm: Probe(before=before[arm], after=after[arm], reply=replies[arm]) for arm in ArmName}


def _probe_request(text: str, sampling: SamplingPlan) -> Request:
    is_chat = sampling.api is Api.CHAT
    text = canonical_json([{"role": "user", "content": text}]) if is_chat else text
    settings = {"max_gen_toks": PROBE_TOKENS, "until": [], "temperature": 0}
    return generation_request(Prompt(text=text, is_chat=is_chat, gen_kwargs=settings), sampling=sampling)
