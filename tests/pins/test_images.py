"""Digests out of what `kubectl` and `docker` print, and what is said where they print none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from qualab.errors import PinUnreadable
from qualab.run.pins import LocalPins, ask_json
from tests.pins.conftest import A, B, C, Command, pod

GET = "get pod off-0 --namespace serving --output json"


@pytest.mark.parametrize(
    "image_id", [f"docker.io/vllm/vllm-openai@{A}", f"docker-pullable://vllm/vllm-openai@{A}", A, f"docker://{A}"]
)
async def test_a_pods_image_id_in_every_runtimes_form(command: Command, image_id: str) -> None:
    calls = command("kubectl", {GET: pod(("vllm", image_id))})
    assert await LocalPins().pod_image("serving/off-0") == (A,)
    assert calls.read_text().split("\n")[0] == f"{GET} --request-timeout=15s"


async def test_the_digest_that_the_pod_was_told_names_its_image_too(command: Command) -> None:
    """A runtime may tell the index's digest where the pod names the platform's."""
    command("kubectl", {GET: pod(("vllm", f"vllm/vllm-openai@{A}"), spec_image=f"vllm/vllm-openai@{B}")})
    assert await LocalPins().pod_image("serving/off-0") == (A, B)


async def test_of_several_containers_one_is_named(command: Command) -> None:
    command("kubectl", {GET: pod(("proxy", A), ("vllm", B))})
    assert await LocalPins().pod_image("serving/off-0/vllm") == (B,)
    with pytest.raises(PinUnreadable, match="several containers: proxy, vllm"):
        await LocalPins().pod_image("serving/off-0")
    with pytest.raises(PinUnreadable, match="no container other: proxy, vllm"):
        await LocalPins().pod_image("serving/off-0/other")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (pod(("vllm", "")), "names no image digest yet. Wait until it is running"),
        (pod(), "has no container yet"),
        ({"status": None}, "has no container yet"),
        ([1], "has no container yet"),
    ],
)
async def test_a_pod_that_tells_no_image(command: Command, answer: object, says: str) -> None:
    command("kubectl", {GET: answer})
    with pytest.raises(PinUnreadable, match=f"^Pod serving/off-0 {says}"):
        await LocalPins().pod_image("serving/off-0")


@pytest.mark.parametrize(
    ("image_id", "name", "pulled_by", "digests"),
    [
        (C, "vllm/vllm-openai:v1", [f"vllm/vllm-openai@{A}", f"mirror.example/vllm@{B}"], (A, B, C)),
        (C.removeprefix("sha256:"), "local", [], (C,)),  # built here, and as podman writes it
    ],
)
async def test_a_containers_image_has_the_digests_it_was_pulled_by_and_its_own(
    command: Command, image_id: str, name: str, pulled_by: list[str], digests: tuple[str, ...]
) -> None:
    container = [{"Id": "0123", "Image": image_id, "Config": {"Image": name}}]
    image = [{"Id": C, "RepoDigests": pulled_by}]
    command("docker", {"container inspect off": container, f"image inspect {image_id}": image})
    assert await LocalPins().container_image("off") == digests


async def test_what_the_command_says_is_told_with_the_command(command: Command) -> None:
    why = "echo 'E1129 noise' >&2; echo 'Error from server (NotFound): pods \"off-0\" not found' >&2; exit 1"
    command("kubectl", {}, after=why)
    with pytest.raises(PinUnreadable) as told:
        await LocalPins().pod_image("serving/off-0")
    assert told.value.message == (
        'Pod serving/off-0 cannot be looked into: kubectl says: Error from server (NotFound): pods "off-0" not found'
    )
    assert "Try it by hand: kubectl get pod off-0 --namespace serving" in told.value.hint


async def test_a_command_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PinUnreadable, match=r"kubectl cannot be started .*Install kubectl"):
        await LocalPins().pod_image("serving/off-0")


@pytest.mark.parametrize(
    ("after", "says"), [("exit 3", "docker says: exit code 3"), ("echo hello; exit 0", "docker printed no JSON")]
)
async def test_a_command_that_fails_silently_or_prints_something_else(command: Command, after: str, says: str) -> None:
    command("docker", {}, after=after)
    with pytest.raises(PinUnreadable, match=says):
        await LocalPins().container_image("off")


async def test_a_command_that_hangs_is_ended(command: Command, tmp_path: Path) -> None:
    command("kubectl", {}, after=f"echo $$ > {tmp_path}/pid; exec sleep 60")
    began = time.monotonic()
    with pytest.raises(PinUnreadable, match="kubectl has not answered for 1 s"):
        await ask_json(("kubectl", "get"), about="It", timeout_s=1.0)
    assert time.monotonic() - began < 10
    pid = (tmp_path / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists()
