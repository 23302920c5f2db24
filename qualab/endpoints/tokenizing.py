"""Token ids without special tokens: from the server's own /tokenize, or from a tokenizer.json on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from qualab.endpoints.replies import failure_of
from qualab.endpoints.transport import (
    PROBE_TIMEOUT_S,
    Exchange,
    Failure,
    Fault,
    Redactor,
    Sending,
    Timing,
    Transport,
    persist,
)
from qualab.endpoints.urls import Routes
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, InvalidValue, ScoringUnavailable
from qualab.model.names import AnswerStatus
from qualab.model.plan import RequestPolicy
from qualab.model.ports import Tokenize

PROBE = "qualab"
NAME_ONE = "Name the model's tokenizer with --tokenizer DIR_OR_FILE (a tokenizer.json)"

Form = Callable[[str, str], dict[str, Any]]


def _vllm_form(text: str, model: str) -> dict[str, Any]:
    return {"model": model, "prompt": text, "add_special_tokens": False}


def _llama_form(text: str, _model: str) -> dict[str, Any]:
    return {"content": text, "add_special": False}


FORMS: tuple[Form, ...] = (_vllm_form, _llama_form)
"""llama.cpp answers the other server's form with 200 and no tokens, so a form counts only where tokens come back."""


class ServerTokenizer:
    """POST /tokenize beside the versioned API, in vLLM's or llama.cpp's form."""

    def __init__(
        self, routes: Routes, *, transport: Transport, policy: RequestPolicy, timing: Timing, redact: Redactor
    ) -> None:
        self._url = f"{routes.root}/tokenize"
        self._transport = transport
        self._policy = policy
        self._timing = timing
        self._redact = redact
        self._form: Form | None = None

    async def detect(self, model: str) -> Form | None:
        """The form that this server understands; None where it understands neither."""
        for form in FORMS:
            found = await self._post(form, PROBE, model, timeout_s=PROBE_TIMEOUT_S)
            if isinstance(found, Exchange) and found.status == 200 and _token_ids(found.body):
                self._form = form
                return form
        return None

    async def encode(self, texts: Sequence[str], *, model: str) -> list[list[int]]:
        """Raises EndpointMisconfigured, EndpointUnreachable."""
        form = self._form or await self.detect(model)
        if form is None:
            raise EndpointMisconfigured(f"{self._url} does not tokenize", hint=NAME_ONE)
        encoded: list[list[int]] = [[] for _ in texts]
        waiting = iter(enumerate(texts))

        async def work() -> None:
            for place, text in waiting:
                if text:
                    encoded[place] = await self._encode_one(form, text, model)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._policy.concurrency, len(texts))):
                    group.create_task(work())
        except* (EndpointMisconfigured, EndpointUnreachable) as errors:
            raise errors.exceptions[0] from None
        return encoded

    async def _encode_one(self, form: Form, text: str, model: str) -> list[int]:
        outcome = await persist(
            lambda attempt: self._attempt(form, text, model, attempt), policy=self._policy, timing=self._timing
        )
        if not isinstance(outcome, Failure):
            return outcome
        if outcome.status.is_failure:
            raise EndpointUnreachable(f"{self._url} does not answer: {outcome.error}", hint="Try again, or " + NAME_ONE)
        raise EndpointMisconfigured(f"{self._url} refuses a text: {outcome.error}", hint=NAME_ONE)

    async def _attempt(self, form: Form, text: str, model: str, attempt: int) -> list[int] | Failure:
        found = await self._post(form, text, model, timeout_s=self._policy.timeout_s)
        sending = Sending(attempt, 0.0, self._timing.now())
        if isinstance(found, Fault):
            return Failure(status=found.status, error=found.reason, retry=True, sending=sending)
        if found.status != 200:
            return failure_of(found, sending, redact=self._redact, now=self._timing.now())
        if tokens := _token_ids(found.body):
            return tokens
        return Failure(status=AnswerStatus.BAD_BODY, error="the body holds no tokens", retry=True, sending=sending)

    async def _post(self, form: Form, text: str, model: str, *, timeout_s: float) -> Exchange | Fault:
        body = json.dumps(form(text, model)).encode()
        return await self._transport.send("POST", self._url, body=body, timeout_s=timeout_s)


def _token_ids(body: bytes) -> list[int] | None:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    return tokens if isinstance(tokens, list) and all(type(token) is int for token in tokens) else None


def named_tokenizer(name: str) -> Tokenize:
    """A tokenizer from a tokenizer.json, a directory that holds one, or a model name in the local hub cache.

    Nothing is downloaded. Raises ScoringUnavailable where there is none, InvalidValue where it cannot be read.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - only runs that need token ids pay for it

    path = _tokenizer_file(name)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # tokenizers raises bare Exception
        raise InvalidValue(f"{path} is not a tokenizer: {exc}", hint="Give the model's own tokenizer.json") from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    return tokenize


def _tokenizer_file(name: str) -> Path:
    given = Path(name).expanduser()
    path = given / "tokenizer.json" if given.is_dir() else given
    if path.is_file():
        return path
    cached = _cached_tokenizer(name)
    if cached is None:
        raise ScoringUnavailable(
            f"No tokenizer at {path}, and none of that name in the local hub cache",
            hint="Give a tokenizer.json, or the directory that holds it",
        )
    return cached


def _cached_tokenizer(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - slow to import
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        found = try_to_load_from_cache(name, "tokenizer.json")
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
