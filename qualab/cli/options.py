"""Options that several commands share, and what their texts mean."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from qualab.errors import InvalidValue, UsageError
from qualab.model.plan import FindingCode

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
DURATION = re.compile(r"(\d{1,5})([smhdw])")


class Format(StrEnum):
    """How a result is written."""

    TEXT = "text"
    JSON = "json"


OutputFormat = Annotated[Format, typer.Option("--format", help="text for people, json for machines.")]
ComparisonId = Annotated[str, typer.Argument(help="Id of a comparison, or its beginning.")]
ExperimentFile = Annotated[
    Path | None, typer.Argument(help="An experiment file (`qualab init` writes one), or a plan (`qualab plan`).")
]
Allow = Annotated[
    str | None, typer.Option(help="Findings that are let stand, as fewshot,prompts; they are named in the result.")
]
PlanHash = Annotated[
    str | None, typer.Option(help="Beginning of a plan's hash: what `qualab compare` found under it, after the data.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")]
Database = Annotated[str | None, typer.Option("--db", help="SQLite file or database URL (QUALAB_DB).")]
"""As Settings has it, whose import takes longer than `qualab list`."""
Given = Mapping[str, Any]
"""The settings that the command line holds, by name."""


def settings_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameter `given` by options for these fields of Settings, or of ServiceSettings."""
    return functools.partial(_with_options, names)


def _with_options(names: tuple[str, ...], function: Callable[..., None]) -> Callable[..., None]:
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.name == "given":
            options = ((name, _option(name)) for name in names)
            parameters += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
                for name, option in options
            ]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def command(**values: Any) -> None:
        given = {name: value for name in names if (value := values.pop(name)) not in (None, [], ())}
        function(given=given, **values)

    return with_parameters(command, parameters)


def with_parameters(command: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """Give a function of any keywords these parameters, for Typer to read."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _option(name: str) -> Any:
    """The option of a setting: lists and mappings are texts, and both spellings of a name are known."""
    from qualab.settings import Settings

    field = Settings.model_fields.get(name)
    if field is None:
        from qualab.service.settings import ServiceSettings

        field = ServiceSettings.model_fields[name]
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "option" in extra:
        return Annotated[list[str] | None, typer.Option(str(extra["option"]), help=field.description)]
    kinds = typing.get_args(field.annotation) if isinstance(field.annotation, types.UnionType) else [field.annotation]
    kind = next(
        (one for one in kinds if isinstance(one, type) and issubclass(one, bool | int | float | Path | StrEnum)), str
    )
    spellings = dict.fromkeys((name, name.replace("_", "-")))
    flags = [f"--{one}/--no-{one}" if kind is bool else f"--{one}" for one in spellings]
    return Annotated[kind | None, typer.Option(*flags, help=field.description)]


def finding_codes(text: str | None) -> tuple[FindingCode, ...]:
    """Read what --allow names. Raises UsageError."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    known = {code.value: code for code in FindingCode}
    if wrong := [name for name in names if name not in known]:
        raise UsageError(f"There is no finding named {wrong[0]}", hint=f"There are: {', '.join(known)}")
    return tuple(known[name] for name in names)


def local_data(folder: Path | None) -> dict[str, str]:
    """Name the data sets' folder to a use case that loads a stored plan's tasks."""
    return {"data_dir": str(folder.resolve())} if folder else {}


def duration(text: str, *, option: str) -> timedelta:
    """Read 90s, 30m, 12h, 90d or 2w. Raises InvalidValue."""
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidValue(f"{option}: '{text}' is no duration", hint="As 90s, 30m, 12h, 90d or 2w")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


def moment_of(text: str, *, option: str, now: datetime) -> datetime:
    """Read a date or time (UTC where it names no zone), or an age before now. Raises InvalidValue."""
    if DURATION.fullmatch(text.strip()):
        return now - duration(text, option=option)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        hint = "As 2026-03-04, 2026-03-04T05:06+09:00, or an age as 12h, 90d, 2w"
        raise InvalidValue(f"{option}: '{text}' is no time", hint=hint) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
