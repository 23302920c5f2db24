from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from qualab.errors import InfrastructureError, InvalidValue, UsageError
from qualab.managed.pair import read_pair
from qualab.managed.serving import serve
from qualab.model.names import ArmName
from tests.pair.conftest import FakePair, eventually, listens, lives

DRAFTER = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}']


def test_both_are_ready_inside_and_gone_with_their_children_afterwards(fake: FakePair) -> None:
    said: list[str] = []
    with serve(read_pair(fake.write(env={"VLLM_CPU_KVCACHE_SPACE": 1})), say=said.append) as servers:
        assert all(map(listens, fake.ports))
        started = [fake.started(port) for port in fake.ports]
        assert [server.pid for server in servers] == [one["pid"] for one in started]
        assert len(fake.living) == 6
    assert fake.living == []
    assert not any(map(listens, fake.ports))
    assert said[-2:] == ["ready: baseline, candidate", "stopped: baseline, candidate"]
    assert {path.name for path in fake.logs.iterdir()} == {"baseline.log", "candidate.log"}
    assert "loading the baseline" in (fake.logs / "baseline.log").read_text()
    assert "loading the candidate" in (fake.logs / "candidate.log").read_text()
    # the candidate is started as the baseline with the drafter added and nothing else
    same = ["serve", "/models/tiny", "--host", "127.0.0.1", "--port", "PORT", "--served-model-name", "tiny"]
    same += ["--max-model-len", "512", "--enforce-eager"]
    for one, port, drafter in zip(started, fake.ports, ([], DRAFTER), strict=True):
        assert ["PORT" if word == str(port) else word for word in one["argv"]] == same + drafter
    environments = [one["env"] for one in started]
    assert [env.pop("CUDA_VISIBLE_DEVICES") for env in environments] == ["0", "1"]
    assert environments[0] == environments[1]
    assert environments[0]["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_a_server_that_does_not_end_when_asked_is_killed(fake: FakePair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_IGNORES_SIGTERM", "1")
    with serve(read_pair(fake.path), stop_timeout_s=0.5):
        asked_s = time.monotonic()
    assert time.monotonic() - asked_s < 5
    assert len(fake.pids) == 6
    assert fake.living == []


def test_a_server_that_is_never_ready_is_stopped(fake: FakePair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DELAY_S", "600")
    pair = read_pair(fake.write(ready_timeout=1))
    with pytest.raises(InfrastructureError, match="baseline server was not ready after 1 s") as caught, serve(pair):
        pass
    assert "loading the baseline" in caught.value.hint
    assert fake.pids != []
    assert fake.living == []


def test_when_one_fails_the_other_is_stopped_and_the_log_says_why(
    fake: FakePair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "candidate")
    pair = read_pair(fake.path)
    with pytest.raises(InfrastructureError, match="The candidate server ended with code 3") as caught, serve(pair):
        pass
    assert "RuntimeError: no such drafter" in caught.value.hint
    assert len(fake.pids) == 6
    assert fake.living == []
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    pair = read_pair(fake.write(command=[str(broken)]))
    with pytest.raises(InfrastructureError, match="baseline server ended with code 127") as caught, serve(pair):
        pass
    assert "cannot be started: No such file or directory" in caught.value.hint


def test_one_device_is_filled_in_turn(fake: FakePair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DELAY_S", "0.8")
    for device, in_turn in (("0", True), ("1", False)):
        with serve(read_pair(fake.write(candidate={"port": fake.ports[1], "gpus": device}))):
            baseline, candidate = (fake.started(port)["at_s"] for port in fake.ports)
        assert (candidate - baseline > 0.8) is in_turn


def test_one_arm_at_a_time_and_an_error_inside_stops_it(fake: FakePair) -> None:
    pair = read_pair(fake.write(candidate={"port": fake.ports[0], "gpus": "0"}))
    with serve(pair, arms=(ArmName.BASELINE,)) as servers:
        assert [server.arm for server in servers] == [ArmName.BASELINE]
        assert "--speculative-config" not in fake.started(fake.ports[0])["argv"]
    assert fake.living == []
    with pytest.raises(KeyboardInterrupt), serve(pair, arms=(ArmName.CANDIDATE,)):
        raise KeyboardInterrupt
    assert "--speculative-config" in fake.started(fake.ports[0])["argv"]
    assert len(fake.pids) == 3
    assert fake.living == []


def test_a_port_a_program_or_a_pair_that_cannot_be_used_is_named_before_anything_starts(fake: FakePair) -> None:
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.create_server((address, fake.ports[1]), reuse_port=True):
            pair, named = read_pair(fake.path), f"candidate server cannot use port {fake.ports[1]}"
            with pytest.raises(UsageError, match=named) as caught, serve(pair):
                pass
    assert "candidate.port" in caught.value.hint
    absent = read_pair(fake.path).model_copy(update={"command": ("no-such-vllm", "serve")})
    with pytest.raises(UsageError, match="no program no-such-vllm") as caught, serve(absent):
        pass
    assert "extra `vllm`" in caught.value.hint
    same = read_pair(fake.write(candidate={"port": fake.ports[0], "gpus": "1"}))
    with pytest.raises(InvalidValue, match=f"Both servers would be on port {fake.ports[0]}"), serve(same):
        pass
    assert fake.pids == []


def test_one_that_dies_later_is_seen_and_named(fake: FakePair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DIE_AFTER_S", "candidate:0.5")
    said: list[str] = []
    with serve(read_pair(fake.path), say=said.append) as (baseline, candidate):
        assert eventually(lambda: candidate.keeper.poll() is not None)
        baseline.check()
        with pytest.raises(InfrastructureError, match=r"candidate server ended with code 137 .*memory") as caught:
            candidate.check()
        assert "loading the candidate" in caught.value.hint
        dead = fake.started(fake.ports[1])
        assert not any(map(lives, [dead["pid"], *dead["children"]]))
    assert "the candidate server had ended by itself, with code 137" in said[-2]
    assert fake.living == []


def test_should_a_keeper_be_killed_its_server_is_asked_to_end(fake: FakePair) -> None:
    with serve(read_pair(fake.path)) as (baseline, _):
        os.kill(baseline.keeper.pid, signal.SIGKILL)
        assert eventually(lambda: not lives(baseline.pid))
