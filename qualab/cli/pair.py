"""`qualab pair` and `serve-pair`, and `--managed`: two vLLM servers from one file."""

from __future__ import annotations

import select
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualab.cli.options import Force
from qualab.cli.output import complain, write_file
from qualab.errors import UsageError
from qualab.managed.manifests import render_compose, render_kubernetes
from qualab.managed.pair import ServedPair, read_pair
from qualab.managed.serving import serve
from qualab.model.names import ArmName

if TYPE_CHECKING:
    from qualab.cli.progress import TerminalProgress
    from qualab.settings import Settings

EXAMPLES = Path(__file__).with_name("examples")
CHECK_EVERY_S = 0.5

app = typer.Typer(help="A pair of vLLM servers from one file.", no_args_is_help=True)
PairFile = Annotated[Path, typer.Argument(metavar="PAIR", help="A pair file (`qualab pair init` writes one).")]
Managed = Annotated[Path | None, typer.Option(metavar="PAIR", help="Pair file: serve both arms for this run.")]


class Kind(StrEnum):
    """Kind of manifests."""

    KUBERNETES = "kubernetes"
    COMPOSE = "compose"


def serve_pair(
    pair: PairFile,
    sequential: Annotated[bool, typer.Option("--sequential", help="One arm after the other; Enter switches.")] = False,
) -> None:
    """Serve two vLLM servers that differ in the drafter alone, until Ctrl-C."""
    described = read_pair(pair)
    turns: list[tuple[ArmName, ...]] = [(arm,) for arm in ArmName] if sequential else [tuple(ArmName)]
    with ended_by_sigterm():
        for turn in turns:
            with serve(described, arms=turn, say=complain) as servers:
                if not _watch(described, servers, may_switch=turn != turns[-1]):
                    break


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("pair.yaml"), force: Force = False
) -> None:
    """Write a commented pair.yaml."""
    write_example("pair.yaml", path, force=force)
    typer.echo(f"Wrote {path}. Edit it, then one of:")
    typer.echo(f"  qualab run experiment.yaml --managed {path}")
    typer.echo(f"  qualab serve-pair {path}")


@app.command(short_help="Write Kubernetes manifests or a compose file.")
def render(
    pair: PairFile,
    kind: Annotated[Kind, typer.Option("--format", help="What the manifests are for.")] = Kind.KUBERNETES,
    output: Annotated[Path | None, typer.Option(help="Folder to write into. Default: standard output.")] = None,
) -> None:
    """Write the pair as Kubernetes manifests or as a compose file, its image pinned by digest."""
    described = read_pair(pair)
    files = (render_kubernetes if kind is Kind.KUBERNETES else render_compose)(described)
    if described.is_floating:
        complain("no revision is given: results will be of a model that may change")
    if output is None:
        typer.echo("---\n".join(files.values()), nl=False)
        return
    make_folder(output, hint="Change --output")
    for name, text in files.items():
        write_file(output / name, text)
        complain(f"wrote {output / name}")


def write_example(name: str, path: Path, *, force: bool) -> None:
    """Write the commented file of this name. Raises UsageError where a file is there already."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="Give another path, or --force to overwrite it")
    make_folder(path.parent, hint="Give another path")
    write_file(path, (EXAMPLES / name).read_text(encoding="utf-8"))


def make_folder(folder: Path, *, hint: str) -> None:
    """Make a folder and those above it. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"Cannot make the folder {folder}: {exc.strerror}", hint=hint) from exc


def with_managed(given: Mapping[str, Any], managed: Path | None, *, planned: Mapping[str, Any]) -> dict[str, Any]:
    """Add the URLs and the model's name of the pair of `--managed` to the command line.

    `planned` are a frozen plan's settings: its model has to be the pair's. Raises UsageError.
    """
    if managed is None:
        return dict(given)
    if repeated := [name for name in ("baseline", "candidate", "model") if given.get(name) is not None]:
        raise UsageError(f"--managed and --{repeated[0]} say the same thing", hint=f"Leave out --{repeated[0]}")
    pair = read_pair(managed)
    urls = {arm.value: pair.url(arm) for arm in ArmName}
    if planned.get("model", pair.served_model_name) != pair.served_model_name:
        raise UsageError(
            f"The plan is of model {planned['model']}, and {managed} serves {pair.served_model_name}",
            hint="Change served_model_name in the pair file, or run `qualab plan` again",
        )
    return {**given, **urls} if planned else {**given, **urls, "model": pair.served_model_name}


def with_pins(settings: Settings, managed: Path | None) -> Settings:
    """Pin image and revision to those of the pair of `--managed` where the settings name none."""
    if managed is None:
        return settings
    pair = read_pair(managed)
    return settings.model_copy(
        update={"image": settings.image or pair.image, "revision": settings.revision or pair.revision}
    )


@contextmanager
def while_served(
    managed: Path | None, progress: TerminalProgress, arms: Sequence[ArmName] = tuple(ArmName)
) -> Iterator[None]:
    """Serve these arms of the pair of `--managed`, if there is one. SIGTERM ends this as Ctrl-C does."""
    if managed is None:
        yield
        return
    pair = read_pair(managed)
    try:
        with ended_by_sigterm(), serve(pair, arms=arms, say=complain):
            yield
    except BaseException:
        if progress.comparison_id:
            complain(f"To go on, serve the pair again: qualab resume {progress.comparison_id} --managed {managed}")
        raise


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM interrupt this as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _watch(pair: ServedPair, servers: Sequence[Any], *, may_switch: bool) -> bool:
    """Wait for Ctrl-C (False), or for Enter where the other arm may follow (True). Raises when a server has ended."""
    try:
        for server in servers:
            typer.echo(f"{server.arm:<10} {pair.url(server.arm)}  (model {pair.served_model_name})")
        complain("Enter stops it and serves the candidate; Ctrl-C ends" if may_switch else "Ctrl-C stops and ends")
        while True:
            for server in servers:
                server.check()
            watched = [sys.stdin] if may_switch else []
            if select.select(watched, [], [], CHECK_EVERY_S)[0]:
                if sys.stdin.readline():
                    return True
                may_switch = False  # no terminal: it ends by a signal
    except KeyboardInterrupt:
        return False
