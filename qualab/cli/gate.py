"""`qualab gate`: let a pipeline go on, or stop it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from qualab import bootstrap
from qualab.cli.options import Database, duration
from qualab.cli.output import Format, OutputFormat, complain, output_may_fail, print_as, write_file
from qualab.endpoints.remote import Service
from qualab.errors import InvalidValue, QualabError, Unauthenticated, UsageError
from qualab.model.names import WORST_FIRST, Language, exit_code
from qualab.model.ports import Clock
from qualab.model.report import GateResult
from qualab.model.wording import line_text
from qualab.report.gate import gate_markdown, gate_markdown_of_error, junit, junit_of_error
from qualab.report.model import report_model
from qualab.report.words import ENGLISH, shown
from qualab.run.gate import ServedVerdicts, Source, StoredVerdicts, check_policy
from qualab.run.gate import gate as wait
from qualab.settings import read_policy, read_secret

NO_TOKEN = "Set QUALAB_TOKEN, or name its file with --token-file; `qualab token create NAME --scope read` makes one"

EXISTING = "Name a file in a folder that exists"


def gate(
    comparison: Annotated[str, typer.Argument(help="Id of a comparison.")] = "",
    latest: Annotated[bool, typer.Option("--latest", help="The newest comparison with --label.")] = False,
    label: Annotated[str, typer.Option(help="With --latest.")] = "",
    server: Annotated[str, typer.Option(envvar="QUALAB_SERVER", help="URL of a `qualab serve` to ask.")] = "",
    token_file: Annotated[Path | None, typer.Option(help="File with the server's token (or QUALAB_TOKEN).")] = None,
    timeout: Annotated[str, typer.Option(help="How long to wait, as 90s, 30m or 12h.")] = "6h",
    poll: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 5.0,
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML here.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write a summary here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything as JSON here.")] = None,
    pdf_file: Annotated[Path | None, typer.Option("--pdf", help="Write the report here.")] = None,
    policy_file: Annotated[
        Path | None, typer.Option(help="Policy whose critical metrics must have decided, within its margin.")
    ] = None,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Wait for a comparison's verdict, print it with its reasons, and exit with its code.

    Where the newest with a label is one of several candidates, the worst of them counts.

    0 equivalent, 1 regression, 2 usage, 3 inconclusive, 4 invalid, 5 no verdict.
    """
    if comparison and (latest or label):
        raise UsageError("Both an id and --latest or --label are given", hint="Give the id, or --latest with --label")
    if not comparison and not (latest and label):
        raise UsageError("No comparison is named", hint="Give its id, or --latest with --label")
    wait_s = duration(timeout, option="--timeout").total_seconds()
    policy = read_policy(policy_file) if policy_file else None
    token, files = _token(token_file), (junit_file, markdown_file, json_file)

    async def waited() -> tuple[GateResult, bytes]:
        async with AsyncExitStack() as stack:
            remote = await stack.enter_async_context(Service(server, token=token)) if server else None
            source: Source = ServedVerdicts(remote) if remote else StoredVerdicts(bootstrap.store_at(db), Clock())
            of = partial(wait, source, timeout_s=wait_s, poll_s=poll, say=complain)
            result = await of(comparison or await source.latest(label))
            group = [own.values for own in result.caveats if own.code == "candidates" and latest]
            others = [
                f"{own['id']}-{name}" for own in group for name in own["names"] if not result.id.endswith(f"-{name}")
            ]
            results = [result, *[await of(other) for other in others]]
            for own in results if policy else ():
                check_policy(own, policy or {}, where=str(policy_file))
            worst = min(results, key=lambda own: WORST_FIRST.index(exit_code(own.verdict)))
            return await _reported(worst, source, with_pdf=pdf_file is not None)

    if pdf_file and pdf_file.is_file():  # an earlier gate's
        pdf_file.unlink()
    try:
        result, pdf = bootstrap.run_async(waited())
    except QualabError as error:
        if isinstance(error, Unauthenticated) and not token:
            error.hint = NO_TOKEN
        # write every file: what an earlier gate left there must not be taken for this one's result
        name, message = comparison or label, f"{error.message}. {error.hint}" if error.hint else error.message
        about = {"code": error.code, "message": error.message, "hint": error.hint}
        xml = junit_of_error(name, code=error.code, message=message)
        markdown = gate_markdown_of_error(name, code=error.code, message=message)
        _write(files, xml, markdown, {"verdict": None, "error": about})
        raise
    _write(files, junit(result), gate_markdown(result), result)
    if pdf_file and pdf:
        write_file(pdf_file, pdf, hint=EXISTING)
    with output_may_fail():
        print_as(output_format, result, lambda: _print(result))
    raise typer.Exit(exit_code(result.verdict))


async def _reported(result: GateResult, source: Source, *, with_pdf: bool) -> tuple[GateResult, bytes]:
    """Add the report's box, and draw its PDF; what keeps it from being drawn is said, and leaves the verdict."""
    box, pdf = result.box, b""
    try:
        if isinstance(source, StoredVerdicts):
            report = report_model(source.store, result.id, Language.ENGLISH)
            box, pdf = report.box, bootstrap.renderer("pdf")(report) if with_pdf else b""
        else:
            box = await source.box(result.id)
            pdf = await source.pdf(result.id) if with_pdf else b""
    except QualabError as error:
        complain(f"No report: {error.message}")
    return replace(result, box=box), pdf


def _token(path: Path | None) -> str:
    """Read the token. Errors do not repeat it: it may be another secret."""
    token = read_secret(path, "token") if path else os.environ.get("QUALAB_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        where = f"The token file {path}" if path else "QUALAB_TOKEN"
        raise InvalidValue(f"{where} holds more than a token", hint="It must hold one token and nothing else")
    return token


def _write(files: Sequence[Path | None], xml: bytes, markdown: str, document: object) -> None:
    text = json.dumps(shown(document), indent=2, ensure_ascii=False) + "\n"
    contents: tuple[str | bytes, ...] = (xml, markdown, text)
    for path, content in zip(files, contents, strict=True):
        if path:
            write_file(path, content, hint=EXISTING)


def _print(result: GateResult) -> None:
    label = f" ({line_text(result.label)})" if result.label else ""
    typer.echo(f"{result.verdict.value}: {result.id}{label}, plan {result.plan_hash[:12]}")
    for reason in result.reasons:
        typer.echo(f"  {line_text(ENGLISH.reason(reason))}")
    for caveat in result.caveats:
        typer.echo(f"  Note: {line_text(ENGLISH.reason(caveat))}")
