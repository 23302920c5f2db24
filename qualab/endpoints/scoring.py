"""Scores a given text by a server's log-probabilities, and tokenizes prompts and answers as the server does.

Sources: vLLM 0.32 vllm/entrypoints/openai/completion/serving.py and vllm/sampling_params.py (`prompt_logprobs` reads no
prefix cache and cannot leave out the prompt's part; -inf comes as -9999; a token's rank counts those as likely as it),
vllm/entrypoints/serve/tokenize/protocol.py; SGLang python/sglang/srt/managers/io_struct.py, tokenizer_manager.py and
entrypoints/openai/serving_tokenize.py (entries from `logprob_start_len` on, the first of them null; messages only in
newer versions); llama.cpp tools/server/server-context.cpp, populate_token_probs (log-probabilities of the plain model:
`logit_bias` decides what is sampled and leaves them as they are; a token that ends inside a character is withheld).
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

import orjson

from qualab.endpoints.transport import Failure, Sending
from qualab.errors import EndpointUnreachable, QualabError, ScoringUnavailable
from qualab.model.audit import Scoring, TokenPieces, TokenScores
from qualab.model.items import Request
from qualab.model.names import AnswerStatus, Api, ScoringForm

TRIAL_PROMPT, TRIAL_ANSWER = (100, 101), (102, 103, 104)
"""Token ids that every vocabulary has."""
MOST_TOKEN_BY_TOKEN = 500
LISTED, LISTED_WITHHELD = 20, 1000
"""Tokens that llama.cpp lists, by which ranks are known; and where it withholds the token itself."""
FORCED = 1e4
"""Bias of a logit that lets its token be sampled for certain."""
ROUNDING = 0.01
"""A log-probability may lie this far above 0, in nats; whatever is higher is a plain logit."""

T = TypeVar("T")


class Post(Protocol):
    """Posts a body to a URL and reads the answer, with the policy's attempts. Raises Failure."""

    def __call__(self, url: str, body: bytes, read: Callable[[bytes, Sending], T], /) -> Awaitable[T]: ...


class Row(NamedTuple):
    """A token's own log-probability, that of the most likely one, its rank, its text, and that one's text."""

    own: float
    top: float
    rank: int
    text: str | None
    """None where the server has no tokenizer; empty within a character."""
    choice: str | None


class Form(NamedTuple):
    """One way of scoring: where, what is sent for (prompt, answer, model), and what is read for (prompt, answer)."""

    url: str
    body: Callable[[Sequence[int], Sequence[int], str], dict[str, Any]]
    rows: Callable[[Any, int, Sequence[int]], Iterator[Row]]


def _prompt_logprobs(answer: Any, n_prompt: int, ids: Sequence[int]) -> Iterator[Row]:
    positions = answer["choices"][0]["prompt_logprobs"]
    _check_length(positions, n_prompt + len(ids))
    for token, entries in zip(ids, positions[n_prompt:], strict=True):
        own = entries[str(token)]
        best = own if own["rank"] == 1 else min(entries.values(), key=itemgetter("rank"))
        yield Row(own["logprob"], best["logprob"], own["rank"], own["decoded_token"], best["decoded_token"])


def _generate(answer: Any, _: int, ids: Sequence[int]) -> Iterator[Row]:
    # versions differ by one entry in where they begin; the end is that of the text
    meta = answer["meta_info"]
    places, tops = meta["input_token_logprobs"][-len(ids) :], meta["input_top_logprobs"][-len(ids) :]
    _check_length(places, len(ids))
    for token, (own, given, text), ((best, choice, choice_text), *_) in zip(ids, places, tops, strict=True):
        if given != token:
            raise KeyError(token)
        yield Row(own, best, 1 if choice == token else 2, text, choice_text)


def _next_token(answer: Any, _: int, ids: Sequence[int]) -> Iterator[Row]:
    (token,) = ids
    if answer == {}:
        return
    sampled = answer["completion_probabilities"][0]
    listed = sampled["top_logprobs"]
    rank = next((rank for rank, entry in enumerate(listed, 1) if entry["id"] == token), len(listed) + 1)
    own = listed[rank - 1] if rank <= len(listed) else sampled
    # one that is not listed is no likelier than the last that is, which bounds it where another was sampled
    logprob = min(own["logprob"] if own["id"] == token else 0.0, listed[min(rank, len(listed)) - 1]["logprob"])
    yield Row(logprob, listed[0]["logprob"], rank, _piece(own, token), _piece(listed[0], listed[0]["id"]))


def _echo(answer: Any, n_prompt: int, ids: Sequence[int]) -> Iterator[Row]:
    logprobs, n_tokens = answer["choices"][0]["logprobs"], n_prompt + len(ids)
    columns = [logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs")]
    if not {len(column) for column in columns} <= {n_tokens, n_tokens + 1}:
        raise Failure(f"it gives {len(columns[1])} log-probabilities for {n_tokens} tokens and 1 more", retry=False)
    for text, own, tops in zip(*(column[n_prompt:n_tokens] for column in columns), strict=True):
        choice, best = max(tops.items(), key=itemgetter(1))
        others = (value for name, value in tops.items() if name != text)
        is_choice = text in tops and own > max(others, default=-float("inf"))
        yield Row(own, max(own, best), 1 if is_choice else 2, text, choice)


FORMS: Mapping[ScoringForm, Form] = {
    ScoringForm.PROMPT_LOGPROBS: Form(
        "{api}/completions",
        lambda prompt, answer, model: {
            "model": model,
            "prompt": [*prompt, *answer],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 1,
        },
        _prompt_logprobs,
    ),
    ScoringForm.GENERATE: Form(
        "{root}/generate",
        lambda prompt, answer, _: {
            "input_ids": [*prompt, *answer],
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,
            "top_logprobs_num": 1,
            "return_text_in_logprobs": True,
        },
        _generate,
    ),
    ScoringForm.TOKEN_BY_TOKEN: Form(
        "{root}/completion",
        lambda prompt, answer, _: {
            "prompt": list(prompt),
            "n_predict": 1,
            "temperature": 0,
            "n_probs": LISTED,
            "logit_bias": [[answer[0], FORCED]],
            "cache_prompt": True,
            "response_fields": ["completion_probabilities"],
        },
        _next_token,
    ),
    ScoringForm.ECHO: Form(
        "{api}/completions",
        lambda prompt, answer, model: {
            "model": model,
            "prompt": [*prompt, *answer],
            "max_tokens": 1,
            "temperature": 0,
            "echo": True,
            "logprobs": 1,
        },
        _echo,
    ),
}
"""In the order in which they are tried: a server's own form first."""
WITHHELD = {"logit_bias": [[".", FORCED]], "n_probs": LISTED_WITHHELD}
"""Lets llama.cpp sample a token that it does not withhold, and find the token in question in a longer list."""


class Scorer:
    """Scores texts by one server."""

    def __init__(self, api: str, root: str, *, post: Post) -> None:
        self._api, self._root, self._post = api, root, post
        self._alone = asyncio.Lock()

    async def scoring(self, card: Mapping[str, Any], *, model: str) -> Scoring | None:
        """Find out by a trial how the server scores a text; None where it cannot. Raises EndpointUnreachable.

        `card` is the model's entry in /v1/models.
        """
        for form in FORMS:
            try:
                await self._rows(TRIAL_PROMPT, TRIAL_ANSWER, model=model, form=form)
            except Failure as failure:
                if failure.status in (AnswerStatus.TIMEOUT, AnswerStatus.CONNECTION_ERROR):
                    raise _error(failure, self._api) from None
                continue
            is_slow = form is ScoringForm.TOKEN_BY_TOKEN
            told = card["meta"].get("n_vocab") if is_slow and isinstance(card.get("meta"), dict) else None
            return Scoring(
                form=form,
                vocabulary=await self._vocabulary(model) if form is ScoringForm.PROMPT_LOGPROBS else told,
                most_tokens=MOST_TOKEN_BY_TOKEN if is_slow else None,
            )
        return None

    async def _vocabulary(self, model: str) -> int | None:
        # vLLM tells it nowhere, but on refusing the log-probabilities of all tokens
        body = {**FORMS[ScoringForm.PROMPT_LOGPROBS].body(TRIAL_PROMPT, (), model), "prompt_logprobs": -1}
        try:
            return await self._post(
                f"{self._api}/completions",
                orjson.dumps(body),
                lambda content, _: len(orjson.loads(content)["choices"][0]["prompt_logprobs"][1]),
            )
        except Failure as failure:
            refused = re.search(r"prompt logprobs of (\d+)", failure.message)
            return int(refused[1]) if refused else None
        except (ValueError, TypeError, LookupError):
            return None

    async def score(
        self, prompt_ids: Sequence[int], answer_ids: Sequence[int], *, model: str, form: ScoringForm
    ) -> TokenScores:
        """Score an answer's tokens. Raises ScoringUnavailable, EndpointUnreachable."""
        try:
            if form is ScoringForm.TOKEN_BY_TOKEN:
                async with self._alone:  # answers in turns would take the cached prompts from each other
                    rows = await self._rows(prompt_ids, answer_ids, model=model, form=form)
            else:
                rows = await self._rows(prompt_ids, answer_ids, model=model, form=form) if answer_ids else []
        except Failure as failure:
            raise _error(failure, self._url(form)) from None
        return TokenScores(
            scores=b"".join(struct.pack("<ffI", own, top, rank) for own, top, rank, *_ in rows),
            pieces=TokenPieces(
                texts=tuple(row.text or "" for row in rows),
                choices={index: row.choice or "" for index, row in enumerate(rows) if row.rank > 1},
            ),
        )

    async def _rows(
        self, prompt_ids: Sequence[int], answer_ids: Sequence[int], *, model: str, form: ScoringForm
    ) -> list[Row]:
        _, make_body, rows_of = FORMS[form]
        width = 1 if form is ScoringForm.TOKEN_BY_TOKEN else len(answer_ids)
        rows: list[Row] = []
        for begin in range(0, len(answer_ids), width):
            prompt, answer = [*prompt_ids, *answer_ids[:begin]], answer_ids[begin : begin + width]
            body, read = make_body(prompt, answer, model), partial(_read_rows, rows_of, len(prompt), answer)
            rows += await self._post(self._url(form), orjson.dumps(body), read) or await self._post(
                self._url(form), orjson.dumps(body | WITHHELD), read
            )
        if len(rows) < len(answer_ids):
            raise Failure("it gives no log-probabilities")
        return rows

    def _url(self, form: ScoringForm) -> str:
        return FORMS[form].url.format(api=self._api, root=self._root)

    async def prompt_ids(self, request: Request, *, model: str, is_llama: bool) -> tuple[int, ...]:
        """Tokenize a request's prompt as the server does. Raises ScoringUnavailable, EndpointUnreachable."""
        payload = request.payload
        prompt = payload.get("prompt")
        if isinstance(prompt, list):
            return tuple(prompt)
        if is_llama:
            if request.api is Api.CHAT:
                prompt = await self._tell("apply-template", payload, _read_text)
            body = {"content": prompt, "add_special": True, "parse_special": True}
        elif request.api is Api.CHAT:
            body = {**payload, "model": model}
            if effort := payload.get("reasoning_effort"):  # which vLLM passes on to the template
                hints = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
                body["chat_template_kwargs"] = hints | (payload.get("chat_template_kwargs") or {})
        else:
            body = {"model": model, "prompt": prompt, "add_special_tokens": payload.get("add_special_tokens", True)}
        return tuple(await self._tell("tokenize", body, read_token_ids))

    async def answer_ids(self, text: str, *, model: str, body: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Tokenize a text by this body; None where its tokens are another text. Raises as `prompt_ids`."""
        ids = await self._tell("tokenize", body, read_token_ids)
        tokens = {"model": model, "tokens": ids, "skip_special_tokens": False}
        return tuple(ids) if await self._tell("detokenize", tokens, _read_text) == text else None

    async def _tell(self, route: str, body: Mapping[str, Any], read: Callable[[bytes, Sending], T]) -> T:
        url = f"{self._root}/{route}"
        try:
            return await self._post(url, orjson.dumps(body), read)
        except Failure as failure:
            raise _error(failure, url) from None


def read_token_ids(body: bytes, _: Sending | None = None) -> list[int]:
    """Read the answer of a tokenizer. Raises Failure, also where there are no tokens."""
    try:
        tokens = orjson.loads(body)["tokens"]
    except (ValueError, TypeError, KeyError):  # not JSON, or another kind of JSON
        tokens = None
    if isinstance(tokens, list) and tokens and all(type(token) is int for token in tokens):
        return tokens
    raise Failure("the body holds no tokens")


def _read_text(body: bytes, _: Sending) -> str:
    try:
        answer = orjson.loads(body)
        for name in ("prompt", "text", "content"):  # vLLM and templates, SGLang, llama.cpp
            if isinstance(text := answer.get(name), str):
                return text
    except (ValueError, AttributeError):  # not JSON, or another kind of JSON
        pass
    raise Failure("the body holds no text", retry=False)


def _read_rows(
    rows_of: Callable[[Any, int, Sequence[int]], Iterator[Row]],
    n_prompt: int,
    ids: Sequence[int],
    body: bytes,
    _: Sending,
) -> list[Row]:
    rows: list[Row] = []
    try:
        for row in rows_of(orjson.loads(body), n_prompt, ids):
            if not row.own <= row.top <= ROUNDING:
                raise Failure(f"{row.own} under {row.top} are no log-probabilities", retry=False)
            rows.append(row)
    except (ValueError, TypeError, LookupError, AttributeError):
        place = f"token {ids[len(rows)]} in place {len(rows)} of {len(ids)}"
        raise Failure(f"it gives no log-probability of {place}", retry=False) from None
    return rows


def _check_length(entries: Sequence[Any], n_tokens: int) -> None:
    if len(entries) != n_tokens:
        raise Failure(f"it gives {len(entries)} log-probabilities for {n_tokens} tokens", retry=False)


def _piece(entry: Mapping[str, Any], token: int) -> str:
    # a special token has neither text nor bytes, a part of a character no text
    return (entry["token"] or ("" if entry["bytes"] else f"<{token}>")) if entry["id"] == token else f"<{token}>"


def _error(failure: Failure, url: str) -> QualabError:
    if failure.status in (AnswerStatus.BAD_BODY, AnswerStatus.REJECTED):
        return ScoringUnavailable(f"{url} refuses this text: {failure.message}", hint=failure.hint)
    return EndpointUnreachable(f"{url} does not answer: {failure.message}", hint=failure.hint)
