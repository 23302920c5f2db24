"""Items with the prompts that lm-eval would build for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qualab.errors import InvalidValue
from qualab.harness.building import broken
from qualab.model.items import Item, JsonObject, Prompt, cluster_of
from qualab.model.names import RequestKind
from qualab.model.plan import TaskSpec

TOKEN_LIMITS = ("max_tokens", "max_gen_toks", "max_new_tokens", "max_completion_tokens")
"""Names of one setting; lm-eval's completions client prefers the first."""

DEFAULT_MAX_GEN_TOKS = 256

SETTINGS = "max_gen_toks is a whole number, temperature a number, until a text or a list of texts"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTask:
    """A task with the documents that are asked."""

    spec: TaskSpec
    task: Any
    """lm-eval's object."""
    docs: Sequence[Mapping[str, Any]]
    """As lm-eval's functions take them."""
    plain_docs: Sequence[JsonObject]
    """The same, JSON-able."""
    cluster: tuple[str, ...]


def render(loaded: LoadedTask, *, seed: int, system_instruction: str, as_chat: bool, start: int = 0) -> Iterator[Item]:
    """The task's items in document order, `position` counted from `start`. The same seed draws the same examples.

    Log-likelihood prompts are never in chat form. Raises BrokenTask.
    """
    loaded.task.set_fewshot_seed(seed)
    chat = as_chat and loaded.spec.kind is RequestKind.GENERATION
    name = loaded.task.task_name
    for doc_id, doc in enumerate(loaded.docs):
        try:
            instances = _instances(loaded.task, name, doc, system_instruction=system_instruction or None, chat=chat)
            target = str(loaded.task.doc_to_target(doc))
        except Exception as exc:  # whatever a task's templates and functions raise
            raise broken(loaded.spec.name, f"cannot render its item {doc_id}", exc) from exc
        plain = loaded.plain_docs[doc_id]
        yield Item(
            position=start + doc_id,
            task=loaded.spec.name,
            doc_id=doc_id,
            kind=loaded.spec.kind,
            doc=plain,
            target=target,
            prompts=tuple(_prompt(instance, chat=chat) for instance in instances),
            cluster=cluster_of(plain, loaded.cluster),
        )


def _instances(task: Any, name: str, doc: Any, *, system_instruction: str | None, chat: bool) -> Sequence[Any]:
    """As lm_eval.api.task.Task.build_all_requests makes them, a document at a time."""
    context = task.fewshot_context(
        doc,
        num_fewshot=task.config.num_fewshot or 0,
        system_instruction=system_instruction,
        apply_chat_template=chat,
        fewshot_as_multiturn=chat,
        chat_template=as_json if chat else None,
        gen_prefix=task.doc_to_prefix(doc),
    )
    made = task.construct_requests(
        doc=doc,
        ctx=context,
        metadata=(name, 0, 1),
        apply_chat_template=chat,
        chat_template=as_json if chat else None,
    )
    return made if isinstance(made, list) else [made]


def as_json(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
    """A conversation as lm-eval's clients of chat endpoints carry it."""
    del add_generation_prompt  # the server's template decides
    return json.dumps(messages, ensure_ascii=False)


def _prompt(instance: Any, *, chat: bool) -> Prompt:
    context, second = instance.args
    if instance.request_type == "generate_until":
        return Prompt(text=context, is_chat=chat, gen_kwargs=resolved(second))
    return Prompt(text=context, continuation=second)


def resolved(gen_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Generation settings with lm-eval's defaults filled in and one name for the token limit.

    Raises InvalidValue for settings of another type.
    """
    try:
        return _resolved(dict(gen_kwargs))
    except (TypeError, ValueError, OverflowError) as exc:
        raise InvalidValue(
            f"Generation settings {dict(gen_kwargs)} cannot be used: {exc}",
            hint=SETTINGS,
            fields={"gen_kwargs": SETTINGS},
        ) from exc


def _resolved(settings: dict[str, Any]) -> dict[str, Any]:
    limits = [settings.pop(name) for name in TOKEN_LIMITS if name in settings]
    until = settings.pop("until", None) or []
    return {
        "until": [until] if isinstance(until, str) else list(until),
        "max_gen_toks": int(limits[0]) if limits else DEFAULT_MAX_GEN_TOKS,
        "temperature": float(settings.pop("temperature", 0.0)),
        "do_sample": bool(settings.pop("do_sample", False)),
        **settings,
    }


def overridden(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A task's generation settings with a user's over them; a token limit replaces one of another name."""
    replaces = TOKEN_LIMITS if any(name in given for name in TOKEN_LIMITS) else ()
    return {**{key: value for key, value in own.items() if key not in replaces}, **given}
