"""A checkpoint's hash follows from names, sizes and contents alone; its commit from what came with it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from qualab.errors import InvalidValue, PinUnreadable
from qualab.run import pins as folders
from qualab.run.pins import LocalPins

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


async def test_it_is_the_same_wherever_the_folder_lies_and_whenever_it_was_written(tmp_path: Path) -> None:
    one = write(tmp_path / "one", config="{}", weights="abc", _DOT_git__HEAD="x")
    two = write(tmp_path / "two", weights="abc", config="{}", _DOT_cache__huggingface__lock="y")
    os.utime(two / "weights", (1, 1))
    assert await hash_of(one) == await hash_of(two)


@pytest.mark.parametrize(
    "files",
    [{"a": "x", "b": "z"}, {"a": "x", "c": "y"}, {"a": "xy", "b": ""}, {"a": "x"}, {"a": "x", "b": "y", "c": ""}],
)
async def test_another_content_name_or_file_is_another_hash(tmp_path: Path, files: dict[str, str]) -> None:
    before = await hash_of(write(tmp_path / "before", a="x", b="y"))
    assert await hash_of(write(tmp_path / "after", **files)) != before


async def test_links_count_as_what_they_lead_to(tmp_path: Path) -> None:
    """As in the hub's cache: a snapshot holds links to blobs."""
    plain = write(tmp_path / "plain", weights="abc", sub__config="{}")
    write(tmp_path / "blobs", first="abc", folder__config="{}")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "weights").symlink_to(tmp_path / "blobs" / "first")
    (linked / "sub").symlink_to(tmp_path / "blobs" / "folder")
    assert await hash_of(linked) == await hash_of(plain)


async def test_large_files_are_read_in_steps_and_progress_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, weights="abcdefghij" * 3, config="{}")
    whole = await hash_of(tmp_path)
    monkeypatch.setattr(folders, "STEP_BYTES", 7)
    monkeypatch.setattr(folders, "SAY_FROM_BYTES", 10)
    monkeypatch.setattr(folders, "SAY_EVERY_S", 0.0)
    said: list[str] = []
    assert await LocalPins().checkpoint_hash(tmp_path, say=said.append) == whole
    assert said[0] == f"Hashing the checkpoint {tmp_path}, 0.0 GB"
    assert len(said) > 5


async def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    step = folders._step

    def counted(path: str, offset: int, content: object) -> int:
        if not offset:
            read.append(Path(path).name)
        return step(path, offset, content)

    monkeypatch.setattr(folders, "_step", counted)
    source = LocalPins()
    write(tmp_path, config="{}", weights="abc")
    first = await source.checkpoint_hash(tmp_path, say=quiet)
    assert await source.checkpoint_hash(tmp_path, say=quiet) == first
    assert read == ["config", "weights"]
    write(tmp_path, weights="abd")
    os.utime(tmp_path / "weights", (1, 1))
    assert await source.checkpoint_hash(tmp_path, say=quiet) != first
    assert read == ["config", "weights", "weights"]


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


def test_the_commit_of_a_snapshot_stands_in_its_path(tmp_path: Path) -> None:
    snapshot = write(tmp_path / "models--a--b" / "snapshots" / COMMIT, config="{}")
    assert revision(snapshot) == COMMIT
    (tmp_path / "link").symlink_to(snapshot)
    assert revision(tmp_path / "link") == COMMIT


def test_the_commit_of_a_clone_is_that_of_its_head(tmp_path: Path) -> None:
    git = write(tmp_path, _DOT_git__HEAD="ref: refs/heads/main\n") / ".git"
    assert revision(tmp_path) == ""
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{OTHER} refs/heads/main\n", encoding="utf-8")
    assert revision(tmp_path) == OTHER
    write(tmp_path, _DOT_git__refs__heads__main=f"{COMMIT}\n")
    assert revision(tmp_path) == COMMIT
    write(tmp_path, _DOT_git__HEAD=f"{OTHER}\n")
    assert revision(tmp_path) == OTHER


def test_the_commit_of_a_download_is_the_one_that_all_its_files_name(tmp_path: Path) -> None:
    assert revision(write(tmp_path, config="{}")) == ""
    metadata = tmp_path / ".cache" / "huggingface" / "download"
    write(metadata, **{"config.json.metadata": f"{COMMIT}\netag\n1.5\n", "sub__w.metadata": f"{COMMIT}\netag\n1.5\n"})
    assert revision(tmp_path) == COMMIT
    write(metadata, **{"more.metadata": f"{OTHER}\netag\n1.5\n"})
    assert revision(tmp_path) == ""
