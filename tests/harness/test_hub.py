"""Data sets from a hub at the commit that a branch is at, and machines without hub, network or NLTK's data."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from qualab.errors import ScoringUnavailable
from qualab.harness.catalog import read_catalog
from qualab.harness.loading import NEEDS_SENTENCES
from tests.harness.conftest import IFEVAL, TASKS_DIR, Load, gsm8k, haerae, instruction, write_jsonl
from tests.scripted_server import ScriptedServer, reply


class ScriptedHub(ScriptedServer):
    """A model hub: what the hub's and the data sets' libraries ask of one. A branch is at a data set's last commit."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: dict[str, list[str]] = {}
        self.is_down = False
        """Whether it hangs up without a word."""
        self.answer(self._lacking)

    def push(self, name: str, files: Mapping[str, bytes], commit: str = "") -> str:
        """A new commit of a data set, with all its files; returns it."""
        commits = self.commits.setdefault(name, [])
        commit = commit or hashlib.sha1(f"{name} {len(commits)}".encode()).hexdigest()
        commits.append(commit)
        oids = {path: hashlib.sha1(content).hexdigest() for path, content in files.items()}
        siblings = [{"rfilename": path} for path in files]
        described = {"id": name, "sha": commit, "siblings": siblings, "tags": [], "private": False}
        tree = [{"type": "file", "path": path, "size": len(files[path]), "oid": oids[path]} for path in files]
        self.routes["GET", f"/api/datasets/{name}"] = reply(described)
        for revision in ("main", commit):
            self.routes["GET", f"/api/datasets/{name}/revision/{revision}"] = reply(described)
            self.routes["GET", f"/api/datasets/{name}/tree/{revision}"] = reply(tree)
            for path, content in files.items():
                step = reply(content, headers={"ETag": f'"{oids[path]}"', "X-Repo-Commit": commit})
                for method in ("GET", "HEAD"):
                    self.routes[method, f"/datasets/{name}/resolve/{revision}/{path}"] = step
        return commit

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.is_down and request.transport is not None:
            request.transport.close()
        return await super()._handle(request)

    async def _lacking(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.removeprefix("/api").split("/")
        commits = self.commits.get("/".join(parts[2:4]), [])
        revision = parts[5] if len(parts) > 5 else "main"
        commit = commits[-1] if revision == "main" and commits else revision
        is_entry, lacks = commit in commits, "RevisionNotFound" if commits else "RepoNotFound"
        headers = {"X-Repo-Commit": commit} if is_entry else {}
        lacking = reply({}, status=404, headers={"X-Error-Code": "EntryNotFound" if is_entry else lacks, **headers})
        return await lacking(request)


LOADS = """
import json, sys, time
from pathlib import Path
from qualab.errors import QualabError
from tests.harness.conftest import load_named
for line in sys.stdin:
    names, data_dir, more = json.loads(line)
    before, tasks, n_items, error = time.monotonic(), {}, 0, ""
    try:
        more["include_paths"] = tuple(map(Path, more.get("include_paths", ())))
        loaded = load_named(*names, data_dir=Path(data_dir) if data_dir else None, **more)
        n_items = len(list(loaded.render()))
        tasks = {one.name: (one.revision, one.n_items, one.config_hash, one.data_hash) for one in loaded.tasks}
    except QualabError as exc:
        error = f"{exc.code} {exc}"
    print(json.dumps([tasks, n_items, error, time.monotonic() - before]), flush=True)
"""

NO_NETWORK_AND_NO_NLTK_DATA = """
import nltk, socket
def refuse(*args, **kwargs):
    raise AssertionError("the network was touched")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
nltk.data.path.clear()
"""


class Loaded(NamedTuple):
    tasks: dict[str, list[Any]]
    """Revision, number of items, hash of the configuration, hash of the data."""
    n_items: int
    error: str
    seconds: float


class Loader:
    """Loads in a process of its own, as the libraries read the hub's address when they are imported."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self._folder, self._process = folder, process

    def __call__(self, *names: str, data_dir: Path | str = "", **more: Any) -> Loaded:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([names, str(data_dir), more]) + "\n")
        self._process.stdin.flush()
        lines = iter(self._process.stdout.readline, "")
        return Loaded(*json.loads(next(line for line in lines if line.startswith("[{"))))  # lm-eval prints, too

    def task(self, name: str, path: str, config: str = "default", more: str = "") -> str:
        text = f"task: {name}\ndataset_path: {path}\ndataset_name: {config}\n"
        text += "output_type: generate_until\ntest_split: test\nmetric_list: [{metric: exact_match}]\n"
        text += "doc_to_text: '{{query}}'\ndoc_to_target: '{{answer}}'\n" + more
        (self._folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        return name

    def found(self, *names: str, **revisions: str) -> list[list[Any]]:
        """Revision and number of items of each of these own tasks."""
        loaded = self(*names, include_paths=[str(self._folder)], revisions=revisions)
        assert not loaded.error
        return [task[:2] for task in loaded.tasks.values()]

    def refused(self, *names: str, **revisions: str) -> str:
        return self(*names, include_paths=[str(self._folder)], revisions=revisions).error.partition(" ")[2]


@contextmanager
def loading(folder: Path, *, before: str = "", warns: bool = False, **environment: str) -> Iterator[Loader]:
    """Nothing is found in the user's own caches."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "NLTK_"))}
    env = {**clean, "HOME": str(folder), "HF_HOME": str(folder / "hf"), **environment}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", before + LOADS], env=env, **streams) as process:
        yield Loader(folder, process)
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert warns or not errors


@pytest.fixture(scope="module")
def hub() -> Iterator[ScriptedHub]:
    with ScriptedHub() as hub:
        yield hub


@pytest.fixture(scope="module")
def of_hub(hub: ScriptedHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    with loading(tmp_path_factory.mktemp("hub"), warns=True, HF_ENDPOINT=hub.root) as loader:
        yield loader


def jsonl(n_rows: int) -> bytes:
    return "\n".join(json.dumps(row) for row in haerae(n_rows)).encode()


def resolutions(hub: ScriptedHub, path: str) -> int:
    return sum(one.path == f"/api/datasets/{path}/revision/main" for one in hub.seen)


def test_a_branch_is_recorded_at_its_commit_and_read_there_again_for_a_plan(hub: ScriptedHub, of_hub: Loader) -> None:
    first = hub.push("o/moves", {"test.jsonl": jsonl(3)})
    name = of_hub.task("moves", "o/moves")
    assert of_hub.found(name) == [[first, 3]]
    second = hub.push("o/moves", {"test.jsonl": jsonl(5)})
    assert of_hub.found(name) == [[second, 5]]
    paths = [one.path for one in hub.seen if (one.method, one.path[:17]) == ("GET", "/datasets/o/moves")]
    assert len(paths) == 2
    assert not any("/main/" in path for path in paths)
    n_asked = resolutions(hub, "o/moves")
    assert of_hub.found(name, moves=first) == [[first, 3]]
    assert resolutions(hub, "o/moves") == n_asked


def test_tasks_of_one_load_read_one_commit(hub: ScriptedHub, of_hub: Loader) -> None:
    splits = "".join(f"- config_name: {one}\n  data_files:\n  - {{split: test, path: {one}.jsonl}}\n" for one in "ab")
    files = {"README.md": f"---\nconfigs:\n{splits}---\n".encode(), "a.jsonl": jsonl(2), "b.jsonl": jsonl(4)}
    commit = hub.push("o/two", files)
    names = [of_hub.task(f"two_{one}", "o/two", one) for one in "ab"]
    assert of_hub.found(*names) == [[commit, 2], [commit, 4]]
    assert resolutions(hub, "o/two") == 1


def test_a_pin_of_the_catalog_is_read(hub: ScriptedHub, of_hub: Loader) -> None:
    pin = str(read_catalog(TASKS_DIR).datasets["openai/gsm8k"].revision)
    splits = "".join(f"  - {{split: {split}, path: {split}.jsonl}}\n" for split in ("train", "test"))
    card = f"---\nconfigs:\n- config_name: main\n  data_files:\n{splits}---\n"
    train, test = ("\n".join(map(json.dumps, gsm8k(n))).encode() for n in (9, 2))
    hub.push("openai/gsm8k", {"README.md": card.encode(), "train.jsonl": train, "test.jsonl": test}, commit=pin)
    hub.push("openai/gsm8k", {})
    assert of_hub.found("gsm8k") == [[pin, 2]]


def test_a_branch_or_data_set_that_is_not_there_is_said(hub: ScriptedHub, of_hub: Loader) -> None:
    hub.push("o/here", {"test.jsonl": jsonl(3)})
    absent, gone = "is not on the hub, or not open to you", "has no revision v2 on the hub"
    for name, said in (
        (of_hub.task("absent", "o/absent"), f"o/absent {absent}"),
        (of_hub.task("gone", "o/here", more="dataset_kwargs: {revision: v2}\n"), f"o/here {gone}"),
    ):
        assert of_hub.refused(name).startswith(f"Data set {said}, and there is no data directory")


def test_without_the_hub_the_cache_serves_what_it_holds_and_only_that(hub: ScriptedHub, of_hub: Loader) -> None:
    first = hub.push("o/cached", {"test.jsonl": jsonl(3)})
    name = of_hub.task("cached", "o/cached")
    assert of_hub.found(name) == [[first, 3]]
    hub.is_down = True
    try:
        assert of_hub.found(name) == [[first, 3]]
        assert of_hub.found(name, cached=first) == [[first, 3]]
        other = "0" * 40
        said = of_hub.refused(name, cached=other)
    finally:
        hub.is_down = False
    assert said.startswith(f"Data set o/cached is in the cache at commit {first}, not at {other}, and the hub cannot")


UNAVAILABLE = ("dataset-unavailable", "openai/gsm8k", "gsm8k/test.jsonl", "--data-dir", "QUALAB_DATA_DIR")


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_hub_that_is_silent_or_not_there_is_given_up_within_10_s(tmp_path: Path, is_silent: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        if not is_silent:
            server.close()
        with loading(tmp_path, HF_ENDPOINT=endpoint) as loader:
            found = loader("gsm8k")
    assert all(named in found.error for named in UNAVAILABLE)
    assert found.seconds < 10


def test_without_a_network_data_directories_serve_and_what_is_missing_is_named(
    load: Load, tmp_path: Path, tiny_data: Path
) -> None:
    (tmp_path / "hf").write_text("a file where a cache directory would be")
    checks = ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"})
    data, shared = tmp_path / "data", os.environ.get("QUALAB_SHARED")
    write_jsonl(data / "ifeval/train.jsonl", [*IFEVAL, instruction(9, "Write.", checks)])
    offline = {"HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "7"}
    with loading(tmp_path, before=NO_NETWORK_AND_NO_NLTK_DATA, **offline) as loader:
        assert all(named in loader("gsm8k").error for named in UNAVAILABLE)
        names = ("published-34", "release")
        found = {name: task[2:] for name, task in loader(*names, data_dir=tiny_data).tasks.items()}
        here = {task.name: [task.config_hash, task.data_hash] for task in load(*names).tasks}
        assert found == here, "the same in any process"
        assert loader("ifeval", "demo", data_dir=tiny_data).n_items > 0, "no item needs NLTK's sentences"
        error = loader("ifeval", data_dir=data).error
        assert error.startswith("scoring-unavailable")
        assert all(named in error for named in ("ifeval", "punkt_tab", str(data / "nltk_data")))
        if shared:
            assert loader("ifeval", data_dir=Path(shared) / "data").n_items == 541, "NLTK's data lie there"


def test_no_other_check_of_ifeval_reads_sentence_data(monkeypatch: pytest.MonkeyPatch) -> None:
    import nltk
    from lm_eval.tasks.ifeval import instructions_registry, instructions_util

    instructions_util._get_sentence_tokenizer.cache_clear()

    def missing(*_: object, **__: object) -> None:
        raise LookupError("no data")

    for module, name in ((nltk.data, "find"), (nltk.data, "load"), (nltk, "word_tokenize")):
        monkeypatch.setattr(module, name, missing)
    settings = {"keywords:existence": {"keywords": ["a"]}, "combination:repeat_prompt": {"prompt_to_repeat": "a"}}
    needing = set()
    for name, check in instructions_registry.INSTRUCTION_DICT.items():
        one = check(name)
        one.build_description(**settings.get(name, {}))
        try:
            one.check_following("One line. Another, of some words.\n\nAnd a third: (yes)! * a\n P.S. end")
        except LookupError:
            needing.add(name)
    assert needing == NEEDS_SENTENCES


def test_no_language_detector(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("lm_eval.tasks.ifeval")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langdetect", None)
    before = time.monotonic()
    for name in ("ifeval", "demo_instructions"):
        with pytest.raises(ScoringUnavailable, match=f"{name} needs the Python package langdetect"):
            load(name)
    assert time.monotonic() - before < 10
