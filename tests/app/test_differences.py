"""What counts as a difference between two engines: what vLLM 0.32 told of itself, and changes to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qualab.analysis.drafter import ABSENT, differences
from qualab.endpoints.engines import vllm_engine
from qualab.model.engine import Engine, EngineKind

RECORDED = Path(__file__).parents[1] / "endpoints" / "recorded"
CARD = {"owned_by": "vllm", "root": "/models/smollm2-135m", "max_model_len": 2048}


def recorded(arm: str) -> Engine:
    told = json.loads((RECORDED / f"vllm_{arm}_server_info.json").read_text(encoding="utf-8"))
    return vllm_engine(CARD, {"version": "0.32.0"}, told)


OFF, ON = recorded("off"), recorded("on")


def test_a_drafter_alone_breaks_nothing_and_what_nobody_tells_is_no_difference() -> None:
    found = differences(OFF, ON)
    assert {one.name for one in found if not one.name.startswith("speculative_config")} == {
        "parallel_config.disable_nccl_for_dp_synchronization",
        "scheduler_config.max_num_scheduled_tokens",
    }
    assert all(one.follows for one in found)
    silent = Engine(kind=EngineKind.UNKNOWN)
    assert differences(ON, ON) == differences(silent, silent) == ()
    closed = replace(OFF, config={})
    other = replace(closed, version="0.33.0", model_root="/models/other", max_model_len=None)
    assert [one.name for one in differences(closed, other)] == ["version", "model_root"]
    assert [one.name for one in differences(OFF, silent)] == ["kind"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_config.dtype", "torch.bfloat16"),
        ("scheduler_config.max_num_seqs", "16"),
        ("cache_config.enable_prefix_caching", "false"),
        ("vllm_env.VLLM_USE_FLASHINFER_SAMPLER", "false"),
        ("system_env.torch_version", "2.0"),
        ("model_config.seed", ABSENT),
    ],
)
def test_one_setting_more_is_named(name: str, value: str) -> None:
    config = ON.config | {name: value}
    changed = replace(ON, config={key: one for key, one in config.items() if one != ABSENT})
    (found,) = [one for one in differences(OFF, changed) if not one.follows]
    assert (found.name, found.baseline, found.candidate) == (name, OFF.config[name], value)


def test_an_objects_address_is_no_setting() -> None:
    name = "speculative_config.draft_model_config.hf_overrides"
    one, other, another = (
        replace(ON, config={name: f"<function {what} at 0x{address}>"})
        for what, address in (("override", "7f6d21d59c60"), ("override", "7f9cb825dc60"), ("other", "7f6d21d59c60"))
    )
    assert differences(one, other) == ()
    assert [found.candidate for found in differences(one, another)] == ["<function other>"]
