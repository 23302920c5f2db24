"""Finds up to which length each arm answers rightly, by ever longer prompts. These can kill a server."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qualab.analysis.limits import ANSWERED, SHORTEST, needles_expected, next_probe, outcome_of
from qualab.errors import ComparisonBusy, EndpointMisconfigured, InvalidValue
from qualab.model.canonical import encode_body
from qualab.model.engine import Counters, Probe
from qualab.model.items import Prompt, Reply, Request, generation_request
from qualab.model.names import AnswerStatus, Api, ArmName, Language, Outcome
from qualab.model.registry import urls_of
from qualab.report.words import ENGLISH
from qualab.run.group import start_group
from qualab.run.prepare import Run, Services
from qualab.run.run import alone_on_hosts, start
from qualab.run.timed import stored_runs, without_tasks
from qualab.settings import Settings

if TYPE_CHECKING:
    from qualab.endpoints.replicas import Endpoint

DEPTHS = (0.1, 0.5, 0.9)
SLACK, FITTINGS, MOST_PADDING = 4, 16, 64
CUT_SHARE = 0.9
"""A server that counts a smaller share of a prompt's tokens has cut it."""
ALIVE_S, POLL_S, SAY_EVERY_S = 30.0, 1.0, 10.0
"""How long a living server may take for a few words, and how often one that died is looked for and told of."""
OWN_LENGTHS = ("until", "max_tokens", "max_new_tokens", "max_completion_tokens", "temperature")
TEXTS = {
    Language.ENGLISH: (
        (
            ("The ferryman", "An old teacher", "My neighbour", "A young painter", "The postman", "Her cousin"),
            ("waited beside", "told a story about", "often dreamed of", "walked slowly along", "wrote a letter about"),
            ("the narrow bridge", "a field of barley", "the empty market", "the northern road", "a small orchard"),
            ("before the rain came.", "on a warm evening.", "while the bells rang.", "early in the morning."),
        ),
        "The secret code of the {} is {}.",
        ("lighthouse", "windmill", "station"),
        "List all secret codes of this text:\n- The secret code of the lighthouse is",
    ),
    Language.KOREAN: (
        (
            ("뱃사공은", "늙은 교사는", "이웃집 아저씨는", "젊은 화가는", "우체부는", "빵집 주인은"),
            ("비가 오기 전에", "따뜻한 저녁마다", "종이 울리는 동안", "이른 아침에", "긴 겨울이 지난 뒤"),
            ("좁은 다리 위에서", "보리밭 옆에서", "텅 빈 시장에서", "북쪽 길가에서", "작은 과수원에서"),
            ("옛이야기를 들려주었다.", "오랜 친구를 기다렸다.", "편지를 한 통 썼다.", "먼 산을 바라보았다."),
        ),
        "{}의 비밀 암호는 {}이다.",
        ("등대", "풍차", "기차역"),
        "이 글에 나온 비밀 암호를 모두 적으시오.\n- 등대의 비밀 암호는",
    ),
}
"""Parts of a sentence, a fact, what facts are about, and a question with its answer begun, as a base model needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsOptions:
    arms: tuple[ArmName, ...] = tuple(ArmName)
    start: int = SHORTEST
    output_tokens: int = 64
    timeout_s: float = 600.0
    recovery_s: float = 300.0


def needle_text(language: Language, n_sentences: int, n_padding: int, *, seed: str) -> tuple[str, list[str]]:
    """Write a text with a question about the facts hidden in it; return it with their codes."""
    parts, fact, names, question = TEXTS[language]
    rng = random.Random(seed)
    codes = [str(number) for number in rng.sample(range(10_000, 100_000), len(names))]
    sentences = [" ".join(map(rng.choice, parts)) for _ in range(n_sentences)]
    for depth, name, code in reversed([*zip(DEPTHS, names, codes, strict=True)]):
        sentences.insert(round(depth * n_sentences), fact.format(name, code))
    return f"{'a ' * n_padding}{' '.join(sentences)}\n\n{question}", codes


def told_tokens(message: str, *, tokens: int, output_tokens: int, advertised: int | None) -> int | None:
    """Read from a refusal how long the prompt is, as its server counts; None where it only names a bound."""
    if "at least" in message:
        return None
    numbers = {int(number) for number in re.findall(r"\d+", message.partition(": ")[2].replace(",", ""))}
    numbers -= {400, 413, 422, output_tokens, advertised}
    exact = numbers & {tokens, tokens + output_tokens}
    return (
        tokens if exact else min((n for n in numbers if n > output_tokens), key=lambda n: abs(n - tokens), default=None)
    )


async def start_limits(services: Services, settings: Settings) -> None:
    """Store a new pair, or several candidates, as comparisons without tasks. Raises as `start`."""
    own = without_tasks(settings).model_copy(update={"speed": False})
    await (start_group if own.candidates else start)(services, own)


async def limits_of_stored(services: Services, comparison_id: str, settings: Settings, options: LimitsOptions) -> None:
    """Find the limits of a stored comparison's arms, or of all of a group, or go on with that.

    Raises as `stored_runs` and `find_limits`.
    """
    async with stored_runs(services, comparison_id, settings) as runs:
        with ExitStack() as stack:
            for run in runs:
                stack.enter_context(alone_on_hosts(services, run.id))
            await find_limits(runs, options)


async def find_limits(runs: Sequence[Run], options: LimitsOptions) -> None:
    """Try ever longer prompts on one arm after the other; each is stored as it ends. The runs share the baseline.

    Of an arm of several servers the first is tried. Raises EndpointMisconfigured for one that does not tokenize,
    EndpointUnreachable, ComparisonBusy for one that others use.
    """
    first = runs[0]
    arms = [(ArmName.BASELINE, first.comparison.baseline_url, runs)]
    arms += [(ArmName.CANDIDATE, run.comparison.candidate_url, [run]) for run in runs]
    policy = replace(first.plan.policy, concurrency=1, max_attempts=1, timeout_s=options.timeout_s)
    for arm, url, own in arms:
        if arm in options.arms:
            key = first.services.keys.get(arm)
            async with first.services.open_endpoint(urls_of(url)[0], policy=policy, key=key) as endpoint:
                await _Ladder(arm, own, endpoint, options).climb()


@dataclass(slots=True)
class _Ladder:
    arm: ArmName
    runs: Sequence[Run]
    """Those whose comparison its probes belong to."""
    endpoint: Endpoint
    options: LimitsOptions
    advertised: int | None = None

    async def climb(self) -> None:
        """Try one length after the other up to the ladder's end, or until the server stays dead."""
        run, options, model = self.runs[0], self.options, self.runs[0].plan.sampling.model
        store, say = run.services.store, run.services.progress.phase
        if not await self.endpoint.inspect(model=model):
            hint = "Lengths are counted by the server's own tokenizer, as vLLM, SGLang and llama.cpp offer it"
            raise EndpointMisconfigured(f"{self.endpoint.url} offers no /tokenize", hint=hint)
        self.advertised = (await self.endpoint.engine(model=model)).max_model_len
        while True:
            probes = [own for own in await asyncio.to_thread(store.observations, run.id) if isinstance(own, Probe)]
            own = [probe for probe in probes if probe.arm is self.arm]
            step = next_probe(own, self.advertised, output_tokens=options.output_tokens, start=options.start)
            if step is None:
                return
            say(f"{self.arm}: {step[0]:,} tokens, {ENGLISH.name(step[1])}{self._left(own)}")
            probe = await self._probe(probes, *step)
            facts = f", {probe.n_right} of {probe.n_needles} facts" if probe.outcome in ANSWERED else ""
            say(f"{self.arm}: {probe.outcome}{facts}, {probe.latency_s:.1f} s{f' ({probe.error})' * bool(probe.error)}")
            if probe.died and probe.recovered_s is None:
                return

    def _left(self, own: Sequence[Probe]) -> str:
        """Say how long the rest takes if all goes well and time grows as length does."""
        if not own or not self.advertised:
            return ""
        ahead, last, options = [*own], own[-1], self.options
        while step := next_probe(ahead, self.advertised, output_tokens=options.output_tokens, start=options.start):
            ahead.append(replace(last, prompt_tokens=step[0], language=step[1], outcome=Outcome.RIGHT, died=False))
        n_tokens = sum(probe.prompt_tokens for probe in ahead[len(own) :])
        return f", about {ENGLISH.span(n_tokens * last.latency_s / last.prompt_tokens)} left"

    async def _probe(self, probes: Sequence[Probe], tokens: int, language: Language) -> Probe:
        services, clock = self.runs[0].services, self.runs[0].services.clock
        own = [probe for probe in probes if probe.arm is self.arm]
        n_tries = sum((probe.prompt_tokens, probe.language) == (tokens, language) for probe in own)
        request, codes = await self._request(tokens, language, n_tries)
        before = await self._idle(sum(probe.outcome is Outcome.BROKEN and not probe.died for probe in own))
        reply = await self._ask(request)
        after = await self.endpoint.counters() if before and not reply.status.is_failure else None
        drafting = None
        if before and after and not after.has_restarted_since(before):
            drafting = after.drafting_since(before)
        text = f"{reply.reasoning} {reply.text or ''}"
        n_right, told = sum(code in text for code in codes), reply.prompt_tokens
        error = reply.error
        if reply.status.is_failure:
            outcome = Outcome.BROKEN
        elif reply.status is AnswerStatus.REJECTED:
            outcome, output_tokens = Outcome.REFUSED, self.options.output_tokens
            told = told_tokens(error, tokens=tokens, output_tokens=output_tokens, advertised=self.advertised)
        else:
            expected = needles_expected(probes, language)
            outcome = outcome_of(text, n_right, expected=expected, is_cut=(told or tokens) < CUT_SHARE * tokens)
            error = "" if outcome is Outcome.RIGHT else " ".join(text.split())[:200]
        probe = Probe(
            arm=self.arm,
            seen_at=clock.now(),
            language=language,
            prompt_tokens=tokens,
            output_tokens=self.options.output_tokens,
            told_tokens=told,
            outcome=outcome,
            n_right=n_right,
            n_needles=len(codes),
            latency_s=reply.latency_s,
            drafting=drafting,
            error=error,
        )
        try:
            if outcome is Outcome.BROKEN and not await self._is_alive():
                probe = replace(probe, died=True)
                probe = replace(probe, recovered_s=await self._recovered_s())
        finally:  # also where Ctrl-C ends the waiting: no server should die of one prompt twice
            for run in self.runs:
                await asyncio.to_thread(services.store.add_observation, run.id, probe)
        if before and after and (after.finished_requests or 0) - (before.finished_requests or 0) > 1:
            raise self._in_use()
        return probe

    async def _request(self, tokens: int, language: Language, n_tries: int) -> tuple[Request, list[str]]:
        """Make a prompt of so many tokens, special ones included. Raises InvalidValue where they are too few."""
        sampling, n_sentences, n_padding = self.runs[0].plan.sampling, max(1, tokens // 20), 0
        for _ in range(FITTINGS):
            seed = f"{sampling.seed}:{tokens}:{language}:{n_tries}"
            text, codes = needle_text(language, n_sentences, n_padding, seed=seed)
            request = self._generation(text, self.options.output_tokens)
            n_tokens = len(await self.endpoint.prompt_ids(request, model=sampling.model))
            gap, each = tokens - n_tokens, n_tokens / n_sentences
            if 0 <= gap <= SLACK:
                return request, codes
            if 0 <= n_padding + gap < max(MOST_PADDING, 1.5 * each):
                n_padding += gap
            else:
                n_sentences, n_padding = max(1, n_sentences + math.floor(gap / each)), 0
        raise InvalidValue(
            f"No prompt of {tokens:,} tokens can be made for {self.endpoint.url}",
            hint="Give --start a larger number: a text with three facts takes some 300 tokens",
        )

    def _generation(self, text: str, n_tokens: int) -> Request:
        sampling = self.runs[0].plan.sampling
        is_chat = sampling.api is Api.CHAT
        settings = {name: value for name, value in sampling.gen_kwargs.items() if name not in OWN_LENGTHS}
        if is_chat:
            text = json.dumps([{"role": "user", "content": text}])
        prompt = Prompt(text=text, is_chat=is_chat, gen_kwargs={**settings, "max_gen_toks": n_tokens})
        return generation_request(prompt, sampling=sampling)

    async def _ask(self, request: Request) -> Reply:
        return await self.endpoint.ask(request, encode_body(request.payload, seed=self.runs[0].plan.sampling.seed))

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
        """Tell whether the server still answers a few words."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_S):
                return not (await self._ask(self._generation("One, two, three,", 1))).status.is_failure
        return False

    async def _recovered_s(self) -> float | None:
        """Wait for a server that died; None where it does not come back in time."""
        clock, say = self.runs[0].services.clock, self.runs[0].services.progress.phase
        began_s = said_s = clock.monotonic_s()
        say(f"{self.arm}: the server does not answer any more; waiting up to {self.options.recovery_s:g} s for it")
        while (waited_s := clock.monotonic_s() - began_s) < self.options.recovery_s:
            await asyncio.sleep(POLL_S)
            if await self._is_alive():
                return clock.monotonic_s() - began_s
            if clock.monotonic_s() - said_s >= SAY_EVERY_S:
                said_s = clock.monotonic_s()
                say(f"{self.arm}: still no answer after {waited_s:.0f} of {self.options.recovery_s:g} s")
        return None
