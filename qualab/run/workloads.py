"""Prompts whose speed is measured: by kind of work, of a length in tokens, the same bytes for the same seed."""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from qualab.errors import UsageError
from qualab.model.names import Work

CHARACTERS = (4, 2)
"""Of a token, and of a Korean one, where no tokenizer tells."""
ROUNDS = 6
LEAST_BODY = 40
CUT_WORD = re.compile(r"\w+$")
SLOT = re.compile(r"\{(?:(\d+)-(\d+)|(\w+))\}")
ROW_HINT = (
    'A line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}; other files: a prompt a line'
)

Decks = defaultdict[str, list[str]]
Tokenizing = Callable[[Sequence[str]], Awaitable[list[list[int]]]]


async def workload(
    work: Work,
    prompt_tokens: int,
    n: int,
    *,
    seed: int,
    repeat: int,
    tokenize: Tokenizing | None,
    own: Sequence[str] = (),
) -> list[str]:
    """Make the prompts of a repeat, none of which begins as one of another repeat does.

    They have `prompt_tokens` within 3 %, unless what frames the work is longer. Without a tokenizer a token is taken
    for 4 characters, in Korean 2. A user's prompts (`own`) keep their lengths, and come in turn.
    """
    nonces = [f"[{random.Random(f'{seed} {work} {repeat} {index}').getrandbits(32):08x}]\n" for index in range(n)]
    if work is Work.OWN:
        order = random.Random(seed).sample(own, len(own))
        return [nonce + order[(repeat * n + index) % len(order)] for index, nonce in enumerate(nonces)]
    sizes = [prompt_tokens * CHARACTERS[work is Work.KOREAN]] * n
    if tokenize:  # one tells about how long all have to be
        text = _text(work, nonces[0], sizes[0])
        sizes = [prompt_tokens * len(text) // len((await tokenize([text]))[0])] * n
    texts = [_text(work, nonce, size) for nonce, size in zip(nonces, sizes, strict=True)]
    unfit = list(range(n))
    for _ in range(ROUNDS):
        if not tokenize or not unfit:
            break
        counts = [len(ids) for ids in await tokenize([texts[index] for index in unfit])]
        tokens = dict(zip(unfit, counts, strict=True))
        unfit = [index for index, count in tokens.items() if abs(count - prompt_tokens) > max(1, 0.03 * prompt_tokens)]
        for index in unfit:
            sizes[index] += (prompt_tokens - tokens[index]) * len(texts[index]) // tokens[index]
            texts[index] = _text(work, nonces[index], sizes[index])
    return texts


def _text(work: Work, nonce: str, size: int) -> str:
    frame, rng = _material()[work], random.Random(nonce)
    n_body = max(LEAST_BODY, size - len(nonce + frame["head"] + frame["tail"]))
    cut = CUT_WORD.sub("", filler(work, n_body, rng)).rstrip()
    return "".join((nonce, frame["head"], cut, frame["tail"]))


def filler(work: Work, size: int, rng: random.Random) -> str:
    """Write so many characters of what prompts of this kind of work are made of."""
    body, decks = "", Decks(list)
    while len(body) <= size:
        for pattern in _material()[work]["body"]:
            body += _filled(pattern, rng, decks, {})
    return body[:size]


def _filled(pattern: str, rng: random.Random, decks: Decks, chosen: dict[str, str]) -> str:
    """Fill the slots of a pattern; a list's entries are used up before one comes again."""

    def fill(slot: re.Match[str]) -> str:
        low, high, name = slot.groups()
        if slot[0] not in chosen:
            if name and not decks[name]:
                decks[name] = rng.sample(_material()[name], len(_material()[name]))
            text = decks[name].pop() if name else str(rng.randint(int(low), int(high)))
            chosen[slot[0]] = _filled(text, rng, decks, chosen)
        return chosen[slot[0]]

    return SLOT.sub(fill, pattern)


@cache
def _material() -> dict[str, Any]:
    return dict(yaml.safe_load(Path(__file__).with_name("works.yaml").read_bytes()))


def read_prompts(path: Path) -> tuple[str, ...]:
    """Read a user's prompts: one a line, or JSONL, whose messages are joined. Raises UsageError, naming the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"Cannot read {path}: {exc}", hint="Give --speed-prompts a text file in UTF-8") from exc
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line) if path.suffix == ".jsonl" else {"prompt": line.strip()}
            texts = [row["prompt"]] if "prompt" in row else [message["content"] for message in row["messages"]]
            prompts.append("\n\n".join(texts))
        except (ValueError, LookupError, TypeError):
            raise UsageError(f"{path}, line {number}: neither a prompt nor messages of text", hint=ROW_HINT) from None
    if not prompts:
        raise UsageError(f"{path} holds no prompts", hint=ROW_HINT)
    return tuple(prompts)
