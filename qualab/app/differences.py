"""What differs between two engines, apart from the drafter and what follows from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from qualab.domain.engine import Engine

ABSENT = "(absent)"

FOLLOWS = {
    "speculative_config.*": "the drafter itself",
    "speculative_config": "the drafter itself",
    "cache_config.num_gpu_blocks": "the drafter's weights and cache leave less room for the model's cache",
    "cache_config.kv_cache_size_tokens": "the drafter's weights and cache leave less room for the model's cache",
    "cache_config.kv_cache_max_concurrency": "the drafter's weights and cache leave less room for the model's cache",
    "cache_config.kv_cache_memory_bytes": "the drafter's weights and cache leave less room for the model's cache",
    "scheduler_config.max_num_scheduled_tokens": "room for draft tokens is kept in each step",
    "scheduler_config.async_scheduling": "the engine turns it off for some drafters",
    "parallel_config.disable_nccl_for_dp_synchronization": "set from async_scheduling",
    "compilation_config.cudagraph_capture_sizes": "graphs are captured for a token and its drafts together",
    "compilation_config.max_cudagraph_capture_size": "graphs are captured for a token and its drafts together",
    "max_total_num_tokens": "the drafter's weights and cache leave less room for the model's cache",
    "max_req_input_len": "the drafter's weights and cache leave less room for the model's cache",
    "mem_fraction_static": "the drafter's weights and cache leave less room for the model's cache",
    "max_running_requests": "fewer requests run at once where there is a drafter",
    "disable_overlap_schedule": "the engine turns it off for some drafters",
    "enable_mixed_chunk": "the engine turns it off for some drafters",
    "cuda_graph_*": "graphs are captured for a token and its drafts together",
    "disable_cuda_graph_padding": "graphs are captured for a token and its drafts together",
    "speculative_*": "the drafter itself",
    "observability_config.per_request_spec_decode_metrics": "whether answers say what was drafted",
    "default_generation_settings.params.speculative*": "the drafter itself",
}
"""Settings that differ because one arm has a drafter, and why."""

NAMES_THE_PROCESS = (
    "instance_id",
    "*_config.engine_id",
    "parallel_config.*port*",
    "parallel_config.*_ip",
    "parallel_config._api_process*",
    "kv_transfer_config.kv_ip",
    "kv_transfer_config.kv_port",
    "compilation_config.local_cache_dir",
    "compilation_config.cache_dir",
    "compilation_config.compilation_time",
    "compilation_config.traced_files",
    "compilation_config.static_forward_context*",
    "vllm_env.*SHM*NAME*",
    "vllm_env.*PORT*",
    "vllm_env.*HOST*",
    "vllm_env.*_IP",
    "system_env.env_vars",
    "system_env.cpu_info",
    "host",
    "port",
    "*_port",
    "dist_init_addr",
    "random_seed",
    "base_gpu_id",
    "log_*",
    "crash_dump_folder",
    "file_storage_path",
    "startup_*",
    "*_load_time",
)
"""Settings that differ between any two processes, drafter or not. SGLang draws its seed where none is set."""

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Of a Python object among the settings, as vLLM tells `hf_overrides` of a draft model: another in each process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting that is not the same in both arms."""

    name: str
    baseline: str
    candidate: str
    follows: str
    """Why it is to be expected; empty for a difference that breaks the comparison."""


def differences(baseline: Engine, candidate: Engine) -> tuple[Difference, ...]:
    """Settings that both engines tell, and tell differently, in order of name; what names a process is left out.

    A setting that only one engine tells counts where the other one tells its configuration at all.
    """
    found = [*_identity(baseline, candidate)]
    if baseline.config and candidate.config:
        for name in sorted(baseline.config.keys() | candidate.config.keys()):
            before, after = (ADDRESS.sub("", one.config.get(name, ABSENT)) for one in (baseline, candidate))
            if before != after and not _matches(name, NAMES_THE_PROCESS):
                found.append(_difference(name, before, after))
    return tuple(found)


def _identity(baseline: Engine, candidate: Engine) -> Iterator[Difference]:
    for name in ("kind", "version", "model_root", "max_model_len"):
        before, after = getattr(baseline, name), getattr(candidate, name)
        if before != after and before and after:
            yield _difference(name, str(before), str(after))


def _difference(name: str, baseline: str, candidate: str) -> Difference:
    why = next((why for pattern, why in FOLLOWS.items() if fnmatchcase(name, pattern)), "")
    return Difference(name=name, baseline=baseline, candidate=candidate, follows=why)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
