"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How a result is written."""

    TEXT = "text"
    JSON = "json"


OutputFormat = Annotated[Format, typer.Option("--format", help="text for people, json for machines.")]
Database = Annotated[str | None, typer.Option("--db", help="SQLite file or database URL (QUALAB_DB).")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", "--data_dir", help="Folder with the data sets as JSONL (QUALAB_DATA_DIR)."),
]
AllowEndpoint = Annotated[
    list[str] | None,
    typer.Option(help="What may be called: host (with *), address or network. Repeat it for more."),
]
AllowPath = Annotated[
    list[Path] | None, typer.Option(help="A folder of this machine that requests may name. Repeat it for more.")
]
SecretEnv = Annotated[
    list[str] | None, typer.Option(help="Environment variables that env:NAME may name. Default: QUALAB_KEY_*.")
]
SecretDir = Annotated[Path | None, typer.Option(help="Folder of the files that file:/path may name.")]
