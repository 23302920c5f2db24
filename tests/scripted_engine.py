"""What an engine says of itself and of its drafter, as recorded from vLLM 0.32 and llama.cpp, and how it fails.

SGLang, TensorRT-LLM and TGI say what their sources make them say. The files lie in tests/endpoints/recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "endpoints" / "recorded"
SPEC_TOKENS, ACCEPTED = 3, 2
"""Draft tokens a round, and those of them that are accepted."""
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
SPEC_DECODE_REFUSES = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."


@dataclass(kw_only=True)
class EngineScript:
    """How an engine is set up, and what is wrong with it. The default is a healthy vLLM that tells what it tells."""

    kind: str = "vllm"  # or "llama", "sglang", "tensorrt_llm", "tgi"
    has_metrics: bool = True
    has_server_info: bool = False  # vLLM's is closed unless the server is in development mode
    has_iterations: bool = True  # TensorRT-LLM's enable_iter_perf_stats
    has_prometheus: bool = False  # TensorRT-LLM's return_perf_metrics, in versions that count drafts
    tells: bool = False
    """Whether each answer says what was drafted (vLLM's --per-request-spec-decode-metrics; llama.cpp always does)."""
    config: Mapping[str, Any] = field(default_factory=dict)  # other settings than the recorded ones, by dotted name
    instance_id: str = ""
    fingerprints: tuple[str, ...] = ()  # of the replicas behind the URL, in turn
    fallback: str = ""  # another model that answers from `fallback_from` generations on, as behind a router
    fallback_from: int = 0
    engines: int = 1  # of one server (data parallel), which count each for itself
    model_name: str = ""  # in the metrics; that of the server where it is empty
    started_at_s: float = 1_795_974_608.36
    step_s: float | None = None  # how long a step takes; None for an engine that does not tell
    counts_from: int = 0  # generations from which on SGLang counts rounds
    is_dead: bool = False  # there is a drafter, and it never drafts
    dead_beyond: int | None = None  # prompt tokens
    dead_for: str = ""  # nothing is drafted for prompts that hold this text
    restart_at: int | None = None  # generations after which the process starts anew
    restart_at_finished: int | None = None  # requests of any kind after which it starts anew
    foreign_every: int | None = None  # somebody else's request is finished after so many generations
    untokenized: str = ""  # a text that holds this cannot be tokenized
    slowly_tokenized: str = ""  # the tokens of a text that holds this take a minute
    settings: tuple[str, ...] = ()
    """Settings of a request that its OpenAPI document names; none is published where there is none."""
    rejects: tuple[str, ...] = ()  # settings of a request that get a 400


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
        self.rounds = self.finished = self.prompt_tokens = self.generated_tokens = self.steps = 0

    def generated(self, prompt: str, *, prompt_tokens: int, completion_tokens: int) -> int:
        """Counts a generation; returns how often was drafted for it."""
        script, rounds = self.script, 0
        if self._drafts_for(prompt, prompt_tokens):
            rounds = -(-max(0, completion_tokens - 1) // (1 + ACCEPTED))
        self.n_generated += 1
        if script.kind == "tensorrt_llm":
            iteration = recorded_object("tensorrt_llm_iteration.json")
            drafting = iteration.pop("specDecodingStats")
            drafting |= {"numAcceptedTokens": ACCEPTED, "acceptanceLength": 1.0 + ACCEPTED}
            drafted = [iteration | {"specDecodingStats": drafting}] * rounds
            self.iterations += drafted if self.drafts else [iteration]
        if self.n_generated == script.restart_at:
            self._restart()
        self.rounds += rounds
        self.steps += rounds or max(0, completion_tokens - 1)
        if script.foreign_every and self.n_generated % script.foreign_every == 0:
            self.count(prompt_tokens=17, completion_tokens=5)
        return rounds

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

    def told(self, rounds: int, *, completion_tokens: int) -> dict[str, Any]:
        """The part of an answer that tells of drafting."""
        if self.script.kind in ("sglang", "tensorrt_llm", "tgi"):
            return {}
        if self.script.kind == "llama":
            timings = {"cache_n": 0, "prompt_n": 8, "prompt_ms": 4.2, "predicted_n": completion_tokens}
            drafted = {"draft_n": SPEC_TOKENS * rounds, "draft_n_accepted": ACCEPTED * rounds} if rounds else {}
            return {"timings": timings | drafted}
        if not self.drafts or not self.script.tells:
            return {"metrics": None}
        spec = {
            "mean_acceptance_length": 1.0 + ACCEPTED if rounds else 1.0,
            "draft_acceptance_rate": ACCEPTED / SPEC_TOKENS if rounds else 0.0,
            "acceptance_histogram": [rounds * (n == ACCEPTED) for n in range(SPEC_TOKENS + 1)],
            "num_spec_steps": rounds,
            "num_accepted_draft_tokens": ACCEPTED * rounds,
            "num_draft_tokens": SPEC_TOKENS * rounds,
            "num_spec_tokens": SPEC_TOKENS,
        }
        return {"metrics": {"time_to_first_token_ms": 12.5, "speculative_decoding": spec}}

    def metrics(self) -> str:
        """/metrics in Prometheus' text format."""
        if self.script.kind == "tensorrt_llm":
            unread, self.iterations = self.iterations if self.script.has_iterations else [], []
            return json.dumps(unread)
        lines = getattr(self, f"_{self.script.kind}_metrics")()
        return "\n".join([*lines, ""])

    @property
    def answering(self) -> str:
        """The model that an answer names."""
        is_other = self.script.fallback and self.n_generated >= self.script.fallback_from
        return self.script.fallback if is_other else self.model

    def _sglang_metrics(self) -> list[str]:
        labels, rounds = f'model_name="{self.model}"', self.rounds
        # a request's first token is the prompt's, and every round yields one of the model's own
        generated = self.finished + rounds + ACCEPTED * rounds if self.drafts else self.generated_tokens
        values = {
            "prompt_tokens_total": self.prompt_tokens,
            "generation_tokens_total": generated,
            "num_requests_total": self.finished,
        }
        if rounds and self.n_generated >= self.script.counts_from:
            values["spec_verify_calls_total"] = rounds
        return [f"sglang:{name}{{{labels}}} {value}" for name, value in values.items()]

    def _tgi_metrics(self) -> list[str]:
        values = {
            "success": self.finished,
            "skipped_tokens_sum": ACCEPTED * self.rounds,
            "skipped_tokens_count": self.finished + self.steps,
            "input_length_sum": self.prompt_tokens,
            "generated_tokens_sum": self.generated_tokens,
        }
        return [f"tgi_request_{name} {value}" for name, value in values.items()]

    def prometheus(self) -> str:
        labels, rounds = f'model_name="{self.model}"', self.rounds
        counts = {"prompt_tokens": self.prompt_tokens, "generation_tokens": self.generated_tokens}
        if rounds:
            counts |= {
                "spec_decode_drafted_tokens": SPEC_TOKENS * rounds,
                "spec_decode_accepted_tokens": ACCEPTED * rounds,
            }
        lines = [f"trtllm_{name}_total{{{labels}}} {count}.0" for name, count in counts.items()]
        lines += [f'trtllm_request_success_total{{{labels},finished_reason="stop"}} {self.finished}.0']
        drafter = f'spec_enabled="{str(self.drafts).lower()}"'
        drafter += ',spec_method="Eagle",spec_num_tokens="3"' if self.drafts else ""
        lines += [f"trtllm_speculative_config_info{{{labels},{drafter}}} 1.0"]
        settings = {"model": self.model, "dtype": "bfloat16", **self.script.config}
        told = ",".join(f'{name}="{value}"' for name, value in settings.items())
        return "\n".join([*lines, f"trtllm_model_config_info{{{labels},{told}}} 1.0"]) + "\n"

    def routes(self) -> dict[str, Any]:
        """What its own GET routes say, or what says it; /metrics is the server's."""
        script, arm = self.script, "on" if self.drafts else "off"
        if script.kind == "llama":
            return {"/props": recorded_object(f"llama_{arm}_props.json")}
        if script.kind == "sglang":
            told = recorded_object(f"sglang_{arm}_server_info.json") | dict(script.config)
            return {"/get_server_info": told, "/get_model_info": recorded_object("sglang_model_info.json")}
        if script.kind == "tensorrt_llm":
            beside = {"/prometheus/metrics": self.prometheus} if script.has_prometheus else {}
            return {"/version": {"version": "1.2.0"}, **beside}
        if script.kind == "tgi":
            return {"/info": recorded_object("tgi_info.json")}
        info = {"/server_info": self._server_info} if script.has_server_info else {}
        return {"/version": {"version": "0.11.0"}, **info}

    def _vllm_metrics(self) -> list[str]:
        rounds, script = self.rounds, self.script
        counts = [("prompt_tokens", "", self.prompt_tokens), ("generation_tokens", "", self.generated_tokens)]
        for reason in FINISH_REASONS:
            counts.append(("request_success", f',finished_reason="{reason}"', self.finished * (reason == "stop")))
        if self.drafts:
            counts.append(("spec_decode_num_drafts", "", rounds))
            counts.append(("spec_decode_num_draft_tokens", "", SPEC_TOKENS * rounds))
            counts.append(("spec_decode_num_accepted_tokens", "", ACCEPTED * rounds))
            for position, count in enumerate(self.survival):
                counts.append(("spec_decode_num_accepted_tokens_per_pos", f',position="{position}"', count))
        lines = [f"process_start_time_seconds {self.started_at_s}"]
        for engine in range(script.engines):  # they take turns
            labels = f'engine="{engine}",model_name="{script.model_name or self.model}"'
            lines += [f"vllm:num_requests_running{{{labels}}} 0.0"]
            if script.step_s is not None:
                steps, name = (self.steps + engine) // script.engines, "vllm:inter_token_latency_seconds"
                lines += [f"{name}_count{{{labels}}} {steps}.0", f"{name}_sum{{{labels}}} {steps * script.step_s}"]
            for name, more, count in counts:
                lines += [f"vllm:{name}_total{{{labels}{more}}} {(count + engine) // script.engines}.0"]
                lines += [f"vllm:{name}_created{{{labels}{more}}} 1.7959746720416389e+09"]
        return lines

    @property
    def survival(self) -> list[int]:
        return [self.rounds] * ACCEPTED + [0] * (SPEC_TOKENS - ACCEPTED)

    def _llama_metrics(self) -> list[str]:
        rounds = self.rounds
        counts = {
            "prompt_tokens": self.prompt_tokens,
            "tokens_predicted": self.generated_tokens,
            "spec_decode_num_draft_tokens": SPEC_TOKENS * rounds,
            "spec_decode_num_accepted_tokens": ACCEPTED * rounds,
            "spec_decode_num_drafts": rounds,
        }
        lines = [f"llamacpp:{name}_total {count}" for name, count in counts.items()]
        if self.script.step_s is not None:
            lines.append(f"llamacpp:tokens_predicted_seconds_total {self.steps * self.script.step_s}")
        name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
        per_position = enumerate(self.survival if self.drafts else [])
        return lines + [f'{name}{{position="{position}"}} {count}' for position, count in per_position]

    def _server_info(self) -> dict[str, Any]:
        told = recorded_object(f"vllm_{'on' if self.drafts else 'off'}_server_info.json")
        for name, value in self.script.config.items():
            *path, last = name.split(".")
            reduce(getitem, path, told["vllm_config"])[last] = value
        if self.script.instance_id:
            told["vllm_config"]["instance_id"] = self.script.instance_id
        return told


def recorded_object(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(recorded(name))
    return told


@cache
def recorded(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


LLAMA, SGLANG, TENSORRT_LLM, TGI = (EngineScript(kind=kind) for kind in ("llama", "sglang", "tensorrt_llm", "tgi"))
PROMETHEUS = EngineScript(kind="tensorrt_llm", has_prometheus=True)
OTHERS = (SGLANG, TENSORRT_LLM, PROMETHEUS, TGI)
OPEN = EngineScript(has_server_info=True)
"""A vLLM that tells its configuration."""
