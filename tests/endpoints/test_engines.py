"""What the probes read out of what real engines said: vLLM 0.32 (ngram drafter) and llama.cpp (a draft model).

What SGLang, TensorRT-LLM and TGI say is made after their sources.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qualab.endpoints import engines
from qualab.endpoints.engines import EngineProbe, Speculation, read_metrics
from qualab.endpoints.transport import Transport
from qualab.errors import EndpointUnreachable
from qualab.model.engine import Counters, Drafting, DraftSource, Engine, EngineKind
from tests.endpoints.scripted import ScriptedServer, after, reply

NOBODY = Transport("http://127.0.0.1:1", key="", timeout_s=1.0)
RECORDED = Path(__file__).parent / "recorded"
VLLM_CARD = {"id": "m", "owned_by": "vllm", "root": "/models/smollm2-135m", "max_model_len": 2048}
LLAMA_CARD = {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 2048, "n_params": 134515008}}


def recorded(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


def look(reader: EngineProbe, text: str) -> Counters:
    counters = reader.read(read_metrics(text.encode()))
    assert counters is not None
    return counters


def read_counters(text: str, speculation: Speculation | None = None) -> Counters:
    """Of a server that is looked at for the first time."""
    reader = EngineProbe("", transport=NOBODY)
    reader.speculation = speculation
    return look(reader, text)


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


async def probed(server: ScriptedServer, card: dict[str, Any], **routes: str) -> Engine:
    """The engine behind a server that answers these routes; those of `serve` without any."""
    if routes:
        server.script(reply({"detail": "Not Found"}, status=404))
        server.routes = {("GET", f"/{name}"): reply(text) for name, text in routes.items()}
    transport = Transport(server.url, key="", timeout_s=5.0)
    try:
        return await EngineProbe(server.url, transport=transport).engine(card)
    finally:
        await transport.close()


@pytest.mark.parametrize(("owner", "route"), [("vllm", "server_info"), ("sglang", "get_server_info")])
async def test_a_configuration_that_takes_its_time_is_waited_for_and_not_taken_for_a_closed_one(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, owner: str, route: str
) -> None:
    monkeypatch.setattr("qualab.endpoints.transport.PROBE_TIMEOUT_S", 0.2)
    serve(server, "vllm", "off")
    server.routes.pop(("GET", "/server_info"))
    server.routes["GET", f"/{route}"] = after(0.5, reply({"version": "1"}))
    assert (await probed(server, {"id": "m", "owned_by": owner})).kind is not EngineKind.UNKNOWN
    monkeypatch.setattr(engines, "SLOW_PROBE_TIMEOUT_S", 0.2)
    with pytest.raises(EndpointUnreachable, match="/server_info does not answer: no whole answer came"):
        await probed(server, {"id": "m", "owned_by": owner})
    other = await probed(server, {"id": "m"})
    assert other.kind is EngineKind.UNKNOWN, "another server may hang at a route that it does not know"


def test_vllm_without_a_drafter_counts_no_drafts_at_all() -> None:
    found = read_counters(recorded("vllm_off_metrics.txt"))
    assert found.drafting is None
    assert (found.finished_requests, found.prompt_tokens, found.generated_tokens) == (0, 0, 0)
    assert found.started_at_s == pytest.approx(1795974608.36)


def test_vllm_with_a_drafter() -> None:
    found = read_counters(recorded("vllm_on_metrics.txt"))
    assert found.drafting == Drafting(drafts=4, draft_tokens=10, accepted_tokens=6, accepted_at=(3, 1, 1, 1))
    assert (found.finished_requests, found.prompt_tokens, found.generated_tokens) == (1, 11, 16)
    assert (found.decode_s, found.decode_steps) == (pytest.approx(0.5829987), 9), "15 tokens, of which 6 came by draft"


def test_engines_of_one_server_are_added_up_and_times_of_creation_are_not() -> None:
    lines = recorded("vllm_on_metrics.txt").splitlines()
    second = [line.replace('engine="0"', 'engine="1"') for line in lines if line.startswith("vllm:")]
    found = read_counters("\n".join([*lines, *second]) + "\n")
    assert found.drafting == Drafting(drafts=8, draft_tokens=20, accepted_tokens=12, accepted_at=(6, 2, 2, 2))
    assert (found.finished_requests, found.decode_steps) == (2, 18)


def test_an_older_vllm_calls_the_time_of_a_step_otherwise() -> None:
    old = recorded("vllm_on_metrics.txt").replace("inter_token_latency_seconds", "time_per_output_token_seconds")
    assert read_counters(old) == read_counters(recorded("vllm_on_metrics.txt"))


def test_llama_cpp_counts_from_zero_without_a_drafter() -> None:
    off, on = (read_counters(recorded(f"llama_{arm}_metrics.txt")) for arm in ("off", "on"))
    assert off.drafting == Drafting()
    assert on.drafting is not None
    assert on.drafting.drafts > 1_000
    assert on.drafting.accepted_tokens == sum(on.drafting.accepted_at)
    assert (on.decode_s, on.decode_steps) == (pytest.approx(5432.66), None)


ON = Speculation(is_on=True, draft_tokens=3)


def test_sglang_accepted_what_neither_requests_nor_rounds_account_for() -> None:
    found = read_counters(recorded("sglang_on_metrics.txt"), ON)
    assert found.source is DraftSource.COUNTERS
    assert found.drafting == Drafting(drafts=100, draft_tokens=300, accepted_tokens=161)
    assert (found.finished_requests, found.prompt_tokens, found.generated_tokens) == (10, 420, 271)
    assert (found.decode_s, found.decode_steps, found.started_at_s) == (None, None, None)


def sglang(*, generated: int, requests: int, rounds: int | None = None) -> str:
    values = {"generation_tokens_total": generated, "num_requests_total": requests}
    values |= {} if rounds is None else {"spec_verify_calls_total": rounds}
    return "".join(f'sglang:{name}{{tp_rank="0"}} {value}\n' for name, value in values.items())


def test_the_first_round_of_an_sglang_begins_its_series_and_a_new_process_a_new_one() -> None:
    reader = EngineProbe("", transport=NOBODY)
    reader.speculation = ON
    before = look(reader, sglang(generated=0, requests=0))
    after = look(reader, sglang(generated=31, requests=1, rounds=10))
    assert not after.has_restarted_since(before)
    assert after.drafting_since(before) == Drafting(drafts=10, draft_tokens=30, accepted_tokens=20)
    anew = look(reader, sglang(generated=4, requests=1, rounds=1))
    assert anew.has_restarted_since(after)


def test_a_configuration_without_a_drafter_says_so_for_silent_metrics() -> None:
    silent = sglang(generated=31, requests=1)
    off, unknown = read_counters(silent, Speculation(is_on=False)), read_counters(silent)
    assert (off.drafting, off.tells_drafting) == (None, True)
    assert (unknown.drafting, unknown.tells_drafting) == (None, False)


def test_tgi_counts_accepted_tokens_alone() -> None:
    found = read_counters(recorded("tgi_on_metrics.txt"))
    assert found.drafting == Drafting(drafts=100, draft_tokens=None, accepted_tokens=161)
    assert found.drafting.least_drafted == 161
    assert (found.finished_requests, found.prompt_tokens, found.generated_tokens) == (10, 420, 271)


def test_tensorrt_llm_counts_in_prometheus_format() -> None:
    found = read_counters(recorded("tensorrt_llm_on_metrics.txt"))
    assert (found.source, found.drafting) == (DraftSource.COUNTERS, Drafting(draft_tokens=300, accepted_tokens=161))
    assert (found.finished_requests, found.prompt_tokens, found.generated_tokens) == (10, 420, 271)


def test_iterations_of_tensorrt_llm_add_up_over_reads_and_ranks_count_once() -> None:
    reader = EngineProbe("", transport=NOBODY)
    one = json.loads(recorded("tensorrt_llm_iteration.json"))
    rounds = [[one, one | {"attentionDpRank": 1}], [], [one]]
    found = [look(reader, json.dumps(each)) for each in rounds]
    each = Drafting(drafts=1, draft_tokens=3, accepted_tokens=2)
    assert [one.drafting for one in found] == [each, each, each + each]
    assert {one.source for one in found} == {DraftSource.STATISTICS}
    later = look(EngineProbe("", transport=NOBODY), "[]")
    assert not later.has_restarted_since(found[2]), "another run's first look begins at none"


@pytest.mark.parametrize("text", ["", "<html>", "up 1\n", 'broken{a="b" 1\n'])
def test_other_metrics_are_nobodys(text: str) -> None:
    assert EngineProbe("", transport=NOBODY).read(read_metrics(text.encode())) is None


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


@pytest.mark.parametrize("route", ["get_server_info", "server_info"])
async def test_an_sglang_server_tells_its_configuration(server: ScriptedServer, route: str) -> None:
    routes = {
        "metrics": recorded("sglang_on_metrics.txt"),
        route: recorded("sglang_on_server_info.json"),
        route.replace("server", "model"): recorded("sglang_model_info.json"),
    }
    found = await probed(server, {"id": "m", "owned_by": "sglang", "root": "m", "max_model_len": 40960}, **routes)
    assert (found.kind, found.version, found.max_model_len) == (EngineKind.SGLANG, "0.5.9", 40960)
    assert (found.model_root, found.kv_cache_tokens) == ("/models/qwen3-8b", 389120)
    assert found.drafter == "EAGLE3 /models/qwen3-8b-eagle3, 4 tokens"
    assert (found.config["attention_backend"], found.config["model_info.weight_version"]) == ("fa3", "default")
    assert not {"api_key", "internal_states"} & found.config.keys()
    assert found.counters is not None
    assert found.counters.drafting == Drafting(drafts=100, draft_tokens=300, accepted_tokens=161)


async def test_a_tensorrt_llm_server_tells_settings_by_labels(server: ScriptedServer) -> None:
    routes = {
        "metrics": f"[{recorded('tensorrt_llm_iteration.json')}]",
        "prometheus/metrics": recorded("tensorrt_llm_on_metrics.txt"),
        "version": '{"version": "1.2.0"}',
    }
    found = await probed(server, {"id": "m", "owned_by": "tensorrt_llm"}, **routes)
    assert (found.kind, found.version, found.model_root) == (EngineKind.TENSORRT_LLM, "1.2.0", "/models/qwen3-8b")
    assert (found.max_model_len, found.kv_cache_tokens) == (40960, 13475 * 32)
    assert found.drafter == "Eagle /models/qwen3-8b-eagle3, 3 tokens"
    assert found.tells_drafter
    assert found.config["model_config.dtype"] == "bfloat16"
    assert found.counters is not None
    assert found.counters.drafting == Drafting(draft_tokens=300, accepted_tokens=161)


async def test_a_tensorrt_llm_server_of_iterations_alone(server: ScriptedServer) -> None:
    metrics = f"[{recorded('tensorrt_llm_iteration.json')}]"
    found = await probed(server, {"id": "m", "owned_by": "tensorrt_llm"}, metrics=metrics)
    assert (found.kv_cache_tokens, found.config, found.tells_drafter) == (13475 * 32, {}, False)
    assert found.counters is not None
    assert found.counters.drafting == Drafting(drafts=1, draft_tokens=3, accepted_tokens=2)


async def test_a_tgi_server_tells_model_and_limits(server: ScriptedServer) -> None:
    routes = {"metrics": recorded("tgi_on_metrics.txt"), "info": recorded("tgi_info.json")}
    found = await probed(server, {"id": "Qwen/Qwen3-8B", "owned_by": "Qwen/Qwen3-8B"}, **routes)
    assert (found.kind, found.version, found.max_model_len) == (EngineKind.TGI, "3.3.6", 8192)
    assert (found.model_root, found.drafter, found.tells_drafter) == ("Qwen/Qwen3-8B", "", False)
    assert found.config["model_sha"].startswith("b968826d")


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1e400"])
async def test_numbers_that_no_counter_has_are_nobodys(server: ScriptedServer, value: str) -> None:
    text = f"sglang:max_total_num_tokens {value}\nsglang:generation_tokens_total {value}\n"
    found = await probed(server, {"id": "m", "owned_by": "sglang"}, metrics=text)
    assert (found.kv_cache_tokens, found.counters, found.has_metrics) == (None, None, True)


async def test_open_metrics_of_another_engine_are_known_to_be_open(server: ScriptedServer) -> None:
    found = await probed(server, {"id": "m", "owned_by": "lmdeploy"}, metrics="lmdeploy:requests 1\n")
    assert (found.kind, found.counters, found.has_metrics) == (EngineKind.UNKNOWN, None, True)


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
