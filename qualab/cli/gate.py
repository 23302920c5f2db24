"""`qualab gate`: a pipeline goes on or stops."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qualab.cli.options import Database, Format, OutputFormat
from qualab.cli.output import output_may_fail
from qualab.errors import InvalidValue, QualabError, Unauthenticated, UsageError

if TYPE_CHECKING:
    from qualab.model.report import GateResult
    from qualab.run.gate import Source


ONE_TOKEN = "It holds one token and nothing else"
NO_TOKEN = "Set QUALAB_TOKEN, or name its file with --token-file; `qualab token create NAME --scope read` makes one"
Files = dict[str, Path]
"""What is written, by kind: "junit", "markdown", "json"."""


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command("gate", short_help="Wait for a verdict; the exit code tells it.")(gate)


def gate(
    comparison: Annotated[str, typer.Argument(help="Id of a comparison.")] = "",
    latest: Annotated[bool, typer.Option("--latest", help="The newest comparison with --label.")] = False,
    label: Annotated[str, typer.Option(help="With --latest.")] = "",
    server: Annotated[
        str, typer.Option(envvar="QUALAB_SERVER", help="Ask this `qualab serve` instead of a database.")
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(help="File that holds the server's token; or set QUALAB_TOKEN.")
    ] = None,
    timeout: Annotated[str, typer.Option(help="How long to wait, as 90s, 30m or 12h.")] = "6h",
    poll: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 5.0,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a summary for a merge request here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything as JSON here.")] = None,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Wait for a comparison's verdict, print it with its reasons, and exit with its code.

    0 equivalent, 1 regression, 2 usage, 3 inconclusive, 4 invalid, 5 no verdict.
    """
    from qualab import bootstrap
    from qualab.cli.output import OF_VERDICT
    from qualab.cli.times import duration

    _check_named(comparison, latest=latest, label=label)
    files = {kind: path for kind, path in (("junit", junit), ("markdown", markdown), ("json", json_file)) if path}
    wait_s = duration(timeout, option="--timeout").total_seconds()
    token = _token(token_file)
    try:
        found = bootstrap.run_async(
            _waited(server, token, db, comparison=comparison, label=label, timeout_s=wait_s, poll_s=poll)
        )
    except QualabError as error:
        if isinstance(error, Unauthenticated) and not token:
            error.hint = NO_TOKEN
        _write_error(comparison or label, error, files)
        raise
    _write(found, files)
    with output_may_fail():
        _print(found, output_format)
    raise typer.Exit(OF_VERDICT[found.verdict])


def _check_named(comparison: str, *, latest: bool, label: str) -> None:
    if comparison and (latest or label):
        raise UsageError("Both an id and --latest or --label are given", hint="Give the id, or --latest with --label")
    if not comparison and not (latest and label):
        raise UsageError("No comparison is named", hint="Give its id, or --latest with --label")


def _token(path: Path | None) -> str:
    import os

    if path is None:
        return _checked(os.environ.get("QUALAB_TOKEN", "").strip(), "QUALAB_TOKEN")
    try:
        return _checked(path.read_text(encoding="utf-8").strip(), f"The token file {path}")
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidValue(f"Cannot read the token file {path}", hint=ONE_TOKEN) from exc


def _checked(token: str, where: str) -> str:
    """The token is not repeated: it may be another secret."""
    if not (token.isascii() and token.isprintable()):
        raise InvalidValue(f"{where} holds more than a token", hint=ONE_TOKEN)
    return token


async def _waited(
    server: str, token: str, db: str | None, *, comparison: str, label: str, timeout_s: float, poll_s: float
) -> GateResult:
    from qualab.cli.output import complain
    from qualab.run.gate import gate as wait

    async with _source(server, token, db) as source:
        chosen = comparison or await source.latest(label)
        return await wait(source, chosen, timeout_s=timeout_s, poll_s=poll_s, say=complain)


@asynccontextmanager
async def _source(server: str, token: str, db: str | None) -> AsyncIterator[Source]:
    from qualab import bootstrap
    from qualab.run.gate import ServedVerdicts, StoredVerdicts
    from qualab.settings import load

    if server:
        async with bootstrap.remote_service(server, token=token) as remote:
            yield ServedVerdicts(remote=remote)
        return
    settings = load(command_line={"db": db})
    store, registry = bootstrap.stores_of(settings)
    yield StoredVerdicts(store=store, registry=registry, clock=bootstrap.clock())


def _write(found: GateResult, files: Files) -> None:
    from qualab import bootstrap

    for kind, path in files.items():
        _put(path, _json(found).encode() if kind == "json" else bootstrap.gate_renderer(kind)(found))


def _write_error(name: str, error: QualabError, files: Files) -> None:
    """In every file: what an earlier gate left there must not be taken for this one's result."""
    from qualab import bootstrap

    said = f"{error.message}. {error.hint}" if error.hint else error.message
    for kind, path in files.items():
        if kind == "json":
            about = {"code": error.code, "message": error.message, "hint": error.hint}
            _put(path, _text({"verdict": None, "error": about}).encode())
        else:
            _put(path, bootstrap.gate_error_renderer(kind)(name, code=error.code, message=said))


def _put(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as exc:
        raise UsageError(f"Cannot write {path}: {exc.strerror}", hint="Name a file in a folder that exists") from exc


def _json(found: GateResult) -> str:
    from qualab.report.words import shown

    return _text(shown(found))


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _print(found: GateResult, output_format: Format) -> None:
    if output_format is Format.JSON:
        sys.stdout.write(_json(found))
        return
    from qualab.model.wording import line_text
    from qualab.report.words import ENGLISH

    said = f" ({line_text(found.label)})" if found.label else ""
    typer.echo(f"{found.verdict.value}: {found.id}{said}, plan {found.plan_hash[:12]}")
    for reason in found.reasons:
        typer.echo(f"  {line_text(ENGLISH.reason(reason))}")
    for caveat in found.caveats:
        typer.echo(f"  Note: {line_text(ENGLISH.reason(caveat))}")
