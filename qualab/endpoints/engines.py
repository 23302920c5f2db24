"""Read what inference engines tell of themselves: their configuration, and their counters in /metrics.

Sources: vLLM 0.32 vllm/v1/spec_decode/metrics.py (no series of drafts without a drafter; the inter-token latency has
one entry a request and step, so that the tokens of a round share one); llama.cpp's server (all series always, at 0);
SGLang observability/metrics_collector.py (counts when a request ends; a request's first token is the prompt's and every
round yields one that was not drafted: the others are accepted); TensorRT-LLM tensorrt_llm/metrics/collector.py
(/metrics is JSON, a list of iterations since somebody read it last, with a drafter alone; newer versions count in
Prometheus' format beside it); TGI backends/v3/src/backend.rs (accepted tokens alone: what a step yielded beyond one).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, NamedTuple

import orjson
from prometheus_client.parser import text_string_to_metric_families

from qualab.endpoints.transport import Exchange, Failure, Transport
from qualab.errors import EndpointUnreachable
from qualab.model.engine import Counters, Drafting, DraftSource, Engine, EngineKind

PREFIXES = {
    "vllm:": EngineKind.VLLM,
    "llamacpp:": EngineKind.LLAMA_CPP,
    "sglang:": EngineKind.SGLANG,
    "trtllm_": EngineKind.TENSORRT_LLM,
    "tgi_": EngineKind.TGI,
}
# engines and versions call the same thing differently
FINISHED = ("request_success_total", "num_requests_total", "request_success")
RUNNING = ("num_requests_running", "num_running_reqs", "requests_processing", "batch_current_size")
PROMPT_TOKENS = ("prompt_tokens_total", "request_input_length_sum")
GENERATED_TOKENS = ("generation_tokens_total", "tokens_predicted_total", "request_generated_tokens_sum")
DECODE_STEPS = ("inter_token_latency_seconds_count", "time_per_output_token_seconds_count")
DECODE_SECONDS = (
    "inter_token_latency_seconds_sum",
    "time_per_output_token_seconds_sum",
    "tokens_predicted_seconds_total",
)
TIMED = (EngineKind.VLLM, EngineKind.LLAMA_CPP)
"""Engines whose decode time is that of all tokens but a request's first."""

SLOW_PROBE_TIMEOUT_S = 60.0
"""vLLM gathers facts of its machine when /server_info is first asked for, which takes many seconds on a busy one."""
LLAMA_HIDDEN = ("media_marker", "ui_settings")
"""Properties of llama.cpp's server that are drawn at random or belong to its web page."""
SGLANG_HIDDEN = ("internal_states", "api_key", "admin_api_key", "ssl_keyfile_password", "kv_events")
"""Fields of SGLang's state and its keys, which are stored nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The content of /metrics."""

    kind: EngineKind = EngineKind.UNKNOWN
    samples: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """Name without the engine's prefix -> the label `position` (empty where there is none) -> the values of all other
    labels."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Labels of series that tell settings, as "speculative_config.spec_method" -> "Eagle"."""
    iterations: Sequence[Mapping[str, Any]] | None = None
    """TensorRT-LLM's, since they were last read."""

    def sum(self, *names: str) -> float | None:
        """Add up the first of these series that exists over its labels; None without any."""
        name = next((name for name in names if name in self.samples), None)
        return None if name is None else sum(map(sum, self.samples[name].values()))

    def count(self, *names: str) -> int | None:
        """Round the sum. Raises ValueError, OverflowError where it is no number."""
        total = self.sum(*names)
        return None if total is None else round(total)


class Speculation(NamedTuple):
    """The drafting that a configuration names."""

    is_on: bool
    draft_tokens: int | None = None
    """Per round; None where it varies or is not told."""


def read_metrics(body: bytes) -> Metrics:
    """Read Prometheus' text or a JSON list of iterations; of an unknown kind for anything else."""
    if body.lstrip()[:1] == b"[":
        try:
            iterations = orjson.loads(body)
        except orjson.JSONDecodeError:
            return Metrics()
        is_list = all(isinstance(iteration, dict) for iteration in iterations)
        return Metrics(kind=EngineKind.TENSORRT_LLM, iterations=iterations) if is_list else Metrics()
    try:
        families = text_string_to_metric_families(body.decode("utf-8", "replace"))
        series = [sample for family in families for sample in family.samples]
    except (ValueError, OverflowError):  # another format, or numbers that no counter has
        return Metrics()
    prefix = next((prefix for prefix in PREFIXES if any(one.name.startswith(prefix) for one in series)), None)
    if prefix is None:
        return Metrics()
    kind = PREFIXES[prefix]
    samples: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    settings: dict[str, str] = {}
    for sample in series:
        name = sample.name.removeprefix(prefix)
        samples[name][sample.labels.get("position", "")].append(sample.value)
        if kind in (EngineKind.TENSORRT_LLM, EngineKind.VLLM) and name.endswith("_config_info"):
            settings |= {f"{name.removesuffix('_info')}.{label}": value for label, value in sample.labels.items()}
    return Metrics(kind=kind, samples=samples, settings=settings)


class EngineProbe:
    """Asks the server behind one endpoint what it is and what its drafter has done."""

    def __init__(self, root: str, *, transport: Transport) -> None:
        self._root = root
        self._transport = transport
        self.speculation: Speculation | None = None
        """Value in the configuration; None where it does not tell, or was not asked."""
        self._added: Drafting | None = None
        """Drafting in TensorRT-LLM's iterations, added up over reads."""

    async def engine(self, card: Mapping[str, Any]) -> Engine:
        """Describe the engine. `card` is the model's entry in /v1/models. Closed routes leave fields empty.

        Raises EndpointUnreachable where a vLLM or SGLang server neither tells its configuration nor says that it does
        not.
        """
        metrics = await self._metrics()
        engine = await self._described(card, metrics or Metrics())
        return replace(engine, counters=self.read(metrics) if metrics else None, has_metrics=metrics is not None)

    async def counters(self) -> Counters | None:
        """Read the counters; None where /metrics is closed or no engine's."""
        metrics = await self._metrics()
        return self.read(metrics) if metrics else None

    def read(self, metrics: Metrics) -> Counters | None:
        """Make counters of metrics; None where no known engine wrote them, or numbers that no counter has."""
        kind = metrics.kind
        if kind is EngineKind.UNKNOWN:
            return None
        started = metrics.samples.get("process_start_time_seconds", {}).get("")
        try:
            source, drafting = self._drafting(metrics)
            if drafting is None and self.speculation and not self.speculation.is_on:
                source = DraftSource.COUNTERS
            return Counters(
                drafting=drafting,
                source=source,
                finished_requests=metrics.count(*FINISHED),
                prompt_tokens=metrics.count(*PROMPT_TOKENS),
                generated_tokens=metrics.count(*GENERATED_TOKENS),
                decode_s=metrics.sum(*DECODE_SECONDS) if kind in TIMED else None,
                decode_steps=metrics.count(*DECODE_STEPS) if kind in TIMED else None,
                started_at_s=started[0] if started else None,
                running_requests=metrics.count(*RUNNING),
            )
        except (ValueError, OverflowError):
            return None

    def _drafting(self, metrics: Metrics) -> tuple[DraftSource, Drafting | None]:
        if metrics.kind is EngineKind.TENSORRT_LLM:
            return self._tensorrt_llm(metrics)
        if metrics.kind in TIMED:
            return DraftSource.COUNTERS, _counted(metrics)
        drafting = self._sglang(metrics) if metrics.kind is EngineKind.SGLANG else _tgi_drafting(metrics)
        return DraftSource.COUNTERS if drafting else DraftSource.NOTHING, drafting

    def _sglang(self, metrics: Metrics) -> Drafting | None:
        n_rounds = metrics.count("spec_verify_calls_total")
        if n_rounds is None:
            return None
        each = self.speculation.draft_tokens if self.speculation else None
        n_decoded = (metrics.count(*GENERATED_TOKENS) or 0) - (metrics.count(*FINISHED) or 0)
        return Drafting(
            drafts=n_rounds,
            draft_tokens=None if each is None else each * n_rounds,
            accepted_tokens=max(0, n_decoded - n_rounds),
        )

    def _tensorrt_llm(self, metrics: Metrics) -> tuple[DraftSource, Drafting | None]:
        # counted over finished requests, else over iterations; else as the statistics of iterations say
        for names in (("drafted_tokens", "accepted_tokens"), ("num_draft_tokens", "num_accepted_tokens")):
            drafted, accepted = (metrics.count(f"spec_decode_{name}_total") for name in names)
            if drafted is not None:
                return DraftSource.COUNTERS, Drafting(draft_tokens=drafted, accepted_tokens=accepted or 0)
        for iteration in metrics.iterations or ():
            stats = iteration.get("specDecodingStats")
            if isinstance(stats, dict) and not iteration.get("attentionDpRank"):  # other ranks say the same again
                self._added = (self._added or Drafting()) + Drafting(
                    drafts=_whole(stats.get("numRequestsWithDraftTokens")) or 0,
                    draft_tokens=_whole(stats.get("numDraftTokens")) or 0,
                    accepted_tokens=_whole(stats.get("numAcceptedTokens")) or 0,
                )
        return (DraftSource.STATISTICS if self._added else DraftSource.NOTHING), self._added

    async def _described(self, card: Mapping[str, Any], metrics: Metrics) -> Engine:
        owner = card.get("owned_by")
        version, props, server, info = await asyncio.gather(
            self._object("version"), self._object("props"), self._server_info(owner), self._object("info")
        )
        if owner == "vllm" or "vllm_config" in server:
            engine = vllm_engine(card, version, server)
            return replace(engine, kv_cache_tokens=engine.kv_cache_tokens or _cache_tokens(metrics))
        if "default_generation_settings" in props or owner == "llamacpp":
            return _llama_engine(card, props)
        if owner == "sglang" or "speculative_algorithm" in server or metrics.kind is EngineKind.SGLANG:
            model_info = await self._object("get_model_info") or await self._object("model_info")
            self.speculation = _sglang_speculation(server)
            return _sglang_engine(card, server, model_info, metrics)
        if owner == "tensorrt_llm" or metrics.kind is EngineKind.TENSORRT_LLM:
            enabled = metrics.settings.get("speculative_config.spec_enabled")
            self.speculation = None if enabled is None else Speculation(enabled.lower() == "true")
            return _tensorrt_llm_engine(version, metrics, self.speculation)
        if metrics.kind is EngineKind.TGI or "model_sha" in info:
            return Engine(
                kind=EngineKind.TGI,
                version=_text(info.get("version")),
                model_root=_text(info.get("model_id")),
                max_model_len=_whole(info.get("max_total_tokens")),
                config=dict(_flat(info)),
            )
        return Engine(kind=EngineKind.UNKNOWN, max_model_len=_whole(card.get("max_model_len")))

    async def _metrics(self) -> Metrics | None:
        exchange = await self._get("metrics")
        if isinstance(exchange, Failure) or exchange.status != 200:
            return None
        metrics = read_metrics(exchange.body)
        if metrics.iterations is not None and not isinstance(
            exchange := await self._get("prometheus/metrics"), Failure
        ):
            beside = read_metrics(exchange.body)
            return replace(beside, iterations=metrics.iterations) if beside.kind is metrics.kind else metrics
        return metrics

    async def _get(self, route: str) -> Exchange | Failure:
        try:
            return await self._transport.send("GET", f"{self._root}/{route}", timeout_s=SLOW_PROBE_TIMEOUT_S)
        except Failure as failure:
            return failure

    async def _server_info(self, owner: object) -> Mapping[str, Any]:
        exchange = await self._get("server_info?config_format=json")
        if owner in ("sglang", None) and (isinstance(exchange, Failure) or not exchange.object()):
            exchange = await self._get("get_server_info")
        if isinstance(exchange, Failure) and owner in ("vllm", "sglang"):
            # for closed it would be taken otherwise, and nothing be compared
            raise EndpointUnreachable(
                f"{self._root}/server_info does not answer: {exchange.message}",
                hint="Try again when the server is less busy: its configuration is compared, unless it is closed (404)",
            )
        return {} if isinstance(exchange, Failure) else exchange.object()

    async def _object(self, route: str) -> Mapping[str, Any]:
        return await self._transport.get_object(f"{self._root}/{route}")


def _tgi_drafting(metrics: Metrics) -> Drafting | None:
    # every step of decoding counts as a round: TGI drafts in each, if it does
    accepted, steps = (metrics.count(f"request_skipped_tokens_{part}") for part in ("sum", "count"))
    if accepted is None or steps is None:
        return None
    n_rounds = max(0, steps - (metrics.count(*FINISHED) or 0))
    return Drafting(drafts=n_rounds, draft_tokens=None, accepted_tokens=accepted)


def _counted(metrics: Metrics) -> Drafting | None:
    names = ("drafts", "draft_tokens", "accepted_tokens")
    drafts, drafted, accepted = (metrics.count(f"spec_decode_num_{name}_total") for name in names)
    if drafts is None:  # vLLM without a drafter
        return None
    by_position = metrics.samples.get("spec_decode_num_accepted_tokens_per_pos_total", {})
    return Drafting(
        drafts=drafts,
        draft_tokens=drafted or 0,
        accepted_tokens=accepted or 0,
        accepted_at=tuple(round(sum(by_position[position])) for position in sorted(by_position, key=int)),
    )


def _cache_tokens(metrics: Metrics) -> int | None:
    # SGLang's, TensorRT-LLM's and vLLM's metrics tell
    tokens = metrics.sum("max_total_num_tokens")
    blocks, size = metrics.sum("kv_cache_max_blocks"), metrics.sum("kv_cache_tokens_per_block")
    if n_engines := metrics.sum("cache_config_info"):  # of which old versions tell blocks alone
        names = ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
        told = (metrics.settings.get(f"cache_config.{name}", "") for name in names)
        whole, blocks, size = (int(text) if text.isdecimal() else 0 for text in told)
        tokens, blocks = n_engines * whole or None, n_engines * blocks
    for iteration in metrics.iterations or ():
        stats = iteration.get("kvCacheStats")
        if isinstance(stats, dict):
            blocks, size = _whole(stats.get("maxNumBlocks")), _whole(stats.get("tokensPerBlock"))
    tokens = blocks * size if tokens is None and blocks and size else tokens
    return round(tokens) if tokens and isfinite(tokens) else None


def vllm_engine(card: Mapping[str, Any], version: Mapping[str, Any], server: Mapping[str, Any]) -> Engine:
    """Describe a vLLM server by its model card, /version and /server_info."""
    vllm_config = server.get("vllm_config") or {}
    config = dict(_flat(vllm_config))
    for part in ("vllm_env", "system_env"):
        config |= dict(_flat(server.get(part) or {}, part))
    drafter = vllm_config.get("speculative_config") or {}
    return Engine(
        kind=EngineKind.VLLM,
        version=_text(version.get("version")),
        model_root=_text(card.get("root")),
        max_model_len=_whole(card.get("max_model_len")),
        kv_cache_tokens=_whole(vllm_config.get("cache_config", {}).get("kv_cache_size_tokens")),
        drafter=_drafter(*(drafter.get(name) for name in ("method", "model", "num_speculative_tokens"))),
        config=config,
    )


def _llama_engine(card: Mapping[str, Any], props: Mapping[str, Any]) -> Engine:
    meta = card.get("meta") or {}
    settings = props.get("default_generation_settings") or {}
    # llama.cpp tells no drafter, and some builds no version: who starts it may, as --tags "drafter=eagle3"
    tags = dict(tag.split("=", 1) for tag in map(_text, card.get("tags") or ()) if "=" in tag)
    return Engine(
        kind=EngineKind.LLAMA_CPP,
        version=tags.get("version") or _text(props.get("build_info")),
        drafter=tags.get("drafter", ""),
        model_root=_text(props.get("model_path")),
        max_model_len=_whole(settings.get("n_ctx")) or _whole(meta.get("n_ctx")),
        config=dict(_flat(props, hidden=LLAMA_HIDDEN)) | dict(_flat(meta, "meta")),
    )


def _sglang_engine(
    card: Mapping[str, Any], server: Mapping[str, Any], model_info: Mapping[str, Any], metrics: Metrics
) -> Engine:
    speculation = _sglang_speculation(server)
    names = (f"speculative_{name}" for name in ("algorithm", "draft_model_path", "num_draft_tokens"))
    drafter = _drafter(*(server.get(name) for name in names))
    return Engine(
        kind=EngineKind.SGLANG,
        version=_text(server.get("version")),
        model_root=_text(server.get("model_path")) or _text(model_info.get("model_path")) or _text(card.get("root")),
        max_model_len=_whole(card.get("max_model_len")) or _whole(server.get("context_length")),
        kv_cache_tokens=_whole(server.get("max_total_num_tokens")) or _cache_tokens(metrics),
        drafter=drafter if speculation and speculation.is_on else "",
        config=dict(_flat(server, hidden=SGLANG_HIDDEN)) | dict(_flat(model_info, "model_info")),
    )


def _sglang_speculation(server: Mapping[str, Any]) -> Speculation | None:
    # one token of each round is the model's own, the others are drafted
    if "speculative_algorithm" not in server:
        return None
    is_on = str(server["speculative_algorithm"] or "").lower() not in ("", "none")
    width = None if server.get("speculative_adaptive") else _whole(server.get("speculative_num_draft_tokens"))
    return Speculation(is_on, None if width is None else width - 1)


def _tensorrt_llm_engine(version: Mapping[str, Any], metrics: Metrics, speculation: Speculation | None) -> Engine:
    settings = metrics.settings
    names = (f"speculative_config.spec_{name}" for name in ("method", "draft_model", "num_tokens"))
    drafter = _drafter(*(settings.get(name) for name in names))
    length = settings.get("model_config.max_model_len", "")
    return Engine(
        kind=EngineKind.TENSORRT_LLM,
        version=_text(version.get("version")),
        model_root=settings.get("model_config.model", ""),
        max_model_len=int(length) or None if length.isdecimal() else None,
        kv_cache_tokens=_cache_tokens(metrics),
        drafter=drafter if speculation and speculation.is_on else "",
        config=settings,
    )


def _drafter(method: object, model: object, n_tokens: object) -> str:
    # as "ngram, 4 tokens"; empty where nothing names a drafter
    named = " ".join(dict.fromkeys(name for name in map(_text, (method, model)) if name and name.lower() != "none"))
    return f"{named}, {n_tokens} tokens" if named and n_tokens else named


def _flat(value: Any, prefix: str = "", hidden: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    # leaves of nested objects by dotted names; anything else as its JSON
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in hidden:
                yield from _flat(inner, f"{prefix}.{name}" if prefix else str(name))
    elif prefix:
        yield prefix, value if isinstance(value, str) else orjson.dumps(value).decode()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
