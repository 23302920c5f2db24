"""A managed pair of real vLLM servers on a CPU.

QUALAB_VLLM names vLLM's program (default: `vllm` on the PATH), QUALAB_VLLM_MODEL the folder of a small checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from qualab.managed.pair import read_pair
from qualab.managed.serving import serve
from tests.cli.conftest import Command, qualab
from tests.pair.conftest import free_ports, lives

__all__ = ["qualab"]

pytestmark = [pytest.mark.real, pytest.mark.slow]

PROMPT = "The cat sat on the mat. " * 6 + "The cat sat on"


@pytest.fixture
def pair_file(tmp_path: Path) -> Path:
    program = shutil.which(os.environ.get("QUALAB_VLLM", "vllm"))
    model = os.environ.get("QUALAB_VLLM_MODEL")
    if program is None:
        pytest.skip("vLLM is not installed: QUALAB_VLLM names no program, and there is no `vllm` on the PATH")
    if not model or not Path(model).is_dir():
        pytest.skip("QUALAB_VLLM_MODEL names no folder with a checkpoint")
    openmp = Path(program).resolve().parents[1] / "lib" / "libiomp5.so"
    ports = free_ports(2)
    content = {
        "model": model,
        "served_model_name": "small",
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 4,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        },
        "args": {"max_model_len": 1024, "max_num_seqs": 8, "seed": 0, "dtype": "float32", "enforce_eager": True},
        "env": {
            **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"), "1"),
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "KMP_BLOCKTIME": "0",
            **({"LD_PRELOAD": str(openmp)} if openmp.exists() else {}),
        },
        "command": [program, "serve"],
        "baseline": {"port": ports[0]},
        "candidate": {"port": ports[1]},
        "log_dir": str(tmp_path / "logs"),
        "ready_timeout": 600,
    }
    path = tmp_path / "pair.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def opened(url: str, body: dict[str, object] | None = None) -> str:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as response:
        text: str = response.read().decode()
    return text


def family(pid: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(int(child))


def test_the_candidate_alone_drafts_and_nothing_is_left_behind(pair_file: Path) -> None:
    with serve(read_pair(pair_file)) as servers:
        roots = [f"http://{server.address[0]}:{server.address[1]}" for server in servers]
        bodies = {"model": "small", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
        texts = [json.loads(opened(f"{root}/v1/completions", bodies))["choices"][0]["text"] for root in roots]
        baseline, candidate = (opened(f"{root}/metrics") for root in roots)
        processes = [pid for server in servers for pid in family(server.pid)]
    assert all(texts)
    assert "spec_decode" not in baseline
    drafts = [line for line in candidate.splitlines() if line.startswith("vllm:spec_decode_num_drafts_total")]
    assert sum(float(line.split()[-1]) for line in drafts) > 0
    assert len(processes) > 2
    assert not any(map(lives, processes))


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
