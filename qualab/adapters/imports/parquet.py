"""Parquet files row by row. pyarrow is loaded when there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qualab.adapters.imports.files import check_begin
from qualab.domain.items import JsonObject
from qualab.errors import BadLog

ROWS = 500
"""In memory at a time."""


def read_parquet(path: Path, *, expected: str) -> Iterator[JsonObject]:
    """Rows as mappings. Raises BadLog."""
    import pyarrow  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as exc:
        if path.is_file():
            with path.open("rb") as raw:
                check_begin(path, raw.read(64))
        reason = " ".join(str(exc).split())[:200]
        raise BadLog(f"{path} cannot be read as Parquet: {reason}", hint=f"Expected {expected}") from exc
