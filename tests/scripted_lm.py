"""A small language model for scripted engines: what comes next follows from a hash of the tokens before.

It speaks Hangul syllables, a token each, which the scripted tokenizer returns unchanged, and an end that is no text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

N_TOKENS = 997
"""A prime, so that ranks and tokens map to each other; the token at index 0 is the end."""
END, FIRST = 2, 0xAC00
DECAY = 0.7
"""Of the probabilities below the choices, by rank."""
NEAR = 0.3
"""Nats between the two choices of a near-tie, at most."""
MASK = (1 << 64) - 1


class Fault(StrEnum):
    """What a candidate does to the model's tokens."""

    NONE = "none"
    NEAR_TIES = "near-ties fall the other way"
    REPLACED = "one token in 500 is another plausible one"
    DOUBLED = "one token in 100 comes twice"
    RELAXED = "the drafter's token is taken where it is among the top 3"
    ALWAYS = "the drafter's token is always taken when sampling"
    LOST = "the last token before the end is lost"


def mixed(state: int, number: int) -> int:
    """64 bits that depend on all of both (splitmix64)."""
    z = (state * 0x9E3779B97F4A7C15 + number + 1) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def share(state: int, salt: int) -> float:
    return mixed(state, salt) / 2.0**64


@dataclass(frozen=True, slots=True)
class Next:
    """The distribution of the next token: one or two choices, and a tail."""

    step: int
    offset: int
    choices: tuple[float, ...]

    def token(self, rank: int) -> int:
        index = (self.step * rank + self.offset) % N_TOKENS
        return FIRST + index if index else END

    def rank(self, token: int) -> int:
        """From 0."""
        index = 0 if token == END else (token - FIRST) % N_TOKENS
        return (index - self.offset) * pow(self.step, -1, N_TOKENS) % N_TOKENS

    def logprob(self, rank: int) -> float:
        n = len(self.choices)
        if rank < n:
            return math.log(self.choices[rank])
        return math.log(1.0 - sum(self.choices)) + math.log(1.0 - DECAY) + (rank - n) * math.log(DECAY)

    def drawn(self, u: float) -> int:
        """The rank at which the cumulative probability passes `u`."""
        for rank, probability in enumerate(self.choices):
            if u < probability:
                return rank
            u -= probability
        left = 1.0 - u / (1.0 - sum(self.choices))
        return min(N_TOKENS - 1, len(self.choices) + int(math.log(max(left, 1e-12)) / math.log(DECAY)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    fault: Fault = Fault.NONE
    stream: int = 0
    """Two engines of different streams draw other tokens of the same distributions."""
    end_every: int = 400
    """Tokens, about, after which an answer ends by itself."""
    floor: float | None = None
    """Log-probabilities below it are told as -9999, as vLLM tells what is masked."""

    def next(self, state: int) -> Next:
        step, offset = 1 + mixed(state, 1) % (N_TOKENS - 1), mixed(state, 2) % N_TOKENS
        if mixed(state, 3) % self.end_every == 0:
            offset = 0
        if share(state, 4) < 0.05:
            return Next(step, offset, (0.45, 0.45 * math.exp(-NEAR * share(state, 5))))
        return Next(step, offset, (0.55 + 0.44 * share(state, 5),))

    def generate(self, prompt: Sequence[int], body: Mapping[str, Any]) -> tuple[list[int], str]:
        """Token ids of an answer with its end, and the finish reason."""
        seed = body.get("seed", 0) if body.get("temperature", 1) else None
        state = after(prompt)
        ids: list[int] = []
        while len(ids) < body["max_tokens"] and END not in ids[-1:]:
            following = self.next(state)
            token = following.token(self._rank(following, state, seed))
            is_doubled = self.fault is Fault.DOUBLED and token != END and mixed(state, 11) % 100 == 0
            for one in [token] * (1 + is_doubled):
                ids.append(one)
                state = mixed(state, one)
        ids = ids[: body["max_tokens"]]
        if ids[-1] != END:
            return ids, "length"
        return ([*ids[:-2], END] if self.fault is Fault.LOST else ids), "stop"

    def _rank(self, following: Next, state: int, seed: int | None) -> int:
        fault, drafted = self.fault, self._drafted(state)
        if fault is Fault.REPLACED and mixed(state, 12) % 500 == 0:
            return 2 + mixed(state, 13) % 5
        if fault is Fault.RELAXED and drafted < 3:
            return drafted
        if seed is None:
            return 1 if fault is Fault.NEAR_TIES and len(following.choices) == 2 else 0
        return drafted if fault is Fault.ALWAYS else following.drawn(share(state, 1_000 + 2 * seed + self.stream))

    def _drafted(self, state: int) -> int:
        """The rank of a drafter's token: mostly the choice, now and then anything."""
        percent = mixed(state, 21) % 100
        return 0 if percent < 70 else 1 if percent < 85 else 2 if percent < 95 else mixed(state, 22) % N_TOKENS

    def logprobs(self, ids: Sequence[int], n_top: int) -> Iterator[dict[str, dict[str, Any]] | None]:
        """What vLLM tells of a prompt's tokens: each one and the most likely ones in its place."""
        state = after(ids[:1])
        yield None
        for token in ids[1:]:
            following = self.next(state)
            likely = {following.token(rank): rank for rank in range(n_top if n_top >= 0 else N_TOKENS)}
            ranks = likely | {token: following.rank(token)}  # of any number, as in a trial
            told = {one: (rank, following.logprob(rank)) for one, rank in ranks.items()}
            yield {
                str(one): {
                    "logprob": value if self.floor is None or value > self.floor else -9999.0,
                    "rank": rank + 1,
                    "decoded_token": spelt([one]),
                }
                for one, (rank, value) in told.items()
            }
            state = mixed(state, token)


def after(ids: Sequence[int]) -> int:
    state = 0
    for token in ids:
        state = mixed(state, token)
    return state


def spelt(ids: Sequence[int]) -> str:
    """The text of the model's own tokens; of others none."""
    return "".join(chr(token) for token in ids if FIRST < token < FIRST + N_TOKENS)
