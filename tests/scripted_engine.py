"""What an engine says of itself and of its drafter, as recorded from vLLM 0.32 and llama.cpp, and how it fails.

SGLang, TensorRT-LLM and TGI say what their sources make them say. The files lie in tests/endpoints/recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "endpoints" / "recorded"
SPEC_TOKENS = 3
"""Draft tokens a round."""
ACCEPTED = 2
"""Those of a round that are accepted."""
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
SPEC_DECODE_REFUSES = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."


@dataclass(kw_only=True)
class EngineScript:
    """How an engine is set up, and what is wrong with it. The default is a healthy vLLM that tells what it tells."""

    kind: str = "vllm"
    """Or "llama", "sglang", "tensorrt_llm", "tgi"."""
    counts_from: int = 0
    """Generations from which on SGLang counts rounds."""
    has_iterations: bool = True
    """TensorRT-LLM's enable_iter_perf_stats."""
    has_prometheus: bool = False
    """TensorRT-LLM's return_perf_metrics, in versions that count drafts."""
    fallback: str = ""
    """Another model that answers from `fallback_from` generations on, as behind a router."""
    fallback_from: int = 0
    has_metrics: bool = True
    has_server_info: bool = False
    """vLLM's is closed unless the server is in development mode."""
    tells: bool = False
    """Whether each answer says what was drafted (vLLM's --per-request-spec-decode-metrics; llama.cpp always does)."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Other settings than the recorded ones, by dotted name."""
    instance_id: str = ""
    fingerprints: tuple[str, ...] = ()
    """Of the replicas behind the URL, in turn."""
    engines: int = 1
    """Engines of one server (data parallel), which count each for itself."""
    model_name: str = ""
    """In the metrics; that of the server where it is empty."""
    started_at_s: float = 1_795_974_608.36
    step_s: float | None = None
    """How long a step takes; None for an engine that does not tell."""
    is_dead: bool = False
    """There is a drafter, and it never drafts."""
    dead_beyond: int | None = None
    """Prompt tokens."""
    dead_for: str = ""
    """Nothing is drafted for prompts that hold this text."""
    restart_at: int | None = None
    """The process starts anew after so many generations."""
    restart_at_finished: int | None = None
    """The process starts anew after so many requests of any kind."""
    foreign_every: int | None = None
    """Somebody else's request is finished after so many generations."""
    untokenized: str = ""
    """A text that holds this cannot be tokenized."""
    slowly_tokenized: str = ""
    """The tokens of a text that holds this take a minute."""
    settings: tuple[str, ...] = ()
    """Settings of a request that its OpenAPI document names; none is published where there is none."""
    rejects: tuple[str, ...] = ()
    """Settings of a request that get a 400."""


@dataclass(kw_only=True)
class Rounds:
    """What was drafted for one answer, or since the process started."""

    drafts: int = 0
    accepted: int = 0
    histogram: list[int] = field(default_factory=lambda: [0] * (SPEC_TOKENS + 1))

    def add(self, n_rounds: int, accepted: int) -> None:
        self.drafts += n_rounds
        self.accepted += n_rounds * accepted
        self.histogram[accepted] += n_rounds

    @property
    def draft_tokens(self) -> int:
        return SPEC_TOKENS * self.drafts

    @property
    def survival(self) -> list[int]:
        return [sum(self.histogram[position:]) for position in range(1, SPEC_TOKENS + 1)]


class ScriptedEngine:
    """Counts what its server answers."""

    def __init__(self, script: EngineScript, *, drafts: bool, model: str) -> None:
        self.script = script
        self.drafts = drafts
        self.model = model
        self.started_at_s = script.started_at_s
        self.n_generated = self.n_finished = 0
        self.iterations: list[dict[str, Any]] = []
        """TensorRT-LLM's, which nobody has read yet."""
        self._begin()

    def _begin(self) -> None:
        self.rounds = Rounds()
        self.finished = self.prompt_tokens = self.generated_tokens = self.steps = 0

    def generated(self, prompt: str, *, prompt_tokens: int, completion_tokens: int) -> Rounds:
        """Counts a generation; returns what was drafted for it."""
        script, one = self.script, Rounds()
        if self._drafts_for(prompt, prompt_tokens):
            one.add(-(-max(0, completion_tokens - 1) // (1 + ACCEPTED)), ACCEPTED)
        self.n_generated += 1
        self.iterations += self._iterations(one)
        if self.n_generated == script.restart_at:
            self._restart()
        self.rounds.add(one.drafts, ACCEPTED)
        self.steps += one.drafts or max(0, completion_tokens - 1)
        if script.foreign_every and self.n_generated % script.foreign_every == 0:
            self.count(prompt_tokens=17, completion_tokens=5)
        return one

    def _iterations(self, one: Rounds) -> list[dict[str, Any]]:
        """Those of a generation: with a drafter each says what was drafted in it."""
        told = _recorded_object("tensorrt_llm_iteration.json")
        drafting = told.pop("specDecodingStats")
        accepted = {"numAcceptedTokens": ACCEPTED, "acceptanceLength": 1.0 + ACCEPTED}
        drafted = {**told, "specDecodingStats": drafting | accepted}
        return [drafted] * one.drafts if self.drafts else [told]

    def _restart(self) -> None:
        self.started_at_s += 100.0
        self._begin()

    def _drafts_for(self, prompt: str, prompt_tokens: int) -> bool:
        script = self.script
        is_beyond = script.dead_beyond is not None and prompt_tokens >= script.dead_beyond
        is_silent = bool(script.dead_for) and script.dead_for in prompt
        return self.drafts and not script.is_dead and not is_beyond and not is_silent

    def count(self, *, prompt_tokens: int, completion_tokens: int) -> None:
        """Counts a finished request of any kind."""
        self.n_finished += 1
        if self.n_finished == self.script.restart_at_finished:
            self._restart()
        self.finished += 1
        self.prompt_tokens += prompt_tokens
        self.generated_tokens += completion_tokens

    @property
    def fingerprint(self) -> str | None:
        names = self.script.fingerprints
        return names[self.n_generated % len(names)] if names else None

    def told(self, one: Rounds, *, completion_tokens: int) -> dict[str, Any]:
        """The part of an answer that tells of drafting."""
        if self.script.kind in ("sglang", "tensorrt_llm", "tgi"):
            return {}
        if self.script.kind == "llama":
            timings = {"cache_n": 0, "prompt_n": 8, "prompt_ms": 4.2, "predicted_n": completion_tokens}
            drafted = {"draft_n": one.draft_tokens, "draft_n_accepted": one.accepted} if one.drafts else {}
            return {"timings": timings | drafted}
        if not self.drafts or not self.script.tells:
            return {"metrics": None}
        spec = {
            "mean_acceptance_length": 1.0 + one.accepted / one.drafts if one.drafts else 1.0,
            "draft_acceptance_rate": one.accepted / one.draft_tokens if one.drafts else 0.0,
            "acceptance_histogram": one.histogram,
            "num_spec_steps": one.drafts,
            "num_accepted_draft_tokens": one.accepted,
            "num_draft_tokens": one.draft_tokens,
            "num_spec_tokens": SPEC_TOKENS,
        }
        return {"metrics": {"time_to_first_token_ms": 12.5, "speculative_decoding": spec}}

    def metrics(self) -> str:
        """/metrics in Prometheus' text format."""
        if self.script.kind == "tensorrt_llm":
            unread, self.iterations = self.iterations if self.script.has_iterations else [], []
            return json.dumps(unread)
        makers = {"llama": self._llama_metrics, "sglang": self._sglang_metrics, "tgi": self._tgi_metrics}
        return "\n".join(makers.get(self.script.kind, self._vllm_metrics)()) + "\n"

    @property
    def answering(self) -> str:
        """The model that an answer names."""
        is_other = self.script.fallback and self.n_generated >= self.script.fallback_from
        return self.script.fallback if is_other else self.model

    def _sglang_metrics(self) -> list[str]:
        labels, rounds = f'model_name="{self.model}"', self.rounds
        # a request's first token is the prompt's, and every round yields one of the model's own
        generated = self.finished + rounds.drafts + rounds.accepted if self.drafts else self.generated_tokens
        values = {
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": generated,
            "num_requests_total": self.finished,
        }
        if rounds.drafts and self.n_generated >= self.script.counts_from:
            values["spec_verify_calls_total"] = rounds.drafts
        return [f"sglang:{name}{{{labels}}} {value}" for name, value in values.items()]

    def _tgi_metrics(self) -> list[str]:
        values = {
            "success": self.finished,
            "skipped_tokens_sum": self.rounds.accepted,
            "skipped_tokens_count": self.finished + self.steps,
            "input_length_sum": self.prompt_tokens,
            "generated_tokens_sum": self.generated_tokens,
        }
        return [f"tgi_request_{name} {value}" for name, value in values.items()]

    def prometheus(self) -> str:
        labels, rounds = f'model_name="{self.model}"', self.rounds
        counts = {"prompt_tokens": self.prompt_tokens, "generation_tokens": self.generated_tokens}
        if rounds.drafts:
            counts |= {
                "spec_decode_drafted_tokens": rounds.draft_tokens,
                "spec_decode_accepted_tokens": rounds.accepted,
            }
        lines = [f"trtllm_{name}_total{{{labels}}} {count}.0" for name, count in counts.items()]
        lines += [f'trtllm_request_success_total{{{labels},finished_reason="stop"}} {self.finished}.0']
        drafter = (
            'spec_enabled="true",spec_method="Eagle",spec_num_tokens="3"' if self.drafts else 'spec_enabled="false"'
        )
        lines += [f"trtllm_speculative_config_info{{{labels},{drafter}}} 1.0"]
        settings = {"model": self.model, "dtype": "bfloat16", **self.script.config}
        told = ",".join(f'{name}="{value}"' for name, value in settings.items())
        return "\n".join([*lines, f"trtllm_model_config_info{{{labels},{told}}} 1.0"]) + "\n"

    def routes(self) -> dict[str, Callable[[], Any]]:
        """What its own GET routes say; /metrics is the server's."""
        script, arm = self.script, "on" if self.drafts else "off"
        if script.kind == "llama":
            return {"/props": lambda: _recorded_object(f"llama_{arm}_props.json")}
        if script.kind == "sglang":
            return {
                "/get_server_info": lambda: _recorded_object(f"sglang_{arm}_server_info.json") | dict(script.config),
                "/get_model_info": lambda: _recorded_object("sglang_model_info.json"),
            }
        if script.kind == "tensorrt_llm":
            beside = {"/prometheus/metrics": self.prometheus} if script.has_prometheus else {}
            return {"/version": lambda: {"version": "1.2.0"}, **beside}
        if script.kind == "tgi":
            return {"/info": lambda: _recorded_object("tgi_info.json")}
        return {
            "/version": lambda: {"version": "0.11.0"},
            "/tokenizer_info": lambda: {"tokenizer_class": "Scripted", "eos_token": "</s>"},
            **({"/server_info": self._server_info} if script.has_server_info else {}),
        }

    def _vllm_metrics(self) -> list[str]:
        lines = [f"process_start_time_seconds {self.started_at_s}"]
        for engine in range(self.script.engines):
            labels = f'engine="{engine}",model_name="{self.script.model_name or self.model}"'
            lines += [f"vllm:num_requests_running{{{labels}}} 0.0"]
            lines += self._vllm_drafts(engine, labels) if self.drafts else []
            lines += self._vllm_steps(engine, labels) if self.script.step_s is not None else []
            lines += _counter("prompt_tokens", labels, self._share(self.prompt_tokens, engine))
            lines += _counter("generation_tokens", labels, self._share(self.generated_tokens, engine))
            for reason in FINISH_REASONS:
                finished = self._share(self.finished, engine) if reason == "stop" else 0
                lines += _counter("request_success", f'{labels},finished_reason="{reason}"', finished)
        return lines

    def _vllm_steps(self, engine: int, labels: str) -> list[str]:
        steps, name = self._share(self.steps, engine), "vllm:inter_token_latency_seconds"
        return [f"{name}_count{{{labels}}} {steps}.0", f"{name}_sum{{{labels}}} {steps * (self.script.step_s or 0.0)}"]

    def _vllm_drafts(self, engine: int, labels: str) -> list[str]:
        rounds = self.rounds
        lines = _counter("spec_decode_num_drafts", labels, self._share(rounds.drafts, engine))
        lines += _counter("spec_decode_num_draft_tokens", labels, self._share(rounds.draft_tokens, engine))
        lines += _counter("spec_decode_num_accepted_tokens", labels, self._share(rounds.accepted, engine))
        for position, count in enumerate(rounds.survival):
            at = f'{labels},position="{position}"'
            lines += _counter("spec_decode_num_accepted_tokens_per_pos", at, self._share(count, engine))
        return lines

    def _share(self, count: int, engine: int) -> int:
        """The engines take turns."""
        return (count + engine) // self.script.engines

    def _llama_metrics(self) -> list[str]:
        rounds = self.rounds
        counts = {
            "prompt_tokens": self.prompt_tokens,
            "tokens_predicted": self.generated_tokens,
            "spec_decode_num_draft_tokens": rounds.draft_tokens,
            "spec_decode_num_accepted_tokens": rounds.accepted,
            "spec_decode_num_drafts": rounds.drafts,
        }
        lines = [f"llamacpp:{name}_total {count}" for name, count in counts.items()]
        if self.script.step_s is not None:
            lines.append(f"llamacpp:tokens_predicted_seconds_total {self.steps * self.script.step_s}")
        per_position = enumerate(rounds.survival if self.drafts else [])
        return lines + [
            f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}} {count}'
            for position, count in per_position
        ]

    def _server_info(self) -> dict[str, Any]:
        told = _recorded_object(f"vllm_{'on' if self.drafts else 'off'}_server_info.json")
        for name, value in self.script.config.items():
            *path, last = name.split(".")
            part = told["vllm_config"]
            for step in path:
                part = part[step]
            part[last] = value
        if self.script.instance_id:
            told["vllm_config"]["instance_id"] = self.script.instance_id
        return told

    def refusal(self, body: Mapping[str, Any]) -> str:
        """Why a request is rejected; empty where it is not."""
        return SPEC_DECODE_REFUSES if any(body.get(name) for name in self.script.rejects) else ""


def _counter(name: str, labels: str, value: int) -> list[str]:
    """A counter, and beside it the gauge that says since when it counts."""
    return [f"vllm:{name}_total{{{labels}}} {value}.0", f"vllm:{name}_created{{{labels}}} 1.7959746720416389e+09"]


def _recorded_object(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(_recorded(name))
    return told


@cache
def _recorded(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


LLAMA, SGLANG, TENSORRT_LLM, TGI = (EngineScript(kind=kind) for kind in ("llama", "sglang", "tensorrt_llm", "tgi"))
PROMETHEUS = EngineScript(kind="tensorrt_llm", has_prometheus=True)
OTHERS = (SGLANG, TENSORRT_LLM, PROMETHEUS, TGI)
OPEN = EngineScript(has_server_info=True)
"""A vLLM that tells its configuration."""
