"""What the probes read out of what real engines said: vLLM 0.32 (ngram drafter) and llama.cpp (a draft model)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qualab.adapters.endpoints import engines
from qualab.adapters.endpoints.counters import CounterReader, Speculation, read_metrics
from qualab.adapters.endpoints.engines import EngineProbe
from qualab.adapters.endpoints.transport import Transport
from qualab.adapters.endpoints.urls import Routes
from qualab.domain.engine import Counters, Drafting, Engine, EngineKind
from qualab.errors import EndpointUnreachable
from tests.endpoints.scripted import ScriptedServer, after, reply

RECORDED = Path(__file__).parent / "recorded"
VLLM_CARD = {"id": "m", "owned_by": "vllm", "root": "/models/smollm2-135m", "max_model_len": 2048}
LLAMA_CARD = {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 2048, "n_params": 134515008}}


def recorded(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


def read_counters(text: str, speculation: Speculation | None = None) -> Counters | None:
    """Of a server that is looked at for the first time."""
    reader = CounterReader()
    reader.speculation = speculation
    return reader.counters(read_metrics(text.encode()))


def serve(server: ScriptedServer, engine: str, arm: str) -> dict[str, Any]:
    """Scripts a server's routes from what was recorded; returns its model card."""
    server.script(reply({"detail": "Not Found"}, status=404))
    server.routes = {("GET", "/metrics"): reply(recorded(f"{engine}_{arm}_metrics.txt"))}
    if engine == "vllm":
        server.routes[("GET", "/version")] = reply({"version": "0.32.0"})
        server.routes[("GET", "/server_info")] = reply(recorded(f"vllm_{arm}_server_info.json"))
        return VLLM_CARD
    server.routes[("GET", "/props")] = reply(recorded(f"llama_{arm}_props.json"))
    return LLAMA_CARD


async def probed(server: ScriptedServer, card: dict[str, Any]) -> Engine:
    routes = Routes.of(server.url)
    async with Transport(routes.base, key="", timeout_s=5.0) as transport:
        return await EngineProbe(routes, transport=transport).engine(card)


async def test_a_configuration_that_takes_its_time_is_waited_for(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PROBE_TIMEOUT_S", 0.2)
    card = serve(server, "vllm", "off")
    server.routes[("GET", "/server_info")] = after(0.5, server.routes[("GET", "/server_info")])
    assert (await probed(server, card)).config


async def test_a_configuration_that_does_not_come_is_not_taken_for_a_closed_one(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "SLOW_PROBE_TIMEOUT_S", 0.2)
    card = serve(server, "vllm", "off")
    server.routes[("GET", "/server_info")] = after(0.5, server.routes[("GET", "/server_info")])
    with pytest.raises(EndpointUnreachable, match="/server_info does not answer: no whole answer came"):
        await probed(server, card)
    other = await probed(server, {"id": "m"})
    assert other.kind is EngineKind.UNKNOWN, "another server may hang at a route that it does not know"


def test_vllm_without_a_drafter_counts_no_drafts_at_all() -> None:
    found = read_counters(recorded("vllm_off_metrics.txt"))
    assert found is not None
    assert found.drafting is None
    assert (found.finished_requests, found.prompt_tokens, found.generated_tokens) == (0, 0, 0)
    assert found.started_at_s == pytest.approx(1795974608.36)


def test_vllm_with_a_drafter() -> None:
    found = read_counters(recorded("vllm_on_metrics.txt"))
    assert found is not None
    assert found.drafting == Drafting(drafts=4, draft_tokens=10, accepted_tokens=6, accepted_at=(3, 1, 1, 1))
    assert (found.finished_requests, found.prompt_tokens, found.generated_tokens) == (1, 11, 16)
    assert (found.decode_s, found.decode_steps) == (pytest.approx(0.5829987), 9), "15 tokens, of which 6 came by draft"


def test_engines_of_one_server_are_added_up_and_times_of_creation_are_not() -> None:
    lines = recorded("vllm_on_metrics.txt").splitlines()
    second = [line.replace('engine="0"', 'engine="1"') for line in lines if line.startswith("vllm:")]
    found = read_counters("\n".join([*lines, *second]) + "\n")
    assert found is not None
    assert found.drafting == Drafting(drafts=8, draft_tokens=20, accepted_tokens=12, accepted_at=(6, 2, 2, 2))
    assert (found.finished_requests, found.decode_steps) == (2, 18)


def test_an_older_vllm_calls_the_time_of_a_step_otherwise() -> None:
    old = recorded("vllm_on_metrics.txt").replace("inter_token_latency_seconds", "time_per_output_token_seconds")
    assert read_counters(old) == read_counters(recorded("vllm_on_metrics.txt"))


def test_llama_cpp_counts_from_zero_without_a_drafter() -> None:
    off, on = (read_counters(recorded(f"llama_{arm}_metrics.txt")) for arm in ("off", "on"))
    assert off is not None
    assert off.drafting == Drafting()
    assert on is not None
    assert on.drafting is not None
    assert on.drafting.drafts > 1_000
    assert on.drafting.accepted_tokens == sum(on.drafting.accepted_at)
    assert (on.decode_s, on.decode_steps) == (pytest.approx(5432.66), None)


@pytest.mark.parametrize("text", ["", "<html>", "up 1\n", 'broken{a="b" 1\n'])
def test_other_metrics_are_nobodys(text: str) -> None:
    assert read_counters(text) is None


async def test_a_vllm_server_tells_its_configuration(server: ScriptedServer) -> None:
    found = await probed(server, serve(server, "vllm", "on"))
    assert (found.kind, found.version, found.max_model_len) == (EngineKind.VLLM, "0.32.0", 2048)
    assert (found.model_root, found.kv_cache_tokens) == ("/models/smollm2-135m", 23296)
    assert found.drafter == "ngram, 4 tokens"
    assert found.config["scheduler_config.max_num_seqs"] == "8"
    assert found.config["system_env.torch_version"]
    assert found.counters is not None


async def test_a_llama_server_tells_its_properties(server: ScriptedServer) -> None:
    found = await probed(server, serve(server, "llama", "off"))
    assert (found.kind, found.max_model_len, found.drafter) == (EngineKind.LLAMA_CPP, 2048, "")
    assert found.model_root.endswith("Q4_1.gguf")
    assert found.config["meta.n_params"] == "134515008"
    assert "media_marker" not in found.config, "it is drawn at random at each start"


async def test_a_server_that_tells_nothing(server: ScriptedServer) -> None:
    server.script(reply({"detail": "Not Found"}, status=404))
    found = await probed(server, {"id": "m", "owned_by": "someone"})
    assert found == Engine(kind=EngineKind.UNKNOWN)


async def test_a_vllm_server_with_closed_routes_is_still_one(server: ScriptedServer) -> None:
    server.script(reply("forbidden", status=403))
    found = await probed(server, VLLM_CARD)
    assert (found.kind, found.config, found.counters) == (EngineKind.VLLM, {}, None)


def at(**changes: Any) -> Counters:
    whole = Counters(
        drafting=Drafting(drafts=10, draft_tokens=40, accepted_tokens=20, accepted_at=(8, 6, 4, 2)),
        finished_requests=5,
        prompt_tokens=100,
        generated_tokens=50,
        started_at_s=1000.0,
    )
    return replace(whole, **changes)


@pytest.mark.parametrize(
    "later",
    [
        at(started_at_s=1001.0),
        at(finished_requests=4),
        at(drafting=Drafting(drafts=9, draft_tokens=40, accepted_tokens=20, accepted_at=(8, 6, 4, 2))),
        at(drafting=None),
        at(generated_tokens=49),
    ],
)
def test_counters_that_began_anew(later: Counters) -> None:
    assert later.has_restarted_since(at())


def test_counters_that_went_on() -> None:
    assert not at().has_restarted_since(at())
    assert not at(finished_requests=9, prompt_tokens=None).has_restarted_since(at())


def test_stretches_of_drafting_add_up() -> None:
    one, other = Drafting(drafts=2, accepted_tokens=1, accepted_at=(1,)), Drafting(drafts=3, accepted_at=(1, 1))
    assert one + other == Drafting(drafts=5, accepted_tokens=1, accepted_at=(2, 1))
    assert (one + other) - other == Drafting(drafts=2, accepted_tokens=1, accepted_at=(1, 0))
    assert not (one - other).is_possible


def test_recorded_files_are_whole() -> None:
    for arm in ("off", "on"):
        told = json.loads(recorded(f"vllm_{arm}_server_info.json"))
        assert (told["vllm_config"]["speculative_config"] is None) is (arm == "off")
