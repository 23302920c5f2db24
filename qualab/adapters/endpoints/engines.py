"""Probes of inference engines: configuration and counters of vLLM and llama.cpp, as far as their routes are open.

Names and labels of vLLM's counters: vllm/v1/spec_decode/metrics.py and vllm/v1/metrics/loggers.py (vLLM 0.32). They
carry `engine` and `model_name`, and every engine of a server counts. Without a drafter vLLM has no such series at all;
llama.cpp's server has them always, at 0. vLLM's inter-token latency has one entry a request and step (vllm/v1/metrics/
stats.py), so that the tokens of a round share one; older versions call it time_per_output_token.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from qualab.adapters.endpoints.faults import Fault
from qualab.adapters.endpoints.transport import PROBE_TIMEOUT_S, Exchange, Transport
from qualab.adapters.endpoints.urls import Routes
from qualab.domain.engine import Counters, Drafting, Engine, EngineKind
from qualab.errors import EndpointUnreachable

PREFIXES = {EngineKind.VLLM: "vllm:", EngineKind.LLAMA_CPP: "llamacpp:"}
DRAFTS, DRAFT_TOKENS, ACCEPTED, ACCEPTED_AT = (
    f"spec_decode_num_{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
)
FINISHED = "request_success_total"
PROMPT_TOKENS = "prompt_tokens_total"
GENERATED_TOKENS = ("generation_tokens_total", "tokens_predicted_total")
DECODE_STEPS = ("inter_token_latency_seconds_count", "time_per_output_token_seconds_count")
DECODE_SECONDS = (
    "inter_token_latency_seconds_sum",
    "time_per_output_token_seconds_sum",
    "tokens_predicted_seconds_total",
)
STARTED = "process_start_time_seconds"

SLOW_PROBE_TIMEOUT_S = 60.0
"""vLLM gathers facts of its machine when /server_info is first asked for, which takes many seconds on a busy one."""

UNTOLD = ("media_marker", "ui_settings")
"""Properties of llama.cpp's server that are drawn at random or belong to its web page."""

Samples = Mapping[str, Mapping[str, float]]
"""Name -> the label `position` (empty where there is none) -> the sum over all other labels."""


class EngineProbe:
    """Asks the server behind one endpoint what it is and what its drafter has done."""

    def __init__(self, routes: Routes, *, transport: Transport) -> None:
        self._root = routes.root
        self._transport = transport

    async def engine(self, card: Mapping[str, Any]) -> Engine:
        """What the engine says. `card` is the model's entry in /v1/models. Closed routes leave fields empty.

        Raises EndpointUnreachable where a vLLM server neither tells its configuration nor says that it does not.
        """
        counters = await self.counters()
        version, props, server = await asyncio.gather(
            self._object("version"), self._object("props"), self._server_info(is_vllm=card.get("owned_by") == "vllm")
        )
        if card.get("owned_by") == "vllm" or "vllm_config" in server:
            return vllm_engine(card, version, server, counters)
        if "default_generation_settings" in props or card.get("owned_by") == "llamacpp":
            return llama_engine(card, props, counters)
        return Engine(kind=EngineKind.UNKNOWN, max_model_len=_whole(card.get("max_model_len")), counters=counters)

    async def counters(self) -> Counters | None:
        """The counters now; None where /metrics is closed or no engine's."""
        found = await self._get("metrics", timeout_s=SLOW_PROBE_TIMEOUT_S)
        if not isinstance(found, Exchange) or found.status != 200:
            return None
        return read_counters(found.body.decode("utf-8", "replace"))

    async def _get(self, route: str, *, timeout_s: float) -> Exchange | Fault:
        return await self._transport.send("GET", f"{self._root}/{route}", timeout_s=timeout_s)

    async def _server_info(self, *, is_vllm: bool) -> Mapping[str, Any]:
        found = await self._get("server_info?config_format=json", timeout_s=SLOW_PROBE_TIMEOUT_S)
        if is_vllm and isinstance(found, Fault):  # for closed it would be taken otherwise, and nothing be compared
            raise EndpointUnreachable(
                f"{self._root}/server_info does not answer: {found.reason}",
                hint="Try again when the server is less busy: its configuration is compared, unless it is closed (404)",
            )
        return _read_object(found)

    async def _object(self, route: str) -> Mapping[str, Any]:
        return _read_object(await self._get(route, timeout_s=PROBE_TIMEOUT_S))


def _read_object(found: Exchange | Fault) -> Mapping[str, Any]:
    """A JSON object; empty where there is none."""
    if not isinstance(found, Exchange) or found.status != 200:
        return {}
    try:
        answer = orjson.loads(found.body)
    except orjson.JSONDecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}


def read_counters(text: str) -> Counters | None:
    """Counters out of Prometheus' text format; None where no engine that is known wrote it."""
    try:
        return _counters(_samples(text))
    except (ValueError, OverflowError):  # another format, or numbers that no counter has
        return None


def _counters(samples: Samples) -> Counters | None:
    kind = next((kind for kind, prefix in PREFIXES.items() if any(name.startswith(prefix) for name in samples)), None)
    if kind is None:
        return None
    own = {name.removeprefix(PREFIXES[kind]): values for name, values in samples.items()}
    return Counters(
        drafting=_drafting(own),
        finished_requests=_total(own, FINISHED),
        prompt_tokens=_total(own, PROMPT_TOKENS),
        generated_tokens=_total(own, *GENERATED_TOKENS),
        decode_s=_sum(own, *DECODE_SECONDS),
        decode_steps=_total(own, *DECODE_STEPS),
        started_at_s=own[STARTED][""] if STARTED in own else None,
    )


def _samples(text: str) -> Samples:
    """Raises ValueError for text in another format."""
    sums: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name][sample.labels.get("position", "")] += sample.value
    return sums


def _drafting(own: Samples) -> Drafting | None:
    """vLLM before version 1 counted draft tokens, but no drafts."""
    if DRAFTS not in own and DRAFT_TOKENS not in own:
        return None
    by_position = sorted(own.get(ACCEPTED_AT, {}).items(), key=lambda entry: int(entry[0]))
    return Drafting(
        drafts=_total(own, DRAFTS) or 0,
        draft_tokens=_total(own, DRAFT_TOKENS) or 0,
        accepted_tokens=_total(own, ACCEPTED) or 0,
        accepted_at=tuple(round(count) for _, count in by_position),
    )


def _total(own: Samples, *names: str) -> int | None:
    found = _sum(own, *names)
    return None if found is None else round(found)


def _sum(own: Samples, *names: str) -> float | None:
    """Of the first of these names that there is; versions call the same thing differently."""
    name = next((name for name in names if name in own), None)
    return None if name is None else sum(own[name].values())


def vllm_engine(
    card: Mapping[str, Any], version: Mapping[str, Any], server: Mapping[str, Any], counters: Counters | None
) -> Engine:
    """A vLLM server out of its model card, /version, /server_info and counters."""
    config = dict(_flat(server.get("vllm_config")))
    for part in ("vllm_env", "system_env"):
        config |= dict(_flat(server.get(part) or {}, part))
    speculation = (server.get("vllm_config") or {}).get("speculative_config") or {}
    return Engine(
        kind=EngineKind.VLLM,
        version=_text(version.get("version")),
        model_root=_text(card.get("root")),
        max_model_len=_whole(card.get("max_model_len")),
        kv_cache_tokens=_whole((server.get("vllm_config") or {}).get("cache_config", {}).get("kv_cache_size_tokens")),
        drafter=_drafter(speculation),
        config=config,
        counters=counters,
    )


def _drafter(speculation: Mapping[str, Any]) -> str:
    if not speculation:
        return ""
    method, model, tokens = (speculation.get(name) for name in ("method", "model", "num_speculative_tokens"))
    named = f"{method} {model}" if model and model != method else f"{method}"
    return f"{named}, {tokens} tokens"


def llama_engine(card: Mapping[str, Any], props: Mapping[str, Any], counters: Counters | None) -> Engine:
    """A llama.cpp server out of its model card, /props and counters."""
    meta = card.get("meta") or {}
    settings = props.get("default_generation_settings") or {}
    told = {name: value for name, value in props.items() if name not in UNTOLD}
    return Engine(
        kind=EngineKind.LLAMA_CPP,
        version=_text(props.get("build_info")),
        model_root=_text(props.get("model_path")),
        max_model_len=_whole(settings.get("n_ctx")) or _whole(meta.get("n_ctx")),
        kv_cache_tokens=None,
        config=dict(_flat(told)) | dict(_flat(meta, "meta")),
        counters=counters,
    )


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of nested objects by dotted names; anything else as its JSON."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{prefix}.{name}" if prefix else str(name))
    elif prefix:
        yield prefix, value if isinstance(value, str) else orjson.dumps(value).decode()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
