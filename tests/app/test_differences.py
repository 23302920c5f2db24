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


def test_a_drafter_alone_breaks_nothing() -> None:
    found = differences(recorded("off"), recorded("on"))
    assert {one.name for one in found if not one.name.startswith("speculative_config")} == {
        "parallel_config.disable_nccl_for_dp_synchronization",
        "scheduler_config.max_num_scheduled_tokens",
    }
    assert all(one.follows for one in found)


def test_one_engine_compared_with_itself() -> None:
    assert differences(recorded("on"), recorded("on")) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_config.dtype", "torch.bfloat16"),
        ("scheduler_config.max_num_seqs", "16"),
        ("cache_config.enable_prefix_caching", "false"),
        ("vllm_env.VLLM_USE_FLASHINFER_SAMPLER", "false"),
        ("system_env.torch_version", "2.0"),
    ],
)
def test_one_setting_more_is_named(name: str, value: str) -> None:
    off, on = recorded("off"), recorded("on")
    changed = replace(on, config={**on.config, name: value})
    (found,) = [one for one in differences(off, changed) if not one.follows]
    assert (found.name, found.baseline, found.candidate) == (name, off.config[name], value)


def test_a_setting_that_one_arm_lacks_is_named() -> None:
    off, on = recorded("off"), recorded("on")
    fewer = replace(on, config={name: value for name, value in on.config.items() if name != "model_config.seed"})
    (found,) = [one for one in differences(off, fewer) if not one.follows]
    assert (found.name, found.candidate) == ("model_config.seed", ABSENT)


def test_versions_and_checkpoints_count_even_where_the_configuration_is_closed() -> None:
    off = replace(recorded("off"), config={})
    on = replace(off, version="0.33.0", model_root="/models/other", max_model_len=None)
    assert [one.name for one in differences(off, on)] == ["version", "model_root"]


def test_what_nobody_tells_is_no_difference() -> None:
    silent = Engine(kind=EngineKind.UNKNOWN)
    assert differences(silent, silent) == ()
    assert [one.name for one in differences(recorded("off"), silent)] == ["kind"]


def test_an_objects_address_is_no_setting() -> None:
    name = "speculative_config.draft_model_config.hf_overrides"
    one, other, another = (
        replace(recorded("on"), config={name: f"<function {what} at 0x{address}>"})
        for what, address in (("override", "7f6d21d59c60"), ("override", "7f9cb825dc60"), ("other", "7f6d21d59c60"))
    )
    assert differences(one, other) == ()
    assert [found.candidate for found in differences(one, another)] == ["<function other>"]
