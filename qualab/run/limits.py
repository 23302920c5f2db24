"""Finds up to which length each arm answers rightly, by ever longer prompts. These can kill a server."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qualab.analysis.limits import ANSWERED, needles_expected, next_probe, outcome_of
from qualab.errors import ComparisonBusy, EndpointMisconfigured, InvalidValue
from qualab.model.canonical import encode_body
from qualab.model.engine import Counters, Probe
from qualab.model.items import Prompt, Reply, Request, generation_request
from qualab.model.names import AnswerStatus, Api, ArmName, Language, Outcome, Work
from qualab.model.plan import SamplingPlan
from qualab.model.registry import urls_of
from qualab.report.words import ENGLISH
from qualab.run.prepare import Run, Services
from qualab.run.run import alone_on_hosts
from qualab.run.timed import stored_runs
from qualab.run.workloads import filler
from qualab.settings import Settings

if TYPE_CHECKING:
    from qualab.endpoints.replicas import Endpoint

DEPTHS = (0.1, 0.5, 0.9)
SLACK, FITTINGS, MOST_PADDING = 4, 16, 64
ALIVE_S, POLL_S, SAY_EVERY = 30.0, 1.0, 10
"""How long a living server may take for a few words; pauses before a dead one is tried again, and told of again."""
BOUND = re.compile(r"(?:maximum|available|context|model)\D{0,40}?(?:length|size)\D{0,8}\d+")
"""What a refusal says of its server, not of the prompt."""
TEXTS = {
    Language.ENGLISH: (
        *(Work.PROSE, "The secret code of the {} is {}.", ("observatory", "windmill", "station")),
        "List all secret codes of this text:\n- The secret code of the observatory is",
    ),
    Language.KOREAN: (
        *(Work.KOREAN, "{}의 비밀 암호는 {}이다.", ("천문대", "풍차", "기차역")),
        "이 글에 나온 비밀 암호를 모두 적으시오.\n- 천문대의 비밀 암호는",
    ),
}
"""What hides the facts, a fact, what the facts are about, and a question with its answer begun, as base models need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsOptions:
    arms: tuple[ArmName, ...]
    start: int
    output_tokens: int
    timeout_s: float
    recovery_s: float


def needle_text(language: Language, size: int, n_padding: int, *, seed: str) -> tuple[str, list[str]]:
    """Write so many characters with facts hidden in them, and a question about these; return it with their codes."""
    work, fact, names, question = TEXTS[language]
    rng = random.Random(seed)
    codes = [str(number) for number in rng.sample(range(10_000, 100_000), len(names))]
    text = filler(work, size, rng)
    for depth, name, code in reversed([*zip(DEPTHS, names, codes, strict=True)]):
        place = text.find(" ", round(depth * size))
        text = f"{text[:place]}\n{fact.format(name, code)}\n{text[place:]}"
    return f"{'a ' * n_padding}{text}\n\n{question}", codes


def told_tokens(message: str, *, tokens: int, output_tokens: int, advertised: int | None) -> int | None:
    """Read from a refusal how long the prompt is by its server's count; None where it only names a bound."""
    message = BOUND.sub("", message.partition(": ")[2].replace(",", ""))
    numbers = {int(number) for number in re.findall(r"\d+", message)}
    if numbers & {tokens, tokens + output_tokens} or "at least" in message:
        return None if "at least" in message else tokens
    counts = (n for n in numbers - {advertised} if n > max(output_tokens, 422))  # and no status
    return min(counts, key=lambda n: abs(n - tokens), default=None)


async def find_limits(services: Services, comparison_id: str, settings: Settings, options: LimitsOptions) -> None:
    """Try ever longer prompts on the arms of a stored comparison or group, one after the other, or go on with that.

    Each prompt is stored as it ends. Of an arm of several servers the first is tried. Raises as `stored_runs`,
    EndpointMisconfigured for one that does not tokenize, ComparisonBusy for one that is in use.
    """
    async with stored_runs(services, comparison_id, settings) as runs:
        arms = ((ArmName.BASELINE, runs), *((ArmName.CANDIDATE, [run]) for run in runs))
        policy = replace(runs[0].plan.policy, concurrency=1, max_attempts=1, timeout_s=options.timeout_s)
        with alone_on_hosts(runs):
            for arm, own in (entry for entry in arms if entry[0] in options.arms):
                url, key = urls_of(own[0].endpoints[arm].url)[0], services.keys.get(arm)
                async with services.open_endpoint(url, policy=policy, key=key) as endpoint:
                    await _Ladder(arm, own, endpoint, options, services, runs[0].plan.sampling).climb()


@dataclass(slots=True)
class _Ladder:
    arm: ArmName
    runs: Sequence[Run]
    """Those whose comparison its probes belong to."""
    endpoint: Endpoint
    options: LimitsOptions
    services: Services
    sampling: SamplingPlan
    advertised: int | None = None

    def say(self, text: str) -> None:
        group = self.runs[0].plan.group if self.arm is ArmName.CANDIDATE else None
        self.services.progress.phase(f"{group.name if group else self.arm}: {text}")

    def next(self, own: Sequence[Probe]) -> tuple[int, Language] | None:
        return next_probe(own, self.advertised, output_tokens=self.options.output_tokens, start=self.options.start)

    async def climb(self) -> None:
        """Try one length after the other up to the ladder's end, or until the server stays dead."""
        if not await self.endpoint.inspect(model=self.sampling.model):
            hint = "Lengths are counted by the server's own tokenizer, as vLLM, SGLang and llama.cpp offer it"
            raise EndpointMisconfigured(f"{self.endpoint.url} offers no /tokenize", hint=hint)
        self.advertised = (await self.endpoint.engine(model=self.sampling.model)).max_model_len
        while True:
            seen = await asyncio.to_thread(self.services.store.observations, self.runs[0].id)
            probes = [probe for probe in seen if isinstance(probe, Probe)]
            own = [probe for probe in probes if probe.arm is self.arm]
            step = self.next(own)
            if step is None:
                return
            self.say(f"{step[0]:,} tokens, {ENGLISH.name(step[1])}{self._left(own)}")
            probe = await self._probe(probes, *step)
            facts = f", {probe.n_right} of {probe.n_needles} facts" if probe.outcome in ANSWERED else ""
            back = "" if probe.recovered_s is None else f"; the server was back after {probe.recovered_s:.0f} s"
            self.say(f"{probe.outcome}{facts}, {probe.latency_s:.1f} s{f' ({probe.error})' * bool(probe.error)}{back}")
            if probe.died and probe.recovered_s is None:
                return

    def _left(self, own: Sequence[Probe]) -> str:
        """Say how long the rest takes if all goes well and time grows as length does."""
        if not own or not self.advertised:
            return ""
        ahead, last = [*own], own[-1]
        while step := self.next(ahead):
            ahead.append(replace(last, prompt_tokens=step[0], language=step[1], outcome=Outcome.RIGHT, died=False))
        n_tokens = sum(probe.prompt_tokens for probe in ahead[len(own) :])
        return f", about {ENGLISH.span(n_tokens * last.latency_s / last.prompt_tokens)} left"

    async def _probe(self, probes: Sequence[Probe], tokens: int, language: Language) -> Probe:
        own = [probe for probe in probes if probe.arm is self.arm]
        n_tries = sum((probe.prompt_tokens, probe.language) == (tokens, language) for probe in own)
        request, codes = await self._request(tokens, language, f"{self.sampling.seed}:{tokens}:{language}:{n_tries}")
        before = await self._idle(sum(probe.outcome is Outcome.BROKEN and not probe.died for probe in own))
        reply = await self._ask(request)
        after = await self.endpoint.counters() if before and not reply.status.is_failure else None
        probe = self._judged(reply, codes, probes, tokens, language)
        if before and after and not after.has_restarted_since(before):
            probe = replace(probe, drafting=after.drafting_since(before))
        try:
            if probe.outcome is Outcome.BROKEN and not await self._is_alive():
                probe = replace(probe, died=True)
                probe = replace(probe, recovered_s=await self._recovered_s())
        finally:  # also where Ctrl-C ends the waiting: no server should die of one prompt twice
            for run in self.runs:
                await asyncio.to_thread(self.services.store.add_observation, run.id, probe)
        if before and after and (after.finished_requests or 0) - (before.finished_requests or 0) > 1:
            raise self._in_use()
        return probe

    def _judged(
        self, reply: Reply, codes: Sequence[str], probes: Sequence[Probe], tokens: int, language: Language
    ) -> Probe:
        text, told, error = reply.text or "", reply.prompt_tokens, reply.error
        n_right, output_tokens = sum(code in text for code in codes), self.options.output_tokens
        if reply.status.is_failure:
            outcome = Outcome.BROKEN
        elif reply.status is AnswerStatus.REJECTED:
            outcome = Outcome.REFUSED
            told = told_tokens(error, tokens=tokens, output_tokens=output_tokens, advertised=self.advertised)
        else:
            expected, is_cut = needles_expected(probes, language), (told or tokens) < 0.9 * tokens
            outcome = outcome_of(text, n_right, expected=expected, is_cut=is_cut)
            error = "" if outcome is Outcome.RIGHT else " ".join(text.split())[:80]
        return Probe(
            arm=self.arm,
            seen_at=self.services.clock.now(),
            language=language,
            prompt_tokens=tokens,
            output_tokens=output_tokens,
            told_tokens=told,
            outcome=outcome,
            n_right=n_right,
            n_needles=len(codes),
            latency_s=reply.latency_s,
            drafting=None,
            error=error,
        )

    async def _request(self, tokens: int, language: Language, seed: str) -> tuple[Request, list[str]]:
        """Make a prompt of so many tokens, special ones included. Raises InvalidValue where they are too few."""
        size, n_padding = 2 * tokens, 0
        for _ in range(FITTINGS):
            text, codes = needle_text(language, size, n_padding, seed=seed)
            request = self._completion(text, self.options.output_tokens)
            n_tokens = len(await self.endpoint.prompt_ids(request, model=self.sampling.model))
            gap = tokens - n_tokens
            if 0 <= gap <= SLACK:
                return request, codes
            if 0 <= n_padding + gap < MOST_PADDING:
                n_padding += gap
            else:
                size, n_padding = max(1, size + gap * size // n_tokens), 0
        hint = "Give --start a larger number: a text with three facts takes some 300 tokens"
        raise InvalidValue(f"No prompt of {tokens:,} tokens can be made for {self.endpoint.url}", hint=hint)

    def _completion(self, text: str, n_tokens: int) -> Request:
        sampling = SamplingPlan(model=self.sampling.model, api=Api.COMPLETIONS)  # where an answer can be begun
        return generation_request(Prompt(text=text, gen_kwargs={"max_gen_toks": n_tokens}), sampling=sampling)

    async def _ask(self, request: Request) -> Reply:
        return await self.endpoint.ask(request, encode_body(request.payload, seed=self.sampling.seed))

    async def _idle(self, n_broken: int) -> Counters | None:
        """Read the counters of an engine that serves nobody else; None where it does not count. Raises ComparisonBusy.

        `n_broken`: requests that were broken off, which an engine may still run.
        """
        for _ in range(3):
            counters = await self.endpoint.counters()
            if counters is None or (counters.running_requests or 0) <= n_broken:
                return counters
            await asyncio.sleep(POLL_S)
        raise self._in_use()

    def _in_use(self) -> ComparisonBusy:
        return ComparisonBusy(
            f"The {self.arm} {self.endpoint.url} serves others, too: a long prompt may take it from them",
            hint=f"Go on when nothing else uses it: qualab limits {self.runs[0].id}",
        )

    async def _is_alive(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_S):
                return not (await self._ask(self._completion("One, two, three,", 1))).status.is_failure
        return False

    async def _recovered_s(self) -> float | None:
        """Wait for a server that died; None where it does not come back in time."""
        clock, most_s, n_waits = self.services.clock, self.options.recovery_s, 0
        began_s = clock.monotonic_s()
        while (waited_s := clock.monotonic_s() - began_s) < most_s:
            if n_waits % SAY_EVERY == 0:
                self.say(f"the server does not answer any more; waited {waited_s:.0f} of {most_s:g} s for it")
            n_waits += 1
            await asyncio.sleep(POLL_S)
            if await self._is_alive():
                return clock.monotonic_s() - began_s
        return None
