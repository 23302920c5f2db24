"""From rendered prompts to requests in the plan's order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qualab.errors import EndpointMisconfigured
from qualab.model.items import Item, Request, generation_request, loglikelihood_parts, loglikelihood_request
from qualab.model.names import RequestKind
from qualab.model.plan import SamplingPlan
from qualab.model.ports import Endpoint, EndpointInfo, Tokenize

TOKENIZE_CHUNK = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSource:
    """Where token ids come from: the server itself where it tokenizes, else a named tokenizer."""

    endpoint: Endpoint
    model: str
    named: Tokenize | None

    async def encode(self, texts: Sequence[str]) -> Mapping[str, list[int]]:
        """Token ids of each distinct text."""
        distinct = list(dict.fromkeys(texts))
        encoded: dict[str, list[int]] = {}
        for start in range(0, len(distinct), TOKENIZE_CHUNK):
            chunk = distinct[start : start + TOKENIZE_CHUNK]
            ids = self.named(chunk) if self.named else await self.endpoint.tokenize(chunk, model=self.model)
            encoded.update(zip(chunk, ids, strict=True))
        return encoded


def token_source(endpoint: Endpoint, info: EndpointInfo, *, model: str, named: Tokenize | None) -> TokenSource:
    """Raises EndpointMisconfigured where nothing can tokenize."""
    if named is None and not info.tokenizes:
        raise EndpointMisconfigured(
            f"{info.url} offers no /tokenize, and log-likelihood tasks need token ids",
            hint="Name the model's tokenizer with --tokenizer DIR_OR_FILE (a tokenizer.json)",
        )
    return TokenSource(endpoint=endpoint, model=model, named=named)


def in_random_order(items: Iterable[Item], *, seed: int, n_stages: int = 1) -> list[Item]:
    """Generations first, then log-likelihoods; task by task; each task's items in a seeded random order.

    With stages, each holds the next equal share of every task's order.
    """
    blocks: dict[tuple[bool, str], list[Item]] = {}
    for item in items:
        blocks.setdefault((item.kind is RequestKind.LOGLIKELIHOOD, item.task), []).append(item)
    in_order = sorted(blocks.items(), key=lambda entry: entry[0][0])
    for (_, task), block in in_order:
        random.Random(f"{seed}:{task}").shuffle(block)
    ordered = [
        item
        for stage in range(n_stages)
        for _, block in in_order
        for item in block[_share(len(block), stage, n_stages) : _share(len(block), stage + 1, n_stages)]
    ]
    return [replace(item, position=position) for position, item in enumerate(ordered)]


def stage_ends(items: Iterable[Item], *, n_stages: int) -> list[int]:
    """The position after the last item of each stage."""
    sizes = Counter(item.task for item in items).values()
    return [sum(_share(size, stage + 1, n_stages) for size in sizes) for stage in range(n_stages)]


def _share(size: int, stage: int, n_stages: int) -> int:
    return size * stage // n_stages


async def with_requests(items: Sequence[Item], *, sampling: SamplingPlan, tokens: TokenSource | None) -> list[Item]:
    """The items with their bodies. `tokens` may be None where no item asks for a log-likelihood."""
    scored = [item for item in items if item.kind is RequestKind.LOGLIKELIHOOD]
    encoded = await tokens.encode([text for item in scored for text in _texts(item)]) if tokens and scored else {}
    return [replace(item, requests=_requests(item, sampling, encoded)) for item in items]


def _texts(item: Item) -> list[str]:
    return [text for prompt in item.prompts for text in loglikelihood_parts(prompt)]


def _requests(item: Item, sampling: SamplingPlan, encoded: Mapping[str, list[int]]) -> tuple[Request, ...]:
    if item.kind is RequestKind.GENERATION:
        return tuple(generation_request(prompt, sampling=sampling) for prompt in item.prompts)
    requests = []
    for choice, prompt in enumerate(item.prompts):
        context, whole = (encoded[text] for text in loglikelihood_parts(prompt))
        requests.append(
            loglikelihood_request(choice=choice, context_ids=context, whole_ids=whole, model=sampling.model)
        )
    return tuple(requests)
