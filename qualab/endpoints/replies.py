"""Reads answers: text, log-likelihoods, counts, and what vLLM, llama.cpp, SGLang and TensorRT-LLM say of drafting."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from qualab.endpoints.transport import Exchange, Failure, Redactor, Sending, retry_after_s
from qualab.model.items import Drafted, Reply, Request
from qualab.model.names import AnswerStatus, Api

MAX_COUNT = 2**31 - 1

SGLANG_NAMES = (
    ("spec_num_proposed_drafts", "spec_num_correct_drafts", "spec_correct_drafts_histogram"),
    ("spec_proposed_drafts", "spec_accepted_drafts", "spec_accepted_drafts_histogram"),
    ("spec_draft_token_num", "spec_accept_token_num", "spec_accept_histogram"),
)
"""Draft tokens, accepted tokens and rounds by accepted tokens: the newest version's names first."""


def count(value: object) -> int | None:
    """A server that lost count may say -1, or 2**64 - 1, which no database holds."""
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def drafted_in(answer: Mapping[str, Any], choice: Mapping[str, Any]) -> Drafted | None:
    """None where neither the answer nor its choice says anything of drafting."""
    metrics, timings = _object(answer, "metrics"), _object(answer, "timings")
    if "speculative_decoding" in metrics:  # vLLM, --per-request-spec-decode-metrics
        told = _object(metrics, "speculative_decoding")
        return _drafted(
            told.get("num_draft_tokens"), told.get("num_accepted_draft_tokens"), told.get("acceptance_histogram")
        )
    if timings:  # llama.cpp
        return _drafted(timings.get("draft_n"), timings.get("draft_n_accepted"))
    # SGLang, as a request asks for it (return_meta_info, return_spec_tokens_details)
    for told in (_object(choice, "meta_info"), _object(_object(answer, "sglext"), "spec_tokens_details")):
        for names in SGLANG_NAMES:
            if names[0] in told:
                return _drafted(*(told.get(name) for name in names))
    usage = _object(answer, "usage")
    return _of_usage(usage) or _of_iterations(choice, usage)


def _drafted(draft_tokens: object, accepted_tokens: object, rounds: object = None) -> Drafted | None:
    drafted, accepted = count(draft_tokens), count(accepted_tokens)
    if drafted is None or accepted is None:
        return None
    is_histogram = isinstance(rounds, list) and all(count(one) is not None for one in rounds)
    return Drafted(
        draft_tokens=drafted,
        accepted_tokens=accepted,
        rounds=tuple(rounds) if isinstance(rounds, list) and is_histogram else (),
    )


def _of_usage(usage: Mapping[str, Any]) -> Drafted | None:
    """OpenAI's counts of predicted tokens, which newer versions of SGLang fill; others always say 0."""
    details = _object(usage, "completion_tokens_details")
    accepted, rejected = (count(details.get(f"{what}_prediction_tokens")) for what in ("accepted", "rejected"))
    if accepted is None or rejected is None or not accepted + rejected:
        return None
    return Drafted(draft_tokens=accepted + rejected, accepted_tokens=accepted)


def _of_iterations(choice: Mapping[str, Any], usage: Mapping[str, Any]) -> Drafted | None:
    """TensorRT-LLM's mean tokens an iteration: what came beyond one was accepted; draft tokens are not told."""
    mean, n_tokens = choice.get("avg_decoded_tokens_per_iter"), count(usage.get("completion_tokens"))
    if not isinstance(mean, int | float) or mean < 1.0 or n_tokens is None:
        return None
    return Drafted(draft_tokens=None, accepted_tokens=n_tokens - round(n_tokens / mean))


def _object(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = parent.get(name)
    return found if isinstance(found, dict) else {}


ABORTED = frozenset({"abort", "error"})
"""Finish reasons that say that the server gave up in the middle."""
WITHHELD = "content_filter"
"""The finish reason of an answer that a filter cut, or withheld."""


class BadBody(Exception):
    """A body that holds no answer. `retry` is False where asking again cannot help."""

    def __init__(self, reason: str, *, retry: bool = True, status: AnswerStatus = AnswerStatus.BAD_BODY) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.status = status


class Drawn(NamedTuple):
    """What a choice says: the part of a Reply that differs between the routes."""

    status: AnswerStatus
    text: str | None = None
    loglikelihood: float | None = None
    is_greedy: bool | None = None
    reasoning: str = ""


def read_reply(request: Request, body: bytes, sending: Sending) -> Reply:
    """Raises BadBody."""
    answer = _parsed(body)
    choice = _first_choice(answer)
    finish_reason = str(choice.get("finish_reason") or "")
    if finish_reason in ABORTED:
        raise BadBody(f"the server ended the answer with finish_reason {finish_reason!r}")
    if request.context_tokens is not None:
        drawn = _loglikelihood(choice, n_tokens=len(request.payload["prompt"]), n_context=request.context_tokens)
    elif request.api is Api.CHAT:
        drawn = _message(choice, finish_reason)
    else:
        drawn = _text(choice, finish_reason)
    counts = _object(answer, "usage")
    return Reply(
        status=drawn.status,
        text=drawn.text,
        loglikelihood=drawn.loglikelihood,
        is_greedy=drawn.is_greedy,
        finish_reason=finish_reason,
        prompt_tokens=count(counts.get("prompt_tokens")),
        completion_tokens=count(counts.get("completion_tokens")),
        attempts=sending.attempts,
        latency_s=sending.latency_s,
        sent_at=sending.sent_at,
        system_fingerprint=str(answer.get("system_fingerprint") or ""),
        error="",
        reasoning_characters=len(drawn.reasoning),
        reasoning=drawn.reasoning,
        drafted=drafted_in(answer, choice),
        model=model if isinstance(model := answer.get("model"), str) else "",
    )


def failed_reply(failure: Failure) -> Reply:
    """The Reply of a request that got no answer."""
    return Reply(
        status=failure.status,
        text=None,
        loglikelihood=None,
        is_greedy=None,
        finish_reason="",
        prompt_tokens=None,
        completion_tokens=None,
        attempts=failure.sending.attempts,
        latency_s=failure.sending.latency_s,
        sent_at=failure.sending.sent_at,
        system_fingerprint="",
        error=failure.error,
    )


RETRIED = frozenset({408, 409, 425, 429})
REJECTED = frozenset({400, 413, 422})


def failure_of(exchange: Exchange, sending: Sending, *, redact: Redactor, now: datetime) -> Failure:
    """The failed attempt that an HTTP status other than 200 means, with what the server says about it."""
    status, retry_after = exchange.status, exchange.header("Retry-After")
    said = redact.excerpt(error_message(exchange.body) or exchange.body)
    return Failure(
        status=AnswerStatus.REJECTED if status in REJECTED else AnswerStatus.HTTP_ERROR,
        error=f"HTTP {status}: {said}" if said else f"HTTP {status}",
        retry=status in RETRIED or status >= 500,
        sending=sending,
        retry_after=retry_after,
        is_backpressure=status == 429 or (status == 503 and retry_after_s(retry_after, now=now) is not None),
    )


def error_message(body: bytes) -> str:
    """What a JSON error body says in the forms of OpenAI, vLLM, llama.cpp and FastAPI; empty for any other body."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    return _message_in(answer) if isinstance(answer, dict) else ""


def _message_in(answer: dict[str, Any]) -> str:
    error = answer.get("error")
    if isinstance(error, dict):
        error = error.get("message") or error.get("type")
    for said in (error, answer.get("message"), answer.get("detail")):
        if said:
            return said if isinstance(said, str) else orjson.dumps(said).decode()
    return ""


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise BadBody("the body is not JSON") from exc
    if not isinstance(answer, dict):
        raise BadBody("the body is not a JSON object")
    if answer.get("error") or answer.get("object") == "error":
        raise BadBody(f"the body holds an error in spite of status 200: {_message_in(answer)}")
    return answer


def _first_choice(answer: dict[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise BadBody("the body has no choices")
    if not all(isinstance(choice, dict) for choice in choices):
        raise BadBody("a choice is not an object")
    if len(choices) == 1:
        return dict(choices[0])
    first = next((choice for choice in choices if choice.get("index") == 0), None)
    if first is None:
        raise BadBody("none of the choices has index 0")
    return dict(first)


def _ended(finish_reason: str) -> AnswerStatus:
    return AnswerStatus.TRUNCATED if finish_reason == "length" else AnswerStatus.OK


def _text(choice: dict[str, Any], finish_reason: str) -> Drawn:
    text = choice.get("text")
    if not isinstance(text, str):
        raise BadBody("the choice has no text")
    return Drawn(_ended(finish_reason), text)


def _message(choice: dict[str, Any], finish_reason: str) -> Drawn:
    message = choice.get("message")
    if not isinstance(message, dict):
        raise BadBody("the choice has no message")
    content = message.get("content")
    texts = [text for text in (message.get("reasoning_content"), message.get("reasoning")) if isinstance(text, str)]
    reasoning = max(texts, key=len) if texts else None  # empty where a server gives the field without text
    if not content and finish_reason == WITHHELD:
        what = f"the server withheld the answer (finish_reason {WITHHELD!r})"
        raise BadBody(what, retry=False, status=AnswerStatus.REJECTED)
    if not content and (reasoning or (content is None and reasoning is not None)):
        return Drawn(AnswerStatus.NO_FINAL_ANSWER, reasoning=reasoning)
    if not isinstance(content, str):
        raise BadBody("the message has no content")
    return Drawn(_ended(finish_reason), content, reasoning=reasoning or "")


def _loglikelihood(choice: dict[str, Any], *, n_tokens: int, n_context: int) -> Drawn:
    """As lm-eval's `parse_logprobs`: the sum over the continuation; greedy where every token was the likeliest."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        raise BadBody("the server gives no log-probabilities", retry=False)
    of_tokens, tops = logprobs.get("token_logprobs"), logprobs.get("top_logprobs")
    if not isinstance(of_tokens, list) or len(of_tokens) <= 1:
        raise BadBody("the server ignores echo: it gives no log-probabilities of the prompt's tokens", retry=False)
    if len(of_tokens) != n_tokens + 1:
        raise BadBody(f"{len(of_tokens)} token_logprobs came for {n_tokens} tokens of prompt and 1 of answer")
    if not isinstance(tops, list) or len(tops) != len(of_tokens):
        raise BadBody("top_logprobs do not match token_logprobs")
    continuation = of_tokens[n_context:-1]
    try:
        total = float(sum(continuation))
        likeliest = [max(top.values()) for top in tops[n_context:-1]]
    except (TypeError, ValueError, AttributeError) as exc:
        raise BadBody("a log-probability of the continuation is missing") from exc
    return Drawn(AnswerStatus.OK, loglikelihood=total, is_greedy=continuation == likeliest)
