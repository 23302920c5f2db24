"""What the probes read out of what real engines said: vLLM 0.32 (ngram drafter) and llama.cpp (a draft model).

What SGLang, TensorRT-LLM and TGI say is made after their sources.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from qualab.endpoints import engines
from qualab.endpoints.engines import EngineProbe, Speculation, read_metrics
from qualab.endpoints.transport import Transport
from qualab.errors import EndpointUnreachable
from qualab.model.engine import Counters, Drafting, DraftSource, Engine, EngineKind
from tests.scripted_engine import recorded
from tests.scripted_server import ScriptedServer, after, reply

VLLM_CARD = {"id": "m", "owned_by": "vllm", "root": "/models/smollm2-135m", "max_model_len": 2048}
LLAMA_CARD = {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 2048, "n_params": 134515008}}
ON = Speculation(is_on=True, draft_tokens=3)


def new_probe(speculation: Speculation | None = None) -> EngineProbe:
    probe = EngineProbe("", transport=Transport("http://127.0.0.1:1", key="", timeout_s=1.0))
    probe.speculation = speculation
    return probe


def read_counters(text: str, probe: EngineProbe | None = None) -> Counters:
    counters = (probe or new_probe()).read(read_metrics(text.encode()))
    assert counters is not None
    return counters


async def probed(server: ScriptedServer, card: dict[str, Any], **routes: str) -> Engine:
    """The engine behind a server that answers these routes, beside its own."""
    server.routes |= {("GET", f"/{name}"): reply(text) for name, text in routes.items()}
    transport = Transport(server.root, key="", timeout_s=5.0)
    try:
        return await EngineProbe(server.root, transport=transport).engine(card)
    finally:
        await transport.close()


@pytest.mark.parametrize(("owner", "route"), [("vllm", "server_info"), ("sglang", "get_server_info")])
async def test_a_configuration_that_takes_its_time_is_waited_for_and_not_taken_for_a_closed_one(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, owner: str, route: str
) -> None:
    monkeypatch.setattr("qualab.endpoints.transport.PROBE_TIMEOUT_S", 0.2)
    server.routes["GET", f"/{route}"] = after(0.5, reply({"version": "1"}))
    assert (await probed(server, {"id": "m", "owned_by": owner})).kind is not EngineKind.UNKNOWN
    monkeypatch.setattr(engines, "SLOW_PROBE_TIMEOUT_S", 0.2)
    with pytest.raises(EndpointUnreachable, match="/server_info does not answer: no whole answer came"):
        await probed(server, {"id": "m", "owned_by": owner})
    other = await probed(server, {"id": "m"})
    assert other.kind is EngineKind.UNKNOWN, "another server may hang at a route that it does not know"


COUNTS = {
    "vllm_off": (None, (0, 0, 0)),  # no series of drafts at all
    "vllm_on": (Drafting(drafts=4, draft_tokens=10, accepted_tokens=6, accepted_at=(3, 1, 1, 1)), (1, 11, 16)),
    "llama_off": (Drafting(), (None, 57687, 12865)),
    "llama_on": (
        Drafting(drafts=3086, draft_tokens=12250, accepted_tokens=8278, accepted_at=(2504, 2174, 1909, 1691)),
        (None, 57022, 11496),
    ),
    "sglang_on": (Drafting(drafts=100, draft_tokens=300, accepted_tokens=161), (10, 420, 271)),
    "tgi_on": (Drafting(drafts=100, draft_tokens=None, accepted_tokens=161), (10, 420, 271)),
    "tensorrt_llm_on": (Drafting(draft_tokens=300, accepted_tokens=161), (10, 420, 271)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_what_an_engine_counts(name: str) -> None:
    found = read_counters(recorded(f"{name}_metrics.txt"), new_probe(ON if name == "sglang_on" else None))
    totals = (found.finished_requests, found.prompt_tokens, found.generated_tokens)
    assert (found.drafting, totals) == COUNTS[name]
    assert found.source is DraftSource.COUNTERS
    assert (found.decode_steps is not None) is name.startswith("vllm")
    if name == "vllm_on":
        assert (found.decode_s, found.decode_steps) == (pytest.approx(0.5829987), 9), "15 tokens, 6 of them drafted"
    if name == "llama_on":
        assert found.decode_s == pytest.approx(5432.66)


def test_engines_of_one_server_are_added_up_and_an_older_vllm_names_a_step_otherwise() -> None:
    text = recorded("vllm_on_metrics.txt")
    second = [line.replace('engine="0"', 'engine="1"') for line in text.splitlines() if line.startswith("vllm:")]
    found = read_counters("\n".join([text, *second, ""]))
    assert found.drafting == Drafting(drafts=8, draft_tokens=20, accepted_tokens=12, accepted_at=(6, 2, 2, 2))
    assert (found.finished_requests, found.decode_steps) == (2, 18)
    old = text.replace("inter_token_latency_seconds", "time_per_output_token_seconds")
    assert read_counters(old) == read_counters(text)


def sglang(*, generated: int, requests: int, rounds: int | None = None) -> str:
    values = {"generation_tokens_total": generated, "num_requests_total": requests}
    values |= {} if rounds is None else {"spec_verify_calls_total": rounds}
    return "".join(f'sglang:{name}{{tp_rank="0"}} {value}\n' for name, value in values.items())


def test_the_first_round_of_an_sglang_begins_its_series_and_a_new_process_a_new_one() -> None:
    probe = new_probe(ON)
    before = read_counters(sglang(generated=0, requests=0), probe)
    later = read_counters(sglang(generated=31, requests=1, rounds=10), probe)
    assert not later.has_restarted_since(before)
    assert later.drafting_since(before) == Drafting(drafts=10, draft_tokens=30, accepted_tokens=20)
    assert read_counters(sglang(generated=4, requests=1, rounds=1), probe).has_restarted_since(later)
    # metrics that are silent say that nothing is drafted where the configuration has no drafter
    for speculation, tells in ((Speculation(is_on=False), True), (None, False)):
        silent = read_counters(sglang(generated=31, requests=1), new_probe(speculation))
        assert (silent.drafting, silent.tells_drafting) == (None, tells)


def test_iterations_of_tensorrt_llm_add_up_over_reads_and_ranks_count_once() -> None:
    probe, one = new_probe(), json.loads(recorded("tensorrt_llm_iteration.json"))
    found = [read_counters(json.dumps(read), probe) for read in ([one, one | {"attentionDpRank": 1}], [], [one])]
    each = Drafting(drafts=1, draft_tokens=3, accepted_tokens=2)
    assert [one.drafting for one in found] == [each, each, each + each]
    assert {one.source for one in found} == {DraftSource.STATISTICS}
    assert not read_counters("[]").has_restarted_since(found[2]), "another run's first look begins at none"


SGLANG_CARD = {"id": "m", "owned_by": "sglang", "root": "m", "max_model_len": 40960}
TENSORRT_CARD = {"id": "m", "owned_by": "tensorrt_llm"}
TGI_CARD = {"id": "Qwen/Qwen3-8B", "owned_by": "Qwen/Qwen3-8B"}
METRICS, ITERATION = "metrics", f"[{recorded('tensorrt_llm_iteration.json')}]"
QWEN, EAGLE = "/models/qwen3-8b", "/models/qwen3-8b-eagle3"


def sglang_routes(route: str) -> dict[str, str]:
    model_info = {route.replace("server", "model"): recorded("sglang_model_info.json")}
    return {METRICS: recorded("sglang_on_metrics.txt"), route: recorded("sglang_on_server_info.json")} | model_info


VLLM_ROUTES = {METRICS: recorded("vllm_on_metrics.txt"), "server_info": recorded("vllm_on_server_info.json")}
TENSORRT_ROUTES = {METRICS: ITERATION, "prometheus/metrics": recorded("tensorrt_llm_on_metrics.txt")}
ENGINES: dict[str, tuple[dict[str, Any], dict[str, str], tuple[Any, ...], dict[str, str]]] = {
    "vLLM": (
        VLLM_CARD,
        VLLM_ROUTES | {"version": '{"version": "0.32.0"}'},
        (EngineKind.VLLM, "0.32.0", 2048, "/models/smollm2-135m", 23296, "ngram, 4 tokens", True),
        {"scheduler_config.max_num_seqs": "8"},
    ),
    **{
        f"SGLang {route}": (
            SGLANG_CARD,
            sglang_routes(route),
            (EngineKind.SGLANG, "0.5.9", 40960, QWEN, 389120, f"EAGLE3 {EAGLE}, 4 tokens", True),
            {"attention_backend": "fa3", "model_info.weight_version": "default"},
        )
        for route in ("get_server_info", "server_info")
    },
    "TensorRT-LLM": (
        TENSORRT_CARD,
        TENSORRT_ROUTES | {"version": '{"version": "1.2.0"}'},
        (EngineKind.TENSORRT_LLM, "1.2.0", 40960, QWEN, 13475 * 32, f"Eagle {EAGLE}, 3 tokens", True),
        {"model_config.dtype": "bfloat16"},
    ),
    "TensorRT-LLM, iterations alone": (
        TENSORRT_CARD,
        {METRICS: ITERATION},
        (EngineKind.TENSORRT_LLM, "", None, "", 13475 * 32, "", False),
        {},
    ),
    "TGI": (
        TGI_CARD,
        {METRICS: recorded("tgi_on_metrics.txt"), "info": recorded("tgi_info.json")},
        (EngineKind.TGI, "3.3.6", 8192, "Qwen/Qwen3-8B", None, "", False),
        {"max_total_tokens": "8192"},
    ),
    "llama.cpp": (
        LLAMA_CARD,
        {METRICS: recorded("llama_off_metrics.txt"), "props": recorded("llama_off_props.json")},
        (EngineKind.LLAMA_CPP, "b0-unknown", 2048, "/models/SmolLM2-135M-Instruct.Q4_1.gguf", None, "", False),
        {"meta.n_params": "134515008"},
    ),
    "llama.cpp, tagged": (
        LLAMA_CARD | {"tags": ["drafter=eagle3, 4 tokens", "version=b7001", "fast"]},
        {METRICS: recorded("llama_off_metrics.txt"), "props": recorded("llama_off_props.json")},
        (
            EngineKind.LLAMA_CPP,
            "b7001",
            2048,
            "/models/SmolLM2-135M-Instruct.Q4_1.gguf",
            None,
            "eagle3, 4 tokens",
            False,
        ),
        {"meta.n_params": "134515008"},
    ),
}


@pytest.mark.parametrize("name", ENGINES)
async def test_what_an_engine_tells_of_itself(server: ScriptedServer, name: str) -> None:
    card, routes, expected, config = ENGINES[name]
    found = await probed(server, card, **routes)
    shown = (found.kind, found.version, found.max_model_len, found.model_root, found.kv_cache_tokens, found.drafter)
    assert (*shown, found.tells_drafter) == expected
    assert config.items() <= found.config.items()
    assert not {"api_key", "internal_states", "media_marker"} & found.config.keys(), "secret, or drawn at the start"
    assert found.counters is not None
    assert found.counters.drafting is not None


async def test_what_tells_nothing_and_metrics_that_are_nobodys(server: ScriptedServer) -> None:
    assert await probed(server, {"id": "m", "owned_by": "someone"}) == Engine(kind=EngineKind.UNKNOWN)
    closed = await probed(server, VLLM_CARD)
    assert (closed.kind, closed.config, closed.counters) == (EngineKind.VLLM, {}, None)
    for text in ("", "<html>", "up 1\n", 'broken{a="b" 1\n'):
        assert new_probe().read(read_metrics(text.encode())) is None, text
    for value in ("NaN", "+Inf", "-1e400"):
        text = f"sglang:max_total_num_tokens {value}\nsglang:generation_tokens_total {value}\n"
        found = await probed(server, {"id": "m", "owned_by": "sglang"}, metrics=text)
        assert (found.kv_cache_tokens, found.counters, found.has_metrics) == (None, None, True)
    found = await probed(server, {"id": "m", "owned_by": "lmdeploy"}, metrics="lmdeploy:requests 1\n")
    assert (found.kind, found.counters, found.has_metrics) == (EngineKind.UNKNOWN, None, True)


TEN = Drafting(drafts=10, draft_tokens=40, accepted_tokens=20)
REMEMBERED = Counters(drafting=TEN, finished_requests=5, prompt_tokens=100, generated_tokens=50, started_at_s=1000.0)
ANEW: list[dict[str, Any]] = [
    *({"started_at_s": 1001.0}, {"finished_requests": 4}, {"generated_tokens": 49}, {"drafting": None}),
    {"drafting": replace(TEN, drafts=9)},
]


def test_counters_that_began_anew_and_stretches_of_drafting() -> None:
    for changes in (*ANEW, {}, {"finished_requests": 9, "prompt_tokens": None}):
        assert replace(REMEMBERED, **changes).has_restarted_since(REMEMBERED) is (changes in ANEW), changes
    one, other = Drafting(drafts=2, accepted_tokens=1, accepted_at=(1,)), Drafting(drafts=3, accepted_at=(1, 1))
    assert one + other == Drafting(drafts=5, accepted_tokens=1, accepted_at=(2, 1))
    assert (one + other) - other == Drafting(drafts=2, accepted_tokens=1, accepted_at=(1, 0))
    assert not (one - other).is_possible
