"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args

import typer

from qualab.errors import InvalidValue, UsageError
from qualab.model.plan import FindingCode

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
KEYWORD = inspect.Parameter.KEYWORD_ONLY
DURATION = re.compile(r"(\d{1,5})([smhdw])")


ComparisonId = Annotated[str, typer.Argument(help="Id of a comparison, or its beginning.")]
ExperimentFile = Annotated[Path | None, typer.Argument(help="Experiment file (`qualab init`) or plan (`qualab plan`).")]
Allow = Annotated[str | None, typer.Option(help="Findings to let stand, as fewshot,prompts.")]
PlanHash = Annotated[str | None, typer.Option(help="Plan of a later `qualab compare`, by its hash's beginning.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")]
Database = Annotated[str | None, typer.Option("--db", help="SQLite file or database URL (QUALAB_DB).")]
"""Repeats the option of Settings, whose import takes longer than `qualab list`."""
Given = Mapping[str, Any]
"""The settings that the command line holds, by name."""


def settings_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameter `given` by options for these fields of Settings, or of ServiceSettings."""

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            if parameter.name == "given":
                options = (inspect.Parameter(name, KEYWORD, default=None, annotation=_option(name)) for name in names)
                parameters.extend(options)
            else:
                parameters.append(parameter.replace(kind=KEYWORD))

        @functools.wraps(function)
        def command(**values: Any) -> None:
            given = {name: value for name in names if (value := values.pop(name)) not in (None, [], ())}
            if given.get("tasks") == "list":
                from qualab.cli.lm_eval import list_tasks

                list_tasks()
                raise typer.Exit
            function(given=given, **values)

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorated


def _option(name: str) -> Any:
    from qualab.settings import Settings

    field = Settings.model_fields.get(name)
    if field is None:
        from qualab.service.settings import ServiceSettings

        field = ServiceSettings.model_fields[name]
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "option" in extra:
        return Annotated[list[str] | None, typer.Option(str(extra["option"]), help=field.description)]
    kinds = get_args(field.annotation) if isinstance(field.annotation, UnionType) else (field.annotation,)
    known = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, bool | int | float | Path | StrEnum))
    # `qualab speed --works` is speed_works in a file
    spelt = f"--{name.replace('_', '-')}"
    names = [spelt.replace("--speed-", "--"), spelt] if name.startswith("speed_") else []
    return Annotated[next(known, str) | None, typer.Option(*names, help=field.description)]


def finding_codes(text: str | None) -> tuple[FindingCode, ...]:
    """Read what --allow names. Raises UsageError."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if wrong := set(names) - set(FindingCode):
        raise UsageError(f"There is no finding named {min(wrong)}", hint=f"There are: {', '.join(FindingCode)}")
    return tuple(map(FindingCode, names))


def local_data(folder: Path | None) -> dict[str, str]:
    """Name the data sets' folder to a use case that loads a stored plan's tasks."""
    return {"data_dir": str(folder.resolve())} if folder else {}


def duration(text: str, *, option: str) -> timedelta:
    """Read 90s, 30m, 12h, 90d or 2w. Raises InvalidValue."""
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidValue(f"{option}: '{text}' is not a duration", hint="As 90s, 30m, 12h, 90d or 2w")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


def moment_of(text: str, *, option: str, now: datetime) -> datetime:
    """Read a date or time (UTC where it names no zone), or an age before now. Raises InvalidValue."""
    if DURATION.fullmatch(text.strip()):
        return now - duration(text, option=option)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        hint = "As 2026-03-04, 2026-03-04T05:06+09:00, or an age as 12h, 90d, 2w"
        raise InvalidValue(f"{option}: '{text}' is not a time", hint=hint) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
