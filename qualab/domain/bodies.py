"""Prompts into request payloads, spelled as lm-eval's `local-completions` and `local-chat-completions` spell them.

Keys come in a fixed order, so that the same prompt always makes the same bytes. The seed is not part of a payload:
`canonical.encode_body` adds it. Unlike lm-eval, an empty list of stop strings is left out (some servers reject it),
and a prompt that is too long is never cut: the server says so, and the answer counts as rejected.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from qualab.domain.items import JsonObject, Prompt, Request
from qualab.domain.names import Api
from qualab.domain.plan import SamplingPlan
from qualab.errors import BrokenTask, InvalidValue

DEFAULT_MAX_TOKENS = 256
MAX_CHAT_STOPS = 4
"""Stop strings that a chat server must accept; lm-eval sends the first four as well."""

RESERVED = {
    "seed": "Set the seed with --seed",
    "n": "Ask for several answers with --repeats",
    "best_of": "Ask for several answers with --repeats",
    "stream": "Answers are read whole: leave it out",
    "echo": "The prompt would become part of the answer: leave it out",
    "model": "Name the model with --model",
    "prompt": "The prompt comes from the task: leave it out",
    "messages": "The messages come from the task: leave it out",
}
"""Generation settings that would change what is asked or how it is read, and what to do instead."""


def generation_request(prompt: Prompt, *, sampling: SamplingPlan) -> Request:
    """The request of one generation. `prompt.gen_kwargs` are the resolved settings, overrides applied.

    Raises InvalidValue where the prompt does not fit the route or a setting is reserved, BrokenTask where the
    settings or the messages are malformed.
    """
    settings = dict(prompt.gen_kwargs or {})
    _check_settings(settings)
    max_tokens = settings.pop("max_gen_toks", DEFAULT_MAX_TOKENS)
    limits = {
        "model": sampling.model,
        "max_tokens": settings.pop("max_tokens", max_tokens),
        "temperature": settings.pop("temperature", 0),
    }
    settings.pop("do_sample", None)
    stop = _stop_strings(settings.pop("until", None))
    if sampling.api is Api.CHAT:
        stop = stop[:MAX_CHAT_STOPS]
    rest = {name: settings[name] for name in sorted(settings)}
    payload = {**_question(prompt, sampling.api), **limits, **({"stop": stop} if stop else {}), **rest}
    return Request(choice=0, api=sampling.api, payload=payload)


def _check_settings(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if name in RESERVED:
            raise InvalidValue(f"Generation setting {name!r} cannot be set in gen_kwargs", hint=RESERVED[name])
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidValue(f"Generation setting {name!r} is {value}", hint="JSON has finite numbers only")


def _stop_strings(until: object) -> list[str]:
    if until is None:
        return []
    if isinstance(until, str):
        return [until]
    if isinstance(until, list | tuple) and all(isinstance(stop, str) for stop in until):
        return list(until)
    raise BrokenTask(f"Generation setting 'until' is {until!r}", hint="It must be a string or a list of strings")


def _question(prompt: Prompt, api: Api) -> JsonObject:
    if prompt.is_chat is not (api is Api.CHAT):
        form = "chat messages" if prompt.is_chat else "plain text"
        raise InvalidValue(
            f"A prompt of {form} cannot go to the {api} route",
            hint="Apply the chat template for the chat route, and only there",
        )
    return {"messages": _messages(prompt.text)} if prompt.is_chat else {"prompt": prompt.text}


def _messages(text: str) -> list[JsonObject]:
    try:
        messages = json.loads(text)
    except ValueError as exc:
        raise BrokenTask("The chat messages of a prompt are not JSON", hint="Check the task's template") from exc
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BrokenTask("The chat messages of a prompt are not a list of objects", hint="Check the task's template")
    return messages


def loglikelihood_parts(prompt: Prompt) -> tuple[str, str]:
    """The two texts whose token ids a log-likelihood request needs: the context, and context and continuation together.

    As in lm-eval, white space at the end of the context belongs to the continuation. Raises BrokenTask for an empty
    context, which leaves nothing to condition on.
    """
    if prompt.is_chat:
        raise BrokenTask(
            "A log-likelihood request cannot be made of chat messages",
            hint="Run this task without the chat template, or its generative form",
        )
    context = prompt.text.rstrip()
    if not context:
        raise BrokenTask(
            "The context of a log-likelihood request is empty", hint="Check the task's doc_to_text and description"
        )
    return context, prompt.text + prompt.continuation


def loglikelihood_request(*, choice: int, context_ids: Sequence[int], whole_ids: Sequence[int], model: str) -> Request:
    """The request of one choice, from the token ids (without special tokens) of `loglikelihood_parts`.

    As in lm-eval, what the whole has beyond the context's length is the continuation, even where the tokenizer joins
    characters across the seam. Raises BrokenTask for a context without tokens.
    """
    if not context_ids:
        raise BrokenTask("The context of a log-likelihood request has no tokens", hint="Check the task's doc_to_text")
    payload = {
        "model": model,
        "prompt": [*context_ids, *whole_ids[len(context_ids) :]],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "echo": True,
    }
    return Request(choice=choice, api=Api.COMPLETIONS, payload=payload, context_tokens=len(context_ids))
