"""Probes of inference engines: what they are and how they are configured, as far as their routes are open.

vLLM tells by /version and /server_info (VLLM_SERVER_DEV_MODE=1), llama.cpp by /props, SGLang by /get_server_info and
/get_model_info (newer versions without `get_`), TensorRT-LLM by /version and by the labels of its Prometheus metrics,
TGI by /info. None but the first three tells its whole configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from qualab.adapters.endpoints.counters import CounterReader, Metrics, Speculation, cache_tokens, read_metrics
from qualab.adapters.endpoints.faults import Fault
from qualab.adapters.endpoints.transport import PROBE_TIMEOUT_S, Exchange, Transport
from qualab.adapters.endpoints.urls import Routes
from qualab.domain.engine import Counters, Engine, EngineKind
from qualab.errors import EndpointUnreachable

SLOW_PROBE_TIMEOUT_S = 60.0
"""vLLM gathers facts of its machine when /server_info is first asked for, which takes many seconds on a busy one."""

UNTOLD = ("media_marker", "ui_settings")
"""Properties of llama.cpp's server that are drawn at random or belong to its web page."""

SGLANG_UNTOLD = ("internal_states", "api_key", "admin_api_key", "ssl_keyfile_password", "kv_events")
"""What SGLang tells of its state, and its keys, which are kept nowhere."""
NO_ALGORITHM = ("", "none")


class EngineProbe:
    """Asks the server behind one endpoint what it is and what its drafter has done."""

    def __init__(self, routes: Routes, *, transport: Transport) -> None:
        self._root = routes.root
        self._transport = transport
        self._reader = CounterReader()
        self._has_prometheus = True
        """Whether TensorRT-LLM counts in Prometheus' format beside its statistics, as far as is known."""

    async def engine(self, card: Mapping[str, Any]) -> Engine:
        """What the engine says. `card` is the model's entry in /v1/models. Closed routes leave fields empty.

        Raises EndpointUnreachable where a vLLM or SGLang server neither tells its configuration nor says that it does
        not.
        """
        metrics = await self._metrics()
        engine = await self._described(card, metrics or Metrics())
        return replace(engine, counters=self._counters(metrics), has_metrics=metrics is not None)

    async def _described(self, card: Mapping[str, Any], metrics: Metrics) -> Engine:
        owner = card.get("owned_by")
        version, props, server, info = await asyncio.gather(
            self._object("version"), self._object("props"), self._server_info(owner), self._object("info")
        )
        if owner == "vllm" or "vllm_config" in server:
            return vllm_engine(card, version, server)
        if "default_generation_settings" in props or owner == "llamacpp":
            return llama_engine(card, props)
        if owner == "sglang" or "speculative_algorithm" in server or metrics.kind is EngineKind.SGLANG:
            model_info = await self._first("get_model_info", "model_info")
            self._reader.speculation = sglang_speculation(server)
            return sglang_engine(card, server, model_info, metrics)
        if owner == "tensorrt_llm" or metrics.kind is EngineKind.TENSORRT_LLM:
            self._reader.speculation = tensorrt_llm_speculation(metrics)
            return tensorrt_llm_engine(version, metrics)
        if metrics.kind is EngineKind.TGI or "model_sha" in info:
            return tgi_engine(info)
        return Engine(kind=EngineKind.UNKNOWN, max_model_len=_whole(card.get("max_model_len")))

    async def counters(self) -> Counters | None:
        """The counters now; None where /metrics is closed or no engine's."""
        return self._counters(await self._metrics())

    def _counters(self, metrics: Metrics | None) -> Counters | None:
        try:
            return self._reader.counters(metrics) if metrics else None
        except (ValueError, OverflowError):  # numbers that no counter has
            return None

    async def _metrics(self) -> Metrics | None:
        """What /metrics says; None where it is closed."""
        found = await self._get("metrics", timeout_s=SLOW_PROBE_TIMEOUT_S)
        if not isinstance(found, Exchange) or found.status != 200:
            return None
        metrics = read_metrics(found.body)
        if metrics.iterations is None or not self._has_prometheus:
            return metrics
        found = await self._get("prometheus/metrics", timeout_s=SLOW_PROBE_TIMEOUT_S)
        self._has_prometheus = isinstance(found, Fault) or found.status == 200
        if isinstance(found, Fault) or (beside := read_metrics(found.body)).kind is not EngineKind.TENSORRT_LLM:
            return metrics
        return replace(beside, iterations=metrics.iterations)

    async def _get(self, route: str, *, timeout_s: float) -> Exchange | Fault:
        return await self._transport.send("GET", f"{self._root}/{route}", timeout_s=timeout_s)

    async def _server_info(self, owner: object) -> Mapping[str, Any]:
        found = await self._get("server_info?config_format=json", timeout_s=SLOW_PROBE_TIMEOUT_S)
        if owner in ("sglang", None) and not _read_object(found):
            found = await self._get("get_server_info", timeout_s=SLOW_PROBE_TIMEOUT_S)
        if owner in ("vllm", "sglang") and isinstance(found, Fault):
            # for closed it would be taken otherwise, and nothing be compared
            raise EndpointUnreachable(
                f"{self._root}/server_info does not answer: {found.reason}",
                hint="Try again when the server is less busy: its configuration is compared, unless it is closed (404)",
            )
        return _read_object(found)

    async def _first(self, *routes: str) -> Mapping[str, Any]:
        """Of the first of these routes that answers with an object."""
        for route in routes:
            if answer := await self._object(route):
                return answer
        return {}

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


def vllm_engine(card: Mapping[str, Any], version: Mapping[str, Any], server: Mapping[str, Any]) -> Engine:
    """A vLLM server out of its model card, /version and /server_info."""
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
    )


def _drafter(speculation: Mapping[str, Any]) -> str:
    if not speculation:
        return ""
    method, model, tokens = (speculation.get(name) for name in ("method", "model", "num_speculative_tokens"))
    named = f"{method} {model}" if model and model != method else f"{method}"
    return f"{named}, {tokens} tokens"


def llama_engine(card: Mapping[str, Any], props: Mapping[str, Any]) -> Engine:
    """A llama.cpp server out of its model card and /props."""
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
    )


def sglang_engine(
    card: Mapping[str, Any], server: Mapping[str, Any], model_info: Mapping[str, Any], metrics: Metrics
) -> Engine:
    """An SGLang server out of its model card, /get_server_info, /get_model_info and metrics."""
    told = {name: value for name, value in server.items() if name not in SGLANG_UNTOLD}
    algorithm, model = (_text(server.get(f"speculative_{name}")) for name in ("algorithm", "draft_model_path"))
    speculation = sglang_speculation(server)
    drafter = " ".join(filter(None, (algorithm, model))) if speculation and speculation.is_on else ""
    n_tokens = server.get("speculative_num_draft_tokens")
    return Engine(
        kind=EngineKind.SGLANG,
        version=_text(server.get("version")),
        model_root=_text(server.get("model_path")) or _text(model_info.get("model_path")) or _text(card.get("root")),
        max_model_len=_whole(card.get("max_model_len")) or _whole(server.get("context_length")),
        kv_cache_tokens=_whole(server.get("max_total_num_tokens")) or cache_tokens(metrics),
        drafter=f"{drafter}, {n_tokens} tokens" if drafter and n_tokens else drafter,
        config=dict(_flat(told)) | dict(_flat(model_info, "model_info")),
    )


def sglang_speculation(server: Mapping[str, Any]) -> Speculation | None:
    """What /get_server_info says of drafting: one token of each round is the model's own, the others are drafted."""
    if "speculative_algorithm" not in server:
        return None
    width = _whole(server.get("speculative_num_draft_tokens"))
    varies = bool(server.get("speculative_adaptive")) or width is None
    return Speculation(
        is_on=str(server["speculative_algorithm"] or "").lower() not in NO_ALGORITHM,
        draft_tokens=None if varies or width is None else width - 1,
    )


def tensorrt_llm_engine(version: Mapping[str, Any], metrics: Metrics) -> Engine:
    """A TensorRT-LLM server out of /version and what its metrics say of settings."""
    told = metrics.settings
    method, model, n_tokens = (
        told.get(f"speculative_config.spec_{name}") for name in ("method", "draft_model", "num_tokens")
    )
    speculation = tensorrt_llm_speculation(metrics)
    is_on = speculation is not None and speculation.is_on
    named = " ".join(one for one in (method, model) if one and one.lower() != "none")
    length = told.get("model_config.max_model_len", "")
    return Engine(
        kind=EngineKind.TENSORRT_LLM,
        version=_text(version.get("version")),
        model_root=told.get("model_config.model", ""),
        max_model_len=int(length) if length.isdecimal() and int(length) else None,
        kv_cache_tokens=cache_tokens(metrics),
        drafter=(f"{named}, {n_tokens} tokens" if n_tokens else named) if is_on else "",
        config=told,
    )


def tensorrt_llm_speculation(metrics: Metrics) -> Speculation | None:
    """What a TensorRT-LLM server's metrics say of its speculative configuration."""
    enabled = metrics.settings.get("speculative_config.spec_enabled")
    return None if enabled is None else Speculation(is_on=enabled.lower() == "true")


def tgi_engine(info: Mapping[str, Any]) -> Engine:
    """A TGI server out of /info, which says nothing of a drafter."""
    return Engine(
        kind=EngineKind.TGI,
        version=_text(info.get("version")),
        model_root=_text(info.get("model_id")),
        max_model_len=_whole(info.get("max_total_tokens")),
        config=dict(_flat(info)),
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
