"""A managed pair of real vLLM servers on a CPU.

QUALAB_VLLM names vLLM's program (default: `vllm` on the PATH), QUALAB_VLLM_MODEL the folder of a small checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Command, qualab
from tests.pair.conftest import FakePair

__all__ = ["qualab"]

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture
def pair_file(fake: FakePair) -> Path:
    program = shutil.which(os.environ.get("QUALAB_VLLM", "vllm"))
    model = os.environ.get("QUALAB_VLLM_MODEL")
    if program is None:
        pytest.skip("vLLM is not installed: QUALAB_VLLM names no program, and there is no `vllm` on the PATH")
    if not model or not Path(model).is_dir():
        pytest.skip("QUALAB_VLLM_MODEL names no folder with a checkpoint")
    openmp = Path(program).resolve().parents[1] / "lib" / "libiomp5.so"
    lookup = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK")
    return fake.write(
        model=model,
        speculative_config={"method": "ngram", "num_speculative_tokens": 4, **lookup},
        args={"max_model_len": 1024, "max_num_seqs": 8, "seed": 0, "dtype": "float32", "enforce_eager": True},
        env={
            **dict.fromkeys(offline, "1"),
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "KMP_BLOCKTIME": "0",
            **({"LD_PRELOAD": str(openmp)} if openmp.exists() else {}),
        },
        command=[program, "serve"],
        baseline={"port": fake.ports[0]},
        candidate={"port": fake.ports[1]},
        ready_timeout=600,
    )


@pytest.mark.parametrize("order", [(), ("--sequential",)])
def test_a_managed_run_comes_to_a_verdict(qualab: Command, pair_file: Path, order: tuple[str, ...]) -> None:
    small = ("--tasks", "demo", "--limit", 3, "--concurrency", 2)
    done = qualab("run", "--managed", pair_file, *small, *order)
    assert done.code in (0, 1, 3), done.err
    assert "baseline 9/9" in done.err
    assert "candidate 9/9" in done.err
    stopped = [line for line in done.err.splitlines() if line.startswith("stopped: ")]
    assert stopped == (["stopped: baseline", "stopped: candidate"] if order else ["stopped: baseline, candidate"])
    shown = json.loads(qualab("show", done.comparison_id, "--format", "json").out)
    assert sum(task["draft_tokens"] for task in shown["analysis"]["treatment"]["tasks"]) > 0
    assert shown["analysis"]["treatment"]["troubles"] == []
