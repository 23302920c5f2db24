"""Counters of inference engines: what /metrics says, in Prometheus' text format or as TensorRT-LLM's JSON.

vLLM (0.32; vllm/v1/spec_decode/metrics.py, vllm/v1/metrics/loggers.py): series carry `engine` and `model_name`, and
every engine of a server counts. Without a drafter there is no series of drafts at all. Its inter-token latency has one
entry a request and step (vllm/v1/metrics/stats.py), so that the tokens of a round share one; older versions call it
time_per_output_token. llama.cpp's server has all series always, at 0.

SGLang (observability/metrics_collector.py) counts rounds (`spec_verify_calls_total`, from the first one on), tokens and
requests when a request ends. A request's first token is the prompt's and every round yields one that was not drafted:
accepted tokens are the generated ones less requests and rounds. Older versions count no rounds: they are estimated from
the mean acceptance length, a gauge. Its time between tokens is that of a stream, and is not read.

TensorRT-LLM's /metrics is JSON, a list of iterations since somebody read it last (`enable_iter_perf_stats`); their
`specDecodingStats` are there with a drafter alone. Newer versions count in Prometheus' format beside it
(/prometheus/metrics, `return_perf_metrics`). Names: tensorrt_llm/metrics/collector.py.

TGI (backends/v3/src/backend.rs) adds the tokens that a step yielded beyond one to `tgi_request_skipped_tokens`:
accepted tokens, and neither draft tokens nor whether there is a drafter. A request's first token is a step of its own.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from qualab.endpoints.transport import Exchange, Fault, Transport
from qualab.endpoints.urls import Routes
from qualab.errors import EndpointUnreachable
from qualab.model.engine import Counters, Drafting, DraftSource, Engine, EngineKind

PREFIXES = {
    EngineKind.VLLM: "vllm:",
    EngineKind.LLAMA_CPP: "llamacpp:",
    EngineKind.SGLANG: "sglang:",
    EngineKind.TENSORRT_LLM: "trtllm_",
    EngineKind.TGI: "tgi_",
}
DRAFTS, DRAFT_TOKENS, ACCEPTED, ACCEPTED_AT = (
    f"spec_decode_num_{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
)
BY_REQUEST = ("spec_decode_drafted_tokens_total", "spec_decode_accepted_tokens_total")
"""TensorRT-LLM's own counts of finished requests."""
VERIFIED = "spec_verify_calls_total"
MEAN_LENGTH = "spec_accept_length"
SKIPPED_TOKENS, STEPS = "request_skipped_tokens_sum", "request_skipped_tokens_count"
FINISHED = ("request_success_total", "num_requests_total", "request_success")
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
STARTED = "process_start_time_seconds"
INFO = "_config_info"
"""Ends the names of series whose labels are settings."""

Samples = Mapping[str, Mapping[str, Sequence[float]]]
"""Name -> the label `position` (empty where there is none) -> the values of all other labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What /metrics said, whoever wrote it."""

    kind: EngineKind = EngineKind.UNKNOWN
    samples: Samples = field(default_factory=dict)
    """Without the engine's prefix."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Labels of series that tell settings, as "speculative_config.spec_method" -> "Eagle"."""
    iterations: Sequence[Mapping[str, Any]] | None = None
    """Of TensorRT-LLM, since they were last read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What a configuration says of drafting."""

    is_on: bool
    draft_tokens: int | None = None
    """In each round; None where it varies or is not told."""


def read_metrics(body: bytes) -> Metrics:
    """Prometheus' text or a JSON list of iterations; empty, of an unknown kind, for anything else."""
    if body.lstrip()[:1] == b"[":
        return _iterations(body)
    try:
        families = list(text_string_to_metric_families(body.decode("utf-8", "replace")))
    except (ValueError, OverflowError):  # another format, or numbers that no counter has
        return Metrics()
    names = [sample.name for family in families for sample in family.samples]
    kind = next((kind for kind, prefix in PREFIXES.items() if any(name.startswith(prefix) for name in names)), None)
    if kind is None:
        return Metrics()
    samples: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    settings: dict[str, str] = {}
    for family in families:
        for sample in family.samples:
            name = sample.name.removeprefix(PREFIXES[kind])
            samples[name][sample.labels.get("position", "")].append(sample.value)
            if kind is EngineKind.TENSORRT_LLM and name.endswith(INFO):
                part = name.removesuffix("_info")
                settings |= {f"{part}.{label}": value for label, value in sample.labels.items()}
    return Metrics(kind=kind, samples=samples, settings=settings)


def _iterations(body: bytes) -> Metrics:
    try:
        told = [orjson.loads(one) if isinstance(one, str) else one for one in orjson.loads(body)]
    except orjson.JSONDecodeError:
        return Metrics()
    iterations = [one for one in told if isinstance(one, dict)]
    return Metrics(kind=EngineKind.TENSORRT_LLM, iterations=iterations) if len(iterations) == len(told) else Metrics()


class CounterReader:
    """Makes counters of one server's metrics, which for some engines add to what was read before."""

    def __init__(self) -> None:
        self.speculation: Speculation | None = None
        """As the configuration has it; None where it does not tell, or was not asked."""
        self._rounds = SglangRounds()
        self._added: Drafting | None = None
        """What iterations of TensorRT-LLM told so far."""

    def counters(self, metrics: Metrics) -> Counters | None:
        """None where no engine that is known wrote these. Raises ValueError, OverflowError: no counter's numbers."""
        if metrics.kind is EngineKind.UNKNOWN:
            return None
        own, kind = metrics.samples, metrics.kind
        source, drafting = self._drafting(metrics)
        started = own[STARTED][""][0] if STARTED in own else None
        return Counters(
            drafting=drafting,
            source=source,
            finished_requests=_total(own, *FINISHED),
            prompt_tokens=_total(own, *PROMPT_TOKENS),
            generated_tokens=_total(own, *GENERATED_TOKENS),
            decode_s=_sum(own, *DECODE_SECONDS) if kind in TIMED else None,
            decode_steps=_total(own, *DECODE_STEPS) if kind in TIMED else None,
            started_at_s=started,
        )

    def _drafting(self, metrics: Metrics) -> tuple[DraftSource, Drafting | None]:
        own = metrics.samples
        if metrics.kind is EngineKind.SGLANG:
            source, drafting = self._rounds.read(own, self.speculation)
        elif metrics.kind is EngineKind.TENSORRT_LLM:
            source, drafting = self._tensorrt_llm(metrics)
        elif metrics.kind is EngineKind.TGI:
            drafting = _tgi_drafting(own)
            source = DraftSource.COUNTERS if drafting else DraftSource.NOTHING
        else:
            return DraftSource.COUNTERS, _counted(own)
        if drafting is None and self.speculation and not self.speculation.is_on:
            source = DraftSource.COUNTERS
        return source, drafting

    def _tensorrt_llm(self, metrics: Metrics) -> tuple[DraftSource, Drafting | None]:
        """As counted over finished requests, else over iterations; else as the statistics of iterations say."""
        own = metrics.samples
        for draft_tokens, accepted in (BY_REQUEST, (DRAFT_TOKENS, ACCEPTED)):
            if draft_tokens in own:
                counted = Drafting(
                    draft_tokens=_total(own, draft_tokens) or 0, accepted_tokens=_total(own, accepted) or 0
                )
                return DraftSource.COUNTERS, counted
        for one in metrics.iterations or ():
            told = one.get("specDecodingStats")
            if isinstance(told, dict) and not one.get("attentionDpRank"):  # other ranks say the same again
                self._added = (self._added or Drafting()) + Drafting(
                    drafts=_count(told.get("numRequestsWithDraftTokens")),
                    draft_tokens=_count(told.get("numDraftTokens")),
                    accepted_tokens=_count(told.get("numAcceptedTokens")),
                )
        return (DraftSource.STATISTICS if self._added else DraftSource.NOTHING), self._added


class SglangRounds:
    """Adds up an SGLang server's rounds and accepted tokens from one look to the next."""

    def __init__(self) -> None:
        self._drafting: Drafting | None = None
        self._decoded = self._verified = 0
        self._mean_length = 0.0
        self._estimated = 0.0
        """Rounds, as mean lengths let expect them."""

    def read(self, own: Samples, speculation: Speculation | None) -> tuple[DraftSource, Drafting | None]:
        """Where counts come from, and those since the server started (estimates: since the first look that told)."""
        decoded = max(0, (_total(own, *GENERATED_TOKENS) or 0) - (_total(own, *FINISHED) or 0))
        if decoded < self._decoded:  # the process started anew
            self._drafting, self._decoded, self._verified, self._estimated = None, 0, 0, 0.0
        n_tokens, self._decoded = decoded - self._decoded, decoded
        verified = _total(own, VERIFIED)
        if verified is not None:
            n_rounds, self._verified = verified - self._verified, verified
            return DraftSource.COUNTERS, self._add(n_rounds, n_tokens, speculation)
        lengths = [value for values in own.get(MEAN_LENGTH, {}).values() for value in values if value > 0]
        self._mean_length = sum(lengths) / len(lengths) if lengths else self._mean_length
        if not self._mean_length:
            return DraftSource.NOTHING, None
        before, self._estimated = round(self._estimated), self._estimated + n_tokens / max(1.0, self._mean_length)
        return DraftSource.GAUGES, self._add(round(self._estimated) - before, n_tokens, speculation)

    def _add(self, n_rounds: int, n_tokens: int, speculation: Speculation | None) -> Drafting:
        each = speculation.draft_tokens if speculation else None
        self._drafting = (self._drafting or Drafting()) + Drafting(
            drafts=n_rounds,
            draft_tokens=None if each is None else each * n_rounds,
            accepted_tokens=max(0, n_tokens - n_rounds),
        )
        return self._drafting


def _tgi_drafting(own: Samples) -> Drafting | None:
    """Every step of decoding counts as a round: TGI drafts in each, if it does."""
    accepted, steps = _total(own, SKIPPED_TOKENS), _total(own, STEPS)
    if accepted is None or steps is None:
        return None
    return Drafting(drafts=max(0, steps - (_total(own, *FINISHED) or 0)), draft_tokens=None, accepted_tokens=accepted)


def _counted(own: Samples) -> Drafting | None:
    """As vLLM and llama.cpp count. vLLM before version 1 counted draft tokens, but no drafts."""
    if DRAFTS not in own and DRAFT_TOKENS not in own:
        return None
    by_position = sorted(own.get(ACCEPTED_AT, {}).items(), key=lambda entry: int(entry[0]))
    return Drafting(
        drafts=_total(own, DRAFTS) or 0,
        draft_tokens=_total(own, DRAFT_TOKENS) or 0,
        accepted_tokens=_total(own, ACCEPTED) or 0,
        accepted_at=tuple(round(sum(counts)) for _, counts in by_position),
    )


def cache_tokens(metrics: Metrics) -> int | None:
    """Tokens that the KV cache holds, as far as metrics tell: of SGLang and TensorRT-LLM."""
    tokens = _sum(metrics.samples, "max_total_num_tokens")
    blocks, size = (_sum(metrics.samples, f"kv_cache_{what}") for what in ("max_blocks", "tokens_per_block"))
    for one in metrics.iterations or ():
        told = one.get("kvCacheStats")
        if isinstance(told, dict):
            blocks, size = (_count(told.get(name)) for name in ("maxNumBlocks", "tokensPerBlock"))
    tokens = blocks * size if tokens is None and blocks and size else tokens
    return round(tokens) if tokens and isfinite(tokens) else None


def _total(own: Samples, *names: str) -> int | None:
    found = _sum(own, *names)
    return None if found is None else round(found)


def _sum(own: Samples, *names: str) -> float | None:
    """Of the first of these names that there is; versions and engines call the same thing differently."""
    name = next((name for name in names if name in own), None)
    return None if name is None else sum(sum(values) for values in own[name].values())


def _count(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


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
            model_info = await self._object("get_model_info") or await self._object("model_info")
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
        found = await self._get("metrics")
        if not isinstance(found, Exchange) or found.status != 200:
            return None
        metrics = read_metrics(found.body)
        if metrics.iterations is None or not self._has_prometheus:
            return metrics
        found = await self._get("prometheus/metrics")
        self._has_prometheus = isinstance(found, Fault) or found.status == 200
        if isinstance(found, Fault) or (beside := read_metrics(found.body)).kind is not EngineKind.TENSORRT_LLM:
            return metrics
        return replace(beside, iterations=metrics.iterations)

    async def _get(self, route: str) -> Exchange | Fault:
        return await self._transport.send("GET", f"{self._root}/{route}", timeout_s=SLOW_PROBE_TIMEOUT_S)

    async def _server_info(self, owner: object) -> Mapping[str, Any]:
        found = await self._get("server_info?config_format=json")
        if owner in ("sglang", None) and (isinstance(found, Fault) or not found.object()):
            found = await self._get("get_server_info")
        if isinstance(found, Exchange):
            return found.object()
        if owner in ("vllm", "sglang"):
            # for closed it would be taken otherwise, and nothing be compared
            raise EndpointUnreachable(
                f"{self._root}/server_info does not answer: {found.reason}",
                hint="Try again when the server is less busy: its configuration is compared, unless it is closed (404)",
            )
        return {}

    async def _object(self, route: str) -> Mapping[str, Any]:
        return await self._transport.get_object(f"{self._root}/{route}")


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
