"""Plan files: written by `qualab plan`, taken by `qualab run`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from qualab.errors import InvalidValue, UsageError
from qualab.model.plan import arms_text
from qualab.settings import ENV_PREFIX, PLACE_FIELDS, PLAN_FIELDS, PLAN_FORMAT, Settings, load, read_document

if TYPE_CHECKING:
    from qualab.run.experiment import FrozenPlan


HEAD = """\
# A comparison's plan, frozen before its data. Run it: qualab run {name} --baseline URL --candidate URL
# Do not edit it: its hash is stored with every run. Another margin is another plan: run `qualab plan` again.
"""


def experiment_settings(settings: Settings, said: Mapping[str, Any]) -> dict[str, Any]:
    """What a plan file keeps: everything that makes the plan, where its items are, and other places that were said.

    `said` is what the experiment file and the command line hold; what the environment holds stays there.
    """
    everything = settings.model_dump(mode="json", include=set(PLAN_FIELDS))
    places = {name: str(said[name]) for name in PLACE_FIELDS if said.get(name)}
    places |= {name: arms_text(getattr(settings, name)) for name in ("pods", "containers") if said.get(name)}
    if settings.pin_names.checkpoint:
        places["checkpoint"] = str(Path(settings.pin_names.checkpoint).resolve())
    if settings.data_dir:
        places["data_dir"] = str(settings.data_dir.resolve())
    places["include_path"] = ",".join(str(path.resolve()) for path in settings.include_path)
    places["tokenizer"] = settings.tokenizer
    kept = {**{name: everything[name] for name in PLAN_FIELDS}, **{name: one for name, one in places.items() if one}}
    return {name: value for name, value in kept.items() if value is not None}


def write_plan_file(path: Path, document: Mapping[str, Any]) -> None:
    """Raises UsageError where the file cannot be written."""
    body = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=120)
    try:
        path.write_text(HEAD.format(name=path) + body, encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"Cannot write {path}: {exc.strerror}", hint="Choose another file with --output") from exc


def read_frozen(path: Path | None) -> FrozenPlan | None:
    """The frozen plan in a file, None where it is an experiment file. Raises UsageError, PlanChanged."""
    if path is None or PLAN_FORMAT not in (document := read_document(path)):
        return None
    from qualab.run.experiment import from_document

    return from_document(document, where=str(path))


def load_frozen(frozen: FrozenPlan, given: Mapping[str, Any]) -> Settings:
    """The settings of a plan's run. Raises InvalidValue for a flag or variable that would make it another plan."""
    flags = [name for name in PLAN_FIELDS if given.get(name) is not None]
    if flags:
        raise _refused(f"--{flags[0]}")
    settings, planned = load(content=frozen.settings, command_line=given), load(command_line=frozen.settings)
    for name in PLAN_FIELDS:
        if getattr(settings, name) != getattr(planned, name):
            raise _refused(f"{ENV_PREFIX}{name.upper()}")
    return settings


def _refused(what: str) -> InvalidValue:
    return InvalidValue(
        f"{what} would change the frozen plan",
        hint=f"Leave it out, or run `qualab plan` again. Free to choose: {', '.join(PLACE_FIELDS[:11])}",
    )
