"""What is asked and what came back, an item at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from qualab.domain.names import AnswerStatus, Api, ArmName, RequestKind

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request of an item as the harness renders it, before it is a body."""

    text: str
    """Prompt text, or the JSON of the chat messages where `is_chat`."""
    is_chat: bool = False
    continuation: str = ""
    """Log-likelihood requests only: the text whose log-likelihood is asked."""
    gen_kwargs: dict[str, Any] | None = None
    """Generations only: resolved generation settings in lm-eval's names (until, max_gen_toks, temperature ...)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of an item, ready to send but for its seed."""

    choice: int
    """0 for a generation; the index of the choice for a log-likelihood."""
    api: Api
    payload: JsonObject
    """The JSON body without its seed. Both arms get the same bytes."""
    context_tokens: int | None = None
    """Log-likelihood requests only: tokens of the prompt that are context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One document of a task. `position` is its place in the plan's random order."""

    position: int
    task: str
    doc_id: int
    kind: RequestKind
    doc: JsonObject
    target: str
    """str() of lm-eval's doc_to_target."""
    prompts: tuple[Prompt, ...]
    requests: tuple[Request, ...] = ()
    """Empty until the prompts have been turned into bodies."""
    cluster: str = ""

    @property
    def id(self) -> str:
        """Unique within a comparison, as "gsm8k/17"."""
        return f"{self.task}/{self.doc_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemHead:
    """What an item is, without what it holds."""

    position: int
    task: str
    doc_id: int
    kind: RequestKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What a drafter did for one request, where the engine says so in its answer."""

    draft_tokens: int | None
    """None where the engine says what was accepted alone."""
    accepted_tokens: int
    rounds: tuple[int, ...] = ()
    """Rounds with 0, 1, ... accepted tokens; empty where the engine does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an endpoint made of one request, after all its attempts."""

    status: AnswerStatus
    text: str | None
    """Generated text; None where there is none (an empty text is "")."""
    loglikelihood: float | None
    is_greedy: bool | None
    finish_reason: str
    """As the server says it; empty where it says none."""
    prompt_tokens: int | None
    completion_tokens: int | None
    attempts: int
    """Requests sent, 1 or more."""
    latency_s: float
    """Of the last attempt, from sending to the whole body."""
    sent_at: datetime
    """When the last attempt was sent, UTC."""
    system_fingerprint: str
    error: str
    """What went wrong, for a person; empty for an answer. Never holds a key."""
    reasoning_characters: int = 0
    drafted: Drafted | None = None
    """None where the engine says nothing of drafting in its answers."""
    model: str = ""
    """The model that the answer says it comes from; empty where it does not say."""
    reasoning: str = ""
    """What the model thought before its answer, where the server tells it apart; empty in answers of versions that
    kept its length alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply in its place: one row for each (comparison, run, arm, item, choice, repeat)."""

    arm: ArmName
    position: int
    """The item's position."""
    choice: int
    repeat: int
    request_hash: bytes
    """First 16 bytes of the SHA-256 of the body that was sent."""
    reply: Reply
    run: int = 0
    """0 is the comparison itself; 1 and up are the noise floor's runs, of the baseline alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One metric of one answered item in one arm."""

    arm: ArmName
    position: int
    repeat: int
    metric: str
    """lm-eval's key, as "exact_match,strict-match"."""
    value: float
    """The number itself; for a list its mean; for (target, prediction) whether they agree."""
    detail: tuple[Any, ...] | None = None
    """The list, or the pair, where the score is not one number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFlip:
    """A score that differs between the arms."""

    position: int
    repeat: int
    metric: str
    baseline: float
    candidate: float
