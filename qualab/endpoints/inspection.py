"""What an endpoint says of itself before a run, and what to do where it does not answer as it should."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import orjson

from qualab.endpoints.replies import error_message
from qualab.endpoints.transport import PROBE_TIMEOUT_S, Exchange, Fault, Redactor, Timing, Transport
from qualab.endpoints.urls import Routes, alternatives
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, QualabError
from qualab.model.ports import EndpointInfo

LOADING_TIMEOUT_S = 180.0
LOADING_POLL_S = 1.0
SHOWN_MODELS = 5
BUSY_ATTEMPTS = 3

KEY_HINT = (
    "Give a key with QUALAB_API_KEY (one arm's: QUALAB_BASELINE_API_KEY, QUALAB_CANDIDATE_API_KEY) or --api-key-file"
)
NOT_OPENAI = "Give the URL of an OpenAI-compatible server, as http://127.0.0.1:8000/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The wanted model's entry in the list of models, and the list's names."""

    entry: Mapping[str, Any]
    models: tuple[str, ...]
    server: str
    names: tuple[str, ...] = ()
    """What the list calls this model: its name, its aliases, its root and whatever else is served from that."""


class Inspection:
    """Asks one server about itself."""

    def __init__(
        self,
        routes: Routes,
        *,
        transport: Transport,
        timing: Timing,
        redact: Redactor,
        loading_timeout_s: float,
    ) -> None:
        self._routes = routes
        self._transport = transport
        self._timing = timing
        self._redact = redact
        self._loading_timeout_s = loading_timeout_s

    async def model_card(self, model: str) -> ModelCard:
        """The wanted model's entry. Raises EndpointUnreachable, EndpointMisconfigured."""
        url = f"{self._routes.base}/models"
        found = await self._ready(url)
        if isinstance(found, Fault):
            raise EndpointUnreachable(f"{url} cannot be reached: {found.reason}", hint=found.hint)
        if found.status != 200:
            raise await self._refusal(url, found)
        entries = _entries(found)
        if entries is None:
            raise EndpointMisconfigured(
                f"{url} answers with {self._seen(found)}, not a list of models", hint=NOT_OPENAI
            )
        return _card(entries, model, found, url=self._routes.base)

    async def describe(self, card: ModelCard, *, tokenizes: bool) -> EndpointInfo:
        """What the server says beside its list of models."""
        version = await self._object("version")
        props = await self._object("props")
        return EndpointInfo(
            url=self._routes.base,
            server=_server(card, version, props),
            models=card.models,
            max_model_len=_context_length(card.entry, props),
            tokenizes=tokenizes,
        )

    async def _get(self, url: str) -> Exchange | Fault:
        return await self._transport.send("GET", url, timeout_s=PROBE_TIMEOUT_S)

    async def _object(self, route: str) -> Mapping[str, Any]:
        """A JSON object of the server's root; empty where there is none."""
        found = await self._get(f"{self._routes.root}/{route}")
        answer = _json(found.body) if isinstance(found, Exchange) and found.status == 200 else None
        return answer if isinstance(answer, dict) else {}

    async def _ready(self, url: str) -> Exchange | Fault:
        """The answer once the server has loaded its model and is not busy. Raises EndpointUnreachable."""
        since, busy = self._timing.monotonic_s(), 0
        while True:
            found = await self._get(url)
            if isinstance(found, Fault) or not (found.status == 429 or found.status >= 500):
                return found
            loading = found.status == 503 and b"loading" in found.body.lower()
            busy += not loading
            if loading and self._timing.monotonic_s() - since >= self._loading_timeout_s:
                raise EndpointUnreachable(
                    f"{self._routes.base} has been loading its model for {self._loading_timeout_s:g} s",
                    hint="Wait until its /health answers 200, then run again",
                )
            if busy >= BUSY_ATTEMPTS:
                return found
            await self._timing.sleep(LOADING_POLL_S)

    async def _refusal(self, url: str, found: Exchange) -> QualabError:
        """The error that an HTTP status other than 200 means here."""
        if found.status in (401, 403):
            return EndpointMisconfigured(f"{url} refuses access: {self._said(found)}", hint=KEY_HINT)
        if found.status == 404:
            return EndpointMisconfigured(f"{url} does not exist: {self._said(found)}", hint=await self._elsewhere())
        if 300 <= found.status < 400:
            target = self._redact.excerpt(found.header("Location") or "")
            return EndpointMisconfigured(f"{url} redirects to {target or 'another place'}", hint="Give that URL itself")
        if found.status == 429 or found.status >= 500:
            return EndpointUnreachable(f"{url} fails: {self._said(found)}", hint="Look into the server's log")
        return EndpointMisconfigured(f"{url} refuses: {self._said(found)}", hint=NOT_OPENAI)

    async def _elsewhere(self) -> str:
        """Where the API really is, as far as trying the likely places tells."""
        for base in alternatives(self._routes.base):
            found = await self._get(f"{base}/models")
            if isinstance(found, Exchange) and found.status == 200 and _entries(found) is not None:
                return f"Use {base}, which answers"
        return NOT_OPENAI

    def _said(self, found: Exchange) -> str:
        message = self._redact.excerpt(error_message(found.body))
        return f"HTTP {found.status}, {message}" if message else f"HTTP {found.status}"

    def _seen(self, found: Exchange) -> str:
        """What kind of thing an answer is, for a person."""
        title = re.search(rb"<title[^>]*>(.*?)</title>", found.body[:65_536], re.IGNORECASE | re.DOTALL)
        if title:
            return f"an HTML page titled '{self._redact.excerpt(title[1])}'"
        if found.body.lstrip()[:1] == b"<" or "html" in (found.header("Content-Type") or ""):
            return "an HTML page"
        if _json(found.body) is None:
            return (
                f"text that is not JSON ('{self._redact.excerpt(found.body, limit=60)}')" if found.body else "nothing"
            )
        return f"other JSON ('{self._redact.excerpt(found.body, limit=60)}')"


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _entries(found: Exchange) -> list[Mapping[str, Any]] | None:
    """The entries of a list of models; None where the answer is none."""
    answer = _json(found.body)
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list):
        return None
    return [entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _card(entries: list[Mapping[str, Any]], model: str, found: Exchange, *, url: str) -> ModelCard:
    models = tuple(entry["id"] for entry in entries)
    for entry in entries:
        if model == entry["id"] or model in _aliases(entry):
            server = found.header("Server") or ""
            return ModelCard(entry=entry, models=models, server=server, names=_names(entry, entries))
    raise EndpointMisconfigured(f"{url} serves no model {model!r}", hint=_served(models, model))


def _names(entry: Mapping[str, Any], entries: list[Mapping[str, Any]]) -> tuple[str, ...]:
    root = entry.get("root")
    alike = [other["id"] for other in entries if root and other.get("root") == root]
    found = (entry["id"], *_aliases(entry), root, *alike)
    return tuple(dict.fromkeys(name for name in found if isinstance(name, str) and name))


def _aliases(entry: Mapping[str, Any]) -> list[Any]:
    aliases = entry.get("aliases")
    return aliases if isinstance(aliases, list) else []


def _served(models: tuple[str, ...], model: str) -> str:
    if not models:
        return "It serves none: look into its log"
    near = sorted(models, key=lambda name: -SequenceMatcher(None, name.lower(), model.lower()).ratio())
    more = f" and {len(near) - SHOWN_MODELS} more" if len(near) > SHOWN_MODELS else ""
    return f"It serves {', '.join(near[:SHOWN_MODELS])}{more}"


OWNERS = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM"}
"""Engines by what they write into `owned_by`."""


def _server(card: ModelCard, version: Mapping[str, Any], props: Mapping[str, Any]) -> str:
    if card.server == "llama.cpp" or "default_generation_settings" in props:
        build = props.get("build_info")
        return f"llama.cpp {build}" if isinstance(build, str) and build else "llama.cpp"
    owner, number = OWNERS.get(str(card.entry.get("owned_by"))), version.get("version")
    if owner is None:
        return "unknown"
    return f"{owner} {number}" if isinstance(number, str) and number else owner


def _context_length(entry: Mapping[str, Any], props: Mapping[str, Any]) -> int | None:
    """Tokens a request may have: vLLM says so in the card, llama.cpp (for each of its slots) in meta or /props."""
    meta, settings = entry.get("meta"), props.get("default_generation_settings")
    said = (
        entry.get("max_model_len"),
        settings.get("n_ctx") if isinstance(settings, dict) else None,
        meta.get("n_ctx") if isinstance(meta, dict) else None,
    )
    return next((value for value in said if type(value) is int and value > 0), None)
