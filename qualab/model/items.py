"""Items, the requests made of them, and the answers and scores."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from qualab.errors import BrokenTask, InvalidValue
from qualab.model.names import AnswerStatus, Api, ArmName, RequestKind
from qualab.model.plan import SamplingPlan

JsonObject = dict[str, Any]
Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request of an item as the harness renders it."""

    text: str
    is_chat: bool = False
    continuation: str = ""
    gen_kwargs: dict[str, Any] | None = None
    """Generations only: resolved generation settings in lm-eval's names (until, max_gen_toks, temperature ...)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    choice: int
    api: Api
    payload: JsonObject
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One document of a task. `position` is its place in the plan's random order."""

    position: int
    task: str
    doc_id: int
    kind: RequestKind
    doc: JsonObject
    target: str
    prompts: tuple[Prompt, ...]
    requests: tuple[Request, ...] = ()
    cluster: str = ""

    @property
    def id(self) -> str:
        """For example "gsm8k/17"."""
        return f"{self.task}/{self.doc_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    draft_tokens: int | None
    accepted_tokens: int
    rounds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An endpoint's reply to one request, after all its attempts."""

    status: AnswerStatus
    text: str | None
    loglikelihood: float | None
    is_greedy: bool | None
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None
    attempts: int
    latency_s: float
    """Latency of the last attempt, from sending to the whole body."""
    sent_at: datetime
    system_fingerprint: str
    error: str
    reasoning_characters: int = 0
    drafted: Drafted | None = None
    model: str = ""
    reasoning: str = ""
    token_ids: Annotated[bytes | None, Field(exclude=True)] = None
    """Ids as generated, little-endian int32; None where the server does not tell. JSON holds no such bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply in its place: one for each (comparison, run, arm, item, choice, repeat)."""

    arm: ArmName
    position: int
    choice: int
    repeat: int
    request_hash: bytes
    reply: Reply
    run: int = 0
    """0 is the comparison itself; 1 and up are the noise floor's runs, of the baseline alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    arm: ArmName
    position: int
    repeat: int
    metric: str
    """lm-eval's key, as "exact_match,strict-match"."""
    value: float
    """The number itself; for a list its mean; for (target, prediction) whether they agree."""
    detail: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFlip:
    position: int
    repeat: int
    task: str
    kind: RequestKind
    metric: str
    baseline: float
    candidate: float


class Change(StrEnum):
    """The candidate's score of an item against the baseline's, by its task's deciding metric."""

    SAME = "same"
    GAIN = "gain"
    LOSS = "loss"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    position: int
    repeat: int
    task: str
    doc_id: int
    kind: RequestKind
    change: Change
    baseline: float | None
    candidate: float | None
    different_text: bool
    """True where both arms answered with different bytes. Always False for log-likelihoods."""
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeFilter:
    task: str | None = None
    flipped: bool | None = None
    change: Change | None = None
    missing: bool | None = None
    different_text: bool | None = None
    min_length: int | None = None
    max_length: int | None = None
    foreign: bool | None = None
    """True for items with a foreign token in an audited answer; the store looks at `positions` alone."""
    text: str | None = None
    """In the document, the right answer or an answer of the arms, in upper or lower case."""
    positions: tuple[int, ...] | None = None


LONGEST_CLUSTER = 64


def cluster_of(doc: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Name the cluster of a document: the text of one short field, else a hash of all fields."""
    if not fields:
        return ""
    values = [str(doc[name]) for name in fields]
    if len(values) == 1 and len(values[0]) <= LONGEST_CLUSTER:
        return values[0]
    return hashlib.sha256(json.dumps(values, ensure_ascii=False).encode()).hexdigest()[:16]


DEFAULT_MAX_TOKENS = 256
MAX_CHAT_STOPS = 4
"""Stop strings that a chat server must accept; lm-eval sends the first four as well."""

RESERVED = frozenset({"seed", "n", "best_of", "stream", "echo", "model", "prompt", "messages"})
"""Generation settings that would change what is asked or how it is read."""
BY_OPTION = "Set the seed with --seed, the model with --model, the number of answers with --repeats; leave the rest out"

LM_EVAL_SETTINGS = frozenset({"until", "max_gen_toks", "max_new_tokens", "do_sample"})
SENT_SETTINGS = frozenset({"max_tokens", "temperature", "stop"})


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPENAI_SETTINGS = SENT_SETTINGS | _names(
    "frequency_penalty logit_bias logprobs max_completion_tokens presence_penalty reasoning_effort "
    "response_format top_logprobs top_p user verbosity"
)
ENGINE_SETTINGS = {
    "vLLM": _names(
        "add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template "
        "chat_template_kwargs continue_final_message documents guided_choice guided_grammar guided_json "
        "guided_regex ignore_eos include_reasoning include_stop_str_in_output length_penalty "
        "logprob_token_ids min_p min_tokens priority prompt_logprobs repetition_detection repetition_penalty "
        "return_token_ids return_tokens_as_token_ids skip_special_tokens spaces_between_special_tokens "
        "stop_token_ids structured_outputs thinking_token_budget top_k truncate_prompt_tokens truncation_side "
        "use_beam_search vllm_xargs watermarking"
    ),
    "SGLang": _names(
        "cache_salt chat_template_kwargs continue_final_message custom_logit_processor custom_params ebnf "
        "ignore_eos json_schema lora_path min_p min_tokens no_stop_trim priority reasoning regex "
        "repetition_penalty return_token_ids separate_reasoning skip_special_tokens stop_regex stop_token_ids "
        "top_k"
    ),
    "llama.cpp": _names(
        "add_generation_prompt cache_prompt chat_template_kwargs dry_allowed_length dry_base dry_multiplier "
        "dry_penalty_last_n dry_sequence_breakers dynatemp_exponent dynatemp_range grammar id_slot ignore_eos "
        "json_schema lora min_keep min_p mirostat mirostat_eta mirostat_tau n_indent n_keep n_predict n_probs "
        "post_sampling_probs reasoning_budget_tokens reasoning_format repeat_last_n repeat_penalty "
        "return_tokens samplers t_max_predict_ms thinking_budget_tokens timings_per_token top_k top_n_sigma "
        "typical_p xtc_probability xtc_threshold"
    ),
    "TensorRT-LLM": _names(
        "add_generation_prompt add_special_tokens chat_template chat_template_kwargs detokenize "
        "early_stopping ignore_eos include_stop_str_in_output length_penalty min_p min_tokens "
        "repetition_penalty skip_special_tokens spaces_between_special_tokens stop_token_ids top_k top_p_min "
        "truncate_prompt_tokens use_beam_search"
    ),
    "TGI": _names("repetition_penalty"),
}
KNOWN_SETTINGS = LM_EVAL_SETTINGS | OPENAI_SETTINGS | frozenset().union(*ENGINE_SETTINGS.values())


def n_requests(items: Iterable[Item], sampling: SamplingPlan) -> int:
    """Count the requests that one arm gets for these items."""
    return sum(len(item.requests) for item in items) * sampling.repeats


def generations(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items that a noise floor is about: a log-likelihood draws no text."""
    return (item for item in items if item.kind is RequestKind.GENERATION)


def check_gen_kwargs(gen_kwargs: Mapping[str, Any], *, allow_extra: bool) -> None:
    """Raise InvalidValue for reserved settings and, unless `allow_extra`, for those that no engine knows."""
    _check_settings(gen_kwargs)
    for name in gen_kwargs:
        if name not in KNOWN_SETTINGS and not allow_extra:
            near = difflib.get_close_matches(name, sorted(KNOWN_SETTINGS), n=1, cutoff=0.6)
            meant = f"Did you mean {near[0]}? " if near else ""
            hint = f"{meant}To send it as it is: --allow-extra (allow_extra: true)"
            raise _refused_setting(name, f"Generation setting {name!r} is not known", hint)
    if gen_kwargs.get("do_sample") and "temperature" not in gen_kwargs:
        what = "do_sample without a temperature would run greedily"
        raise _refused_setting("do_sample", what, "Set the temperature, as temperature=0.7")


def _refused_setting(name: str, what: str, hint: str) -> InvalidValue:
    return InvalidValue(what, hint=hint, fields={f"gen_kwargs.{name}": f"{what}. {hint}"})


def sent_name(name: str) -> str:
    """Return the name under which a generation setting is sent; empty where it is not."""
    limits = dict.fromkeys(("max_gen_toks", "max_new_tokens", "max_completion_tokens"), "max_tokens")
    return {"until": "stop", "do_sample": "", **limits}.get(name, name)


def generation_request(prompt: Prompt, *, sampling: SamplingPlan) -> Request:
    """Make the request of one generation from the prompt's resolved settings.

    Raises InvalidValue where a setting is reserved, BrokenTask where one is malformed.
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
    stop = _stop_strings(settings.pop("until", None))[: MAX_CHAT_STOPS if sampling.api is Api.CHAT else None]
    rest = {name: settings[name] for name in sorted(settings)}
    question = {"messages": json.loads(prompt.text)} if prompt.is_chat else {"prompt": prompt.text}
    payload = {**question, **limits, **({"stop": stop} if stop else {}), **rest}
    return Request(choice=0, api=sampling.api, payload=payload)


def _check_settings(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if name in RESERVED:
            what = f"Generation setting {name!r} cannot be set in gen_kwargs"
            raise _refused_setting(name, what, BY_OPTION)
        if isinstance(value, float) and not math.isfinite(value):
            what = f"Generation setting {name!r} is {value}"
            raise _refused_setting(name, what, "JSON has finite numbers only")


def _stop_strings(until: object) -> list[str]:
    if until is None:
        return []
    if isinstance(until, str):
        return [until]
    if isinstance(until, list | tuple) and all(isinstance(stop, str) for stop in until):
        return list(until)
    raise BrokenTask(f"Generation setting 'until' is {until!r}", hint="It must be a string or a list of strings")


def loglikelihood_parts(prompt: Prompt) -> tuple[str, str]:
    """Split a prompt into the context, and context and continuation together.

    As in lm-eval, white space at the end of the context belongs to the continuation. Raises BrokenTask for an empty
    context, which leaves nothing to condition on.
    """
    context = prompt.text.rstrip()
    if not context:
        raise BrokenTask("The context of a log-likelihood request is empty", hint="Check the task's doc_to_text")
    return context, prompt.text + prompt.continuation


def loglikelihood_request(*, choice: int, context_ids: Sequence[int], whole_ids: Sequence[int], model: str) -> Request:
    """Make the request of one choice from the token ids (without special tokens) of `loglikelihood_parts`.

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
