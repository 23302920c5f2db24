"""Makes the dictionaries that a comparison's answers are compressed with, from its own prompts and targets."""

from __future__ import annotations

import json
import random

import zstandard

from qualab.model.items import Item, Prompt
from qualab.model.names import RequestKind
from qualab.model.wording import valid_text
from qualab.store.texts import SCRIPTS, script_of

_MAX_SAMPLES = 1_500
_SAMPLE_CHARACTERS = 3_000
_MAX_BYTES = 65_536
_MIN_BYTES = 1_024
_BYTES_AN_ANSWER = 8
"""What a larger dictionary may cost each of the answers that it serves: about what it saves them."""


class DictionarySampler:
    """Keeps a bounded random sample of what it sees pass (Vitter 1985, algorithm R), then trains on it."""

    def __init__(self, *, answers_an_item: int) -> None:
        self._rng = random.Random(0)
        self._answers_an_item = answers_an_item
        self._samples: dict[int, list[bytes]] = {script: [] for script in SCRIPTS}
        self._seen = dict.fromkeys(SCRIPTS, 0)
        self._generations = dict.fromkeys(SCRIPTS, 0)

    def see(self, item: Item) -> None:
        """Generations only: a log-likelihood brings no text back."""
        if item.kind is not RequestKind.GENERATION:
            return
        for prompt in item.prompts:
            self._generations[self._add(_spoken(prompt)[-_SAMPLE_CHARACTERS:])] += 1
        if item.target:
            self._add(item.target[:_SAMPLE_CHARACTERS])

    def train(self) -> dict[int, bytes]:
        """Dictionaries by script; none for a script with too little to learn from."""
        trained = {script: self._train(script) for script in SCRIPTS}
        return {script: data for script, data in trained.items() if data is not None}

    def _add(self, text: str) -> int:
        raw = valid_text(text).encode()
        script = script_of(text, raw)
        kept, seen = self._samples[script], self._seen[script]
        self._seen[script] += 1
        if len(kept) < _MAX_SAMPLES:
            kept.append(raw)
        elif (place := self._rng.randrange(seen + 1)) < _MAX_SAMPLES:
            kept[place] = raw
        return script

    def _train(self, script: int) -> bytes | None:
        samples = self._samples[script]
        answers = self._generations[script] * self._answers_an_item
        size = min(_MAX_BYTES, _BYTES_AN_ANSWER * answers, sum(map(len, samples)) // 4)
        if size < _MIN_BYTES:
            return None
        try:
            return zstandard.train_dictionary(size, [*samples], k=64, d=6).as_bytes()
        except zstandard.ZstdError:  # too few or too small samples
            return None


def _spoken(prompt: Prompt) -> str:
    """What the prompt says, out of its JSON where it is a chat's."""
    if not prompt.is_chat:
        return prompt.text
    try:
        return "\n".join(str(message["content"]) for message in json.loads(prompt.text))
    except (ValueError, TypeError, KeyError):
        return prompt.text
