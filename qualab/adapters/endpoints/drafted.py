"""What an answer says of drafting: vLLM, llama.cpp, SGLang and TensorRT-LLM each in their own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qualab.domain.items import Drafted

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
    return _of_usage(_object(answer, "usage")) or _of_iterations(choice, _object(answer, "usage"))


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
