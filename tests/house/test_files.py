from __future__ import annotations

import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.house.modules import ROOT

MAX_BYTES = 1 << 20
EXTRAS = ("demo", "dev", "postgres")
REGISTRIES = [f"{name}.{top}" for name, top in (("pypi", "org"), ("pythonhosted", "org"), ("archive.ubuntu", "com"))]
REGISTRIES += [f"{name}.org" for name in ("store.npmjs", "deb.debian")]
HOMES = ("root", "work", "home/[a-z]+", "Users/[A-Za-z]+")
MACHINE_PATH = re.compile(rf"(?<![\w.$}}~-])/(?:{'|'.join(HOMES)})/")
ADDRESS = re.compile(r"\w+://|^\s*-|@ *file|(?:index|find)[-_](?:url|links)", re.MULTILINE)
PIN = re.compile(r"[a-z0-9][a-z0-9.-]*(?:\[[a-z0-9, -]+\])?==[\w.]+(?: ; [^\\\n]+)?")


@cache
def tracked() -> tuple[Path, ...]:
    """The files that belong to the project: those of git, with new ones that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("needs a git checkout")
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


def texts() -> list[tuple[str, str]]:
    return [(str(path.relative_to(ROOT)), path.read_text(errors="replace")) for path in tracked()]


def locks() -> list[Path]:
    return sorted(ROOT.glob("*.lock"))


def pins(text: str) -> list[tuple[str, list[str]]]:
    """(requirement, hashes) of a lock file."""
    lines = [line.removesuffix("\\").strip() for line in text.splitlines() if line.strip()]
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("--hash=sha256:"):
            found[-1][1].append(line.removeprefix("--hash=sha256:"))
        else:
            found.append((line, []))
    return found


def test_no_file_is_over_1_mib() -> None:
    assert len(tracked()) > 50
    assert [str(path) for path in tracked() if path.stat().st_size > MAX_BYTES] == []


def test_no_file_names_a_package_registry() -> None:
    assert [(name, host) for name, text in texts() for host in REGISTRIES if host in text] == []


def test_no_file_holds_a_path_of_somebodys_machine() -> None:
    found = [(name, match[0]) for name, text in texts() if (match := MACHINE_PATH.search(text))]
    assert found == []


@pytest.mark.parametrize("path", locks(), ids=lambda path: path.name)
def test_a_lock_pins_everything_by_hash_and_names_no_address(path: Path) -> None:
    text = path.read_text()
    found = pins(text)
    assert found
    assert [name for name, _ in found if not PIN.fullmatch(name)] == []
    assert [name for name, hashes in found if not hashes] == []
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for _, hashes in found for digest in hashes)
    assert not ADDRESS.search(re.sub(r"^ +--hash=.*$", "", text, flags=re.MULTILINE))


def test_there_are_four_locks() -> None:
    parts = ("-build", "-demo-weights", "-manifests", "")
    assert [path.name for path in locks()] == [f"requirements{part}.lock" for part in parts]


def test_the_lock_covers_the_packages_that_the_project_names_and_nothing_of_gigabytes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(name for extra in EXTRAS for name in project["optional-dependencies"][extra])]
    named = {re.split(r"[^a-z0-9-]", name)[0] for name in wanted}
    pinned = {re.split(r"[=\[]", name)[0] for name, _ in pins((ROOT / "requirements.lock").read_text())}
    assert {"numpy", "xllamacpp", "pytest", "psycopg", "hatchling"} <= named
    assert named - pinned == set()
    text = (ROOT / "requirements.lock").read_text()
    assert re.findall(r"^(?:torch|nvidia-|triton|vllm|tensorflow|jax)[\w-]*==", text, re.MULTILINE) == []
