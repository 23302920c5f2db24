"""A checkpoint's hash and commit out of its folder; digests out of what `kubectl` and `docker` print."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from qualab.errors import InvalidValue, PinUnreadable
from qualab.run import pins
from qualab.run.pins import LocalPins, ask_json
from tests.pins.conftest import A, B, C, Command, pod

COMMIT, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40


def quiet(text: str) -> None: ...


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


async def hash_of(folder: Path) -> str:
    return await LocalPins().checkpoint_hash(folder, say=quiet)


async def test_the_hash_is_what_is_written_down(tmp_path: Path) -> None:
    write(tmp_path, weights="abc", config="{}", sub__tokenizer="t")
    files = (("config", "{}"), ("sub/tokenizer", "t"), ("weights", "abc"))
    lines = (f"{name}\0{len(text)}\0{hashlib.sha256(text.encode()).hexdigest()}\n" for name, text in files)
    assert await hash_of(tmp_path) == f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


OTHERS = [{"a": "x", "b": "z"}, {"a": "x", "c": "y"}, {"a": "xy", "b": ""}, {"a": "x"}, {"a": "x", "b": "y", "c": ""}]


async def test_names_and_contents_alone_make_the_hash(tmp_path: Path) -> None:
    one = write(tmp_path / "one", a="x", b="y", _DOT_git__HEAD="x")
    two = write(tmp_path / "two", b="y", a="x", _DOT_cache__huggingface__lock="y")
    os.utime(two / "b", (1, 1))
    assert await hash_of(one) == await hash_of(two)
    for number, files in enumerate(OTHERS):
        assert await hash_of(write(tmp_path / str(number), **files)) != await hash_of(one)


async def test_links_count_as_what_they_lead_to(tmp_path: Path) -> None:
    """As in the hub's cache: a snapshot holds links to blobs."""
    plain = write(tmp_path / "plain", weights="abc", sub__config="{}")
    write(tmp_path / "blobs", first="abc", folder__config="{}")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "weights").symlink_to(tmp_path / "blobs" / "first")
    (linked / "sub").symlink_to(tmp_path / "blobs" / "folder")
    assert await hash_of(linked) == await hash_of(plain)


async def test_large_files_are_read_in_steps_with_progress_and_again_only_where_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, weights="abcdefghij" * 3, config="{}")
    whole, source = await hash_of(tmp_path), LocalPins()
    for name, value in (("STEP_BYTES", 7), ("SAY_FROM_BYTES", 1), ("SAY_EVERY_S", 0.0)):
        monkeypatch.setattr(pins, name, value)
    said: list[str] = []
    assert await source.checkpoint_hash(tmp_path, say=said.append) == whole
    assert said[0] == f"Hashing the checkpoint {tmp_path}, 0.0 GB"
    assert len(said) == 1 + 1 + 5, "a step of one file, five of the other"
    assert await source.checkpoint_hash(tmp_path, say=said.append) == whole
    assert len(said) == 7, "nothing is read again"
    write(tmp_path, weights="abcdefghij" * 2 + "changed it")
    os.utime(tmp_path / "weights", (1, 1))
    assert await source.checkpoint_hash(tmp_path, say=said.append) != whole
    assert len(said) == 7 + 1 + 5


async def test_what_is_no_folder_with_files(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("nowhere", "file"):
        with pytest.raises(InvalidValue, match=rf"{name} is not a directory. --checkpoint names the folder"):
            await hash_of(tmp_path / name)
        with pytest.raises(InvalidValue, match="is not a directory"):
            revision(tmp_path / name)
    (tmp_path / "file").unlink()
    with pytest.raises(InvalidValue, match="holds no files"):
        await hash_of(tmp_path)
    (tmp_path / "weights").symlink_to(tmp_path / "gone")
    with pytest.raises(PinUnreadable, match="cannot be read"):
        await hash_of(tmp_path)


def revision(folder: Path) -> str:
    return LocalPins().revision(folder)


def test_the_commit_of_a_snapshot_stands_in_its_path_and_that_of_a_clone_in_its_head(tmp_path: Path) -> None:
    snapshot = write(tmp_path / "models--a--b" / "snapshots" / COMMIT, config="{}")
    assert revision(snapshot) == COMMIT
    (tmp_path / "link").symlink_to(snapshot)
    assert revision(tmp_path / "link") == COMMIT
    clone = write(tmp_path / "clone", _DOT_git__HEAD="ref: refs/heads/main\n")
    assert revision(clone) == ""
    (clone / ".git" / "packed-refs").write_text(f"# pack-refs with: peeled\n{OTHER} refs/heads/main\n")
    assert revision(clone) == OTHER
    write(clone, _DOT_git__refs__heads__main=f"{COMMIT}\n")
    assert revision(clone) == COMMIT
    write(clone, _DOT_git__HEAD=f"{OTHER}\n")
    assert revision(clone) == OTHER


def test_the_commit_of_a_download_is_the_one_that_all_its_files_name(tmp_path: Path) -> None:
    assert revision(write(tmp_path, config="{}")) == ""
    metadata = tmp_path / ".cache" / "huggingface" / "download"
    write(metadata, **{"config.json.metadata": f"{COMMIT}\netag\n1.5\n", "sub__w.metadata": f"{COMMIT}\netag\n1.5\n"})
    assert revision(tmp_path) == COMMIT
    write(metadata, **{"more.metadata": f"{OTHER}\netag\n1.5\n"})
    assert revision(tmp_path) == ""


GET = "get pod off-0 --namespace serving --output json"


async def pod_image(name: str = "serving/off-0") -> tuple[str, ...]:
    return await LocalPins().pod_image(name)


async def test_a_pods_image_id_in_every_runtimes_form(command: Command) -> None:
    for image_id in (
        *(f"{kind}vllm/vllm-openai@{A}" for kind in ("docker.io/", "docker-pullable://")),
        A,
        f"docker://{A}",
    ):
        calls = command("kubectl", {GET: pod(("vllm", image_id))})
        assert await pod_image() == (A,)
    assert set(calls.read_text().splitlines()) == {f"{GET} --request-timeout=15s"}
    # a runtime may tell the index's digest where the pod names the platform's
    command("kubectl", {GET: pod(("vllm", f"vllm/vllm-openai@{A}"), spec_image=f"vllm/vllm-openai@{B}")})
    assert await pod_image() == (A, B)


async def test_of_several_containers_one_is_named(command: Command) -> None:
    command("kubectl", {GET: pod(("proxy", A), ("vllm", B))})
    assert await pod_image("serving/off-0/vllm") == (B,)
    with pytest.raises(PinUnreadable, match="several containers: proxy, vllm"):
        await pod_image()
    with pytest.raises(PinUnreadable, match="no container other: proxy, vllm"):
        await pod_image("serving/off-0/other")


async def test_a_pod_that_tells_no_image(command: Command) -> None:
    not_yet = "names no image digest yet. Wait until it is running"
    answers = [(pod(("vllm", "")), not_yet), *((one, "has no container yet") for one in (pod(), {"status": None}, [1]))]
    for answer, says in answers:
        command("kubectl", {GET: answer})
        with pytest.raises(PinUnreadable, match=f"^Pod serving/off-0 {says}"):
            await pod_image()


async def test_a_containers_image_has_the_digests_it_was_pulled_by_and_its_own(command: Command) -> None:
    pulled, built = [f"vllm/vllm-openai@{A}", f"mirror.example/vllm@{B}"], C.removeprefix("sha256:")
    for image_id, pulled_by, digests in ((C, pulled, (A, B, C)), (built, [], (C,))):  # built here, as podman writes it
        container = [{"Id": "0123", "Image": image_id, "Config": {"Image": "vllm/vllm-openai:v1"}}]
        image = [{"Id": C, "RepoDigests": pulled_by}]
        command("docker", {"container inspect off": container, f"image inspect {image_id}": image})
        assert await LocalPins().container_image("off") == digests


async def test_what_the_command_says_is_told_with_the_command(command: Command) -> None:
    why = "echo 'E1129 noise' >&2; echo 'Error from server (NotFound): pods \"off-0\" not found' >&2; exit 1"
    command("kubectl", {}, after=why)
    with pytest.raises(PinUnreadable) as told:
        await pod_image()
    says = 'kubectl says: Error from server (NotFound): pods "off-0" not found'
    assert told.value.message == f"Pod serving/off-0 cannot be looked into: {says}"
    assert "Try it by hand: kubectl get pod off-0 --namespace serving" in told.value.hint


async def test_a_command_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PinUnreadable, match=r"kubectl cannot be started .*Install kubectl"):
        await pod_image()


async def test_a_command_that_fails_silently_or_prints_something_else(command: Command) -> None:
    for after, says in (("exit 3", "docker says: exit code 3"), ("echo hello; exit 0", "docker printed no JSON")):
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
