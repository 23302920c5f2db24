"""Reads answers: text, log-likelihoods, counts, and what vLLM, llama.cpp, SGLang and TensorRT-LLM say of drafting."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from qualab.endpoints.transport import Exchange, Failure, Sending
from qualab.model.audit import pack_ids
from qualab.model.items import Drafted, Reply, Request
from qualab.model.names import AnswerStatus, Api

MAX_COUNT = 2**31 - 1
RETRIED = frozenset({408, 409, 425, 429})
REJECTED = frozenset({400, 413, 422})
ABORTED = frozenset({"abort", "error"})
"""Finish reasons of a server that gave up in the middle."""
WITHHELD = "content_filter"
"""The finish reason of an answer that a filter cut, or withheld."""
VLLM_NAMES = ("num_draft_tokens", "num_accepted_draft_tokens", "acceptance_histogram")
LLAMA_NAMES = ("draft_n", "draft_n_accepted", "")
SGLANG_NAMES = (
    ("spec_num_proposed_drafts", "spec_num_correct_drafts", "spec_correct_drafts_histogram"),
    ("spec_proposed_drafts", "spec_accepted_drafts", "spec_accepted_drafts_histogram"),
    ("spec_draft_token_num", "spec_accept_token_num", "spec_accept_histogram"),
)
"""Draft tokens, accepted tokens and rounds by accepted tokens: the newest version's names first."""


EMPTY: dict[str, Any] = {
    **dict.fromkeys(("text", "loglikelihood", "is_greedy", "prompt_tokens", "completion_tokens")),
    **dict.fromkeys(("finish_reason", "system_fingerprint", "error"), ""),
}
"""A Reply without an answer."""


def read_reply(request: Request, body: bytes, sending: Sending) -> Reply:
    """Read the answer in a body. Raises Failure."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Failure("the body is not JSON") from None
    if not isinstance(answer, dict):
        raise Failure("the body is not a JSON object")
    if answer.get("error") or answer.get("object") == "error":
        raise Failure(f"the body holds an error in spite of status 200: {error_message(answer)}")
    choice = _first_choice(answer)
    finish_reason = str(choice.get("finish_reason") or "")
    if finish_reason in ABORTED:
        raise Failure(f"the server ended the answer with finish_reason {finish_reason!r}")
    ended = AnswerStatus.TRUNCATED if finish_reason == "length" else AnswerStatus.OK
    if request.context_tokens is not None:
        content = _loglikelihood(choice, n_tokens=len(request.payload["prompt"]), n_context=request.context_tokens)
    elif request.api is Api.CHAT:
        content = _message(choice, finish_reason, ended, has_tools=bool(request.payload.get("tools")))
    elif isinstance(text := choice.get("text"), str):
        content = {"status": ended, "text": text}
    else:
        raise Failure("the choice has no text")
    counts = object_of(answer, "usage")
    values = EMPTY | sending._asdict() | content
    values |= {name: count_of(counts.get(name)) for name in ("prompt_tokens", "completion_tokens")}
    values |= {"finish_reason": finish_reason, "system_fingerprint": str(answer.get("system_fingerprint") or "")}
    return Reply(
        **values,
        reasoning_characters=len(content.get("reasoning", "")),
        drafted=_drafted_in(answer, choice),
        token_ids=_token_ids(choice),
        model=model if isinstance(model := answer.get("model"), str) else "",
    )


def failed_reply(failure: Failure) -> Reply:
    """Return the Reply of a request that got no answer."""
    return Reply(**EMPTY | failure.sending._asdict() | {"status": failure.status, "error": failure.message})


def refusal(exchange: Exchange, *, now: datetime) -> Failure:
    """Make a failure of an HTTP status other than 200, with the server's own message."""
    status, retry_after = exchange.status, retry_after_s(exchange.header("Retry-After"), now=now)
    text = error_message(exchange.json()) or exchange.body.decode(errors="replace")
    return Failure(
        f"HTTP {status}: {text}" if text else f"HTTP {status}",
        status=AnswerStatus.REJECTED if status in REJECTED else AnswerStatus.HTTP_ERROR,
        retry=status in RETRIED or status >= 500,
        retry_after_s=retry_after,
        is_backpressure=status == 429 or (status == 503 and retry_after is not None),
    )


def retry_after_s(header: str | None, *, now: datetime) -> float | None:
    """Read a Retry-After header: seconds or an HTTP date. None for anything else."""
    try:
        seconds = float(header or "")
    except ValueError:
        try:
            until = parsedate_to_datetime(header or "")
        except ValueError:
            return None
        return max(0.0, ((until if until.tzinfo else until.replace(tzinfo=UTC)) - now).total_seconds())
    return seconds if 0.0 <= seconds < float("inf") else None


def error_message(answer: Any) -> str:
    """Read the message of an error body of OpenAI, vLLM, llama.cpp or FastAPI; empty for any other body."""
    if not isinstance(answer, dict):
        return ""
    error = answer.get("error")
    if isinstance(error, dict):
        error = error.get("message") or error.get("type")
    message = next(filter(None, (error, answer.get("message"), answer.get("detail"))), "")
    return message if isinstance(message, str) else orjson.dumps(message).decode()


def _first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise Failure("the body has no choices")
    if not all(isinstance(choice, dict) for choice in choices):
        raise Failure("a choice is not an object")
    first = choices[0] if len(choices) == 1 else next((choice for choice in choices if choice.get("index") == 0), None)
    if first is None:
        raise Failure("none of the choices has index 0")
    return first  # type: ignore[no-any-return]


def _message(choice: Mapping[str, Any], finish_reason: str, ended: AnswerStatus, *, has_tools: bool) -> dict[str, Any]:
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Failure("the choice has no message")
    content = message.get("content")
    texts = [text for text in (message.get("reasoning_content"), message.get("reasoning")) if isinstance(text, str)]
    reasoning = max(texts, key=len) if texts else None  # empty where a server gives the field without text
    if has_tools and (calls := message.get("tool_calls")):
        return {"status": ended, "text": _calls(calls), "reasoning": reasoning or ""}
    if not content and finish_reason == WITHHELD:
        withheld = f"the server withheld the answer (finish_reason {WITHHELD!r})"
        raise Failure(withheld, retry=False, status=AnswerStatus.REJECTED)
    if not content and (reasoning or (content is None and reasoning is not None)):
        return {"status": AnswerStatus.NO_FINAL_ANSWER, "reasoning": reasoning}
    if not isinstance(content, str):
        raise Failure("the message has no content")
    return {"status": ended, "text": content, "reasoning": reasoning or ""}


def _calls(calls: Any) -> str:
    """Write tool calls as compact JSON; arguments that do not parse stay text. Raises Failure."""
    listed = []
    try:
        for call in calls:
            arguments = call["function"].get("arguments")
            with suppress(orjson.JSONDecodeError):
                arguments = orjson.loads(arguments) if isinstance(arguments, str) else arguments
            listed.append({"name": call["function"].get("name"), "arguments": arguments})
    except (TypeError, LookupError, AttributeError):
        raise Failure("the message's tool_calls have another form") from None
    return orjson.dumps(listed).decode()


def _token_ids(choice: Mapping[str, Any]) -> bytes | None:
    # vLLM and SGLang with return_token_ids; SGLang's chat called them so for a while
    ids = choice.get("token_ids", choice.get("response_token_ids"))
    try:
        return pack_ids(ids) if isinstance(ids, list) and min(ids, default=0) >= 0 else None
    except (struct.error, TypeError):
        return None


def _loglikelihood(choice: Mapping[str, Any], *, n_tokens: int, n_context: int) -> dict[str, Any]:
    # as lm-eval's `parse_logprobs`: the sum over the continuation; greedy where every token was the likeliest
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        raise Failure("the server gives no log-probabilities", retry=False)
    of_tokens, tops = logprobs.get("token_logprobs"), logprobs.get("top_logprobs")
    if not isinstance(of_tokens, list) or len(of_tokens) <= 1:
        raise Failure("the server ignores echo: it gives no log-probabilities of the prompt's tokens", retry=False)
    if len(of_tokens) != n_tokens + 1:
        raise Failure(f"{len(of_tokens)} token_logprobs came for {n_tokens} tokens of prompt and 1 of answer")
    if not isinstance(tops, list) or len(tops) != len(of_tokens):
        raise Failure("top_logprobs do not match token_logprobs")
    continuation = of_tokens[n_context:-1]
    try:
        total = float(sum(continuation))
        likeliest = [max(top.values()) for top in tops[n_context:-1]]
    except (TypeError, ValueError, AttributeError):
        raise Failure("a log-probability of the continuation is missing") from None
    return {"status": AnswerStatus.OK, "loglikelihood": total, "is_greedy": continuation == likeliest}


def _drafted_in(answer: Mapping[str, Any], choice: Mapping[str, Any]) -> Drafted | None:
    metrics, timings = object_of(answer, "metrics"), object_of(answer, "timings")
    if "speculative_decoding" in metrics:  # vLLM, --per-request-spec-decode-metrics
        return _drafted(object_of(metrics, "speculative_decoding"), VLLM_NAMES)
    if timings:  # llama.cpp
        return _drafted(timings, LLAMA_NAMES)
    # SGLang, as a request asks for it (return_meta_info, return_spec_tokens_details)
    for details in (object_of(choice, "meta_info"), object_of(object_of(answer, "sglext"), "spec_tokens_details")):
        for names in SGLANG_NAMES:
            if names[0] in details:
                return _drafted(details, names)
    usage = object_of(answer, "usage")
    # OpenAI's counts of predicted tokens, which newer versions of SGLang fill; others always say 0
    details = object_of(usage, "completion_tokens_details")
    accepted, rejected = (count_of(details.get(f"{kind}_prediction_tokens")) for kind in ("accepted", "rejected"))
    if accepted is not None and rejected is not None and accepted + rejected:
        return Drafted(draft_tokens=accepted + rejected, accepted_tokens=accepted)
    # TensorRT-LLM's mean tokens an iteration: what came beyond one was accepted; draft tokens are not told
    mean, n_tokens = choice.get("avg_decoded_tokens_per_iter"), count_of(usage.get("completion_tokens"))
    if isinstance(mean, int | float) and mean >= 1.0 and n_tokens is not None:
        return Drafted(draft_tokens=None, accepted_tokens=n_tokens - round(n_tokens / mean))
    return None


def _drafted(details: Mapping[str, Any], names: Sequence[str]) -> Drafted | None:
    drafted, accepted = (count_of(details.get(name)) for name in names[:2])
    if drafted is None or accepted is None:
        return None
    histogram = details.get(names[2])
    rounds = tuple(histogram) if isinstance(histogram, list) and None not in map(count_of, histogram) else ()
    return Drafted(draft_tokens=drafted, accepted_tokens=accepted, rounds=rounds)


def object_of(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that is an object; empty for anything else."""
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def count_of(value: object) -> int | None:
    """Return a count; None for anything else."""
    # a server that lost count may say -1, or 2**64 - 1, which no database holds
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None
