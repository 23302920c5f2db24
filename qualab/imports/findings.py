"""What two runs differ in, and what of it makes their comparison meaningless."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from qualab.errors import PairDiffers
from qualab.imports.join import ArmLog, Match, settings_text
from qualab.model.logged import LoggedRun, LoggedTask
from qualab.model.names import ArmName
from qualab.model.plan import FindingCode, Imported, ImportFinding, TaskJoin
from qualab.model.reason import Reason, of
from qualab.report.words import ENGLISH

STOPPING = frozenset(
    {
        *(FindingCode.TASK_VERSION, FindingCode.TASK_CONFIG, FindingCode.DATASET, FindingCode.FEWSHOT),
        *(FindingCode.CHAT_TEMPLATE, FindingCode.SYSTEM_INSTRUCTION, FindingCode.GENERATION, FindingCode.FORMAT),
    }
)
"""A difference that is no drafter's: the scores are not those of one question asked twice."""

_SETTINGS = {
    "chat template": (FindingCode.CHAT_TEMPLATE, "differ.chat-template"),
    "few-shot examples as turns": (FindingCode.CHAT_TEMPLATE, "differ.turns"),
    "system instruction": (FindingCode.SYSTEM_INSTRUCTION, "differ.system-instruction"),
}
_LONGEST = 60


def run_findings(baseline: ArmLog, candidate: ArmLog, joined: Mapping[str, Sequence[Match]]) -> Iterator[ImportFinding]:
    """Everything that the logs themselves tell apart, run by run and task by task."""
    off, on = baseline.run, candidate.run
    yield from _same_run(off, on)
    yield from _differing(FindingCode.FORMAT, Reason("differ.format"), off.format, on.format)
    harness = Reason("differ.harness", {"tool": off.format})
    yield from _differing(FindingCode.HARNESS, harness, off.harness_version, on.harness_version)
    yield from _differing(FindingCode.MODEL, Reason("differ.model"), off.model, on.model)
    yield from _differing(FindingCode.SEED, Reason("differ.seed"), _text(off.seed), _text(on.seed))
    yield from _differing(FindingCode.LIMIT, Reason("differ.limit"), _text(off.limit), _text(on.limit))
    for name, (code, differs) in _SETTINGS.items():
        yield from _differing(code, Reason(differs), off.settings.get(name), on.settings.get(name))
    yield from _unchecked(off, on, sorted(joined))
    for task in sorted(joined):
        yield from _task_findings(task, baseline, candidate)
        yield from _generation_findings(task, baseline, candidate, joined[task])
    arms = ((ArmName.BASELINE, baseline, candidate), (ArmName.CANDIDATE, candidate, baseline))
    for arm, log, other in arms:
        if only := tuple(sorted(log.tasks.keys() - other.tasks)):
            what = Reason("one-arm-has", {"arm": arm, "tasks": only})
            yield ImportFinding(code=FindingCode.TASKS, what=what)
    for name, log in (("baseline", baseline), ("candidate", candidate)):
        yield from _of_arm(name, log)


def _same_run(off: LoggedRun, on: LoggedRun) -> Iterator[ImportFinding]:
    """What a run that was copied, or taken for both arms, looks like."""
    if off.files and sorted(off.files.values()) == sorted(on.files.values()):
        what = Reason("same-bytes")
        yield ImportFinding(code=FindingCode.SAME_RUN, what=what)
    elif off.date and off.date == on.date and not (off.exported_from and on.exported_from):
        what = Reason("same-date", {"date": f"{off.date:%Y-%m-%d %H:%M:%S}"})
        yield ImportFinding(code=FindingCode.SAME_RUN, what=what)


def _unchecked(off: LoggedRun, on: LoggedRun, tasks: Sequence[str]) -> Iterator[ImportFinding]:
    """What could not be compared, since a log does not tell it. A table of scores tells nothing at all."""
    silent: dict[tuple[ArmName, ...], list[Reason]] = {}
    for part, tells in _TOLD.items():
        arms = tuple(arm for arm, run in zip(ArmName, (off, on), strict=True) if not tells(run, tasks))
        if arms and off.format != "table":
            silent.setdefault(arms, []).append(Reason(part))
    for arms, parts in silent.items():
        what = Reason("not-compared", {"arms": arms, "parts": tuple(parts)})
        yield ImportFinding(code=FindingCode.UNCHECKED, what=what)


def _tell(tell: Callable[[LoggedTask], object]) -> Callable[[LoggedRun, Sequence[str]], bool]:
    """Whether a run tells something of all of its tasks."""
    return lambda run, tasks: all(tell(run.tasks.get(name, LoggedTask(name=name))) not in ("", None) for name in tasks)


_TOLD: Mapping[str, Callable[[LoggedRun, Sequence[str]], bool]] = {
    "part.tool-version": lambda run, _: bool(run.harness_version),
    "part.task-versions": _tell(lambda task: task.version),
    "part.few-shot": _tell(lambda task: task.num_fewshot),
    "part.scoring": _tell(lambda task: task.scoring),
    "part.chat-template": lambda run, _: "chat template" in run.settings,
    "part.system-instruction": lambda run, _: "system instruction" in run.settings,
}


def _of_arm(name: str, log: ArmLog) -> Iterator[ImportFinding]:
    for cut in log.cut:
        what = Reason("log-cut", {"arm": name, "file": cut.file, "line": cut.line})
        yield ImportFinding(code=FindingCode.CUT, what=what)
    if log.run.others:
        what = Reason("other-runs", {"arm": name, "n": log.run.others, "run": log.run.name})
        yield ImportFinding(code=FindingCode.RUNS, what=what)
    for task, entries in log.tasks.items():
        if entries.has_more_answers:
            what = of(task, Reason("more-answers", {"arm": name}))
            yield ImportFinding(code=FindingCode.ASSUMED, what=what)
        if entries.left_out:
            what = of(task, Reason("no-numbers", {"metrics": tuple(sorted(entries.left_out))}))
            yield ImportFinding(code=FindingCode.ASSUMED, what=what)


def _task_findings(name: str, baseline: ArmLog, candidate: ArmLog) -> Iterator[ImportFinding]:
    off, on = (log.run.tasks.get(name, LoggedTask(name=name)) for log in (baseline, candidate))
    versions = (re.sub(r"^(\d+)\.0+$", r"\1", one.version) for one in (off, on))  # some tools write 3.0 as 3
    yield from _differing(FindingCode.TASK_VERSION, of(name, Reason("differ.task-version")), *versions)
    yield from _differing(FindingCode.DATASET, of(name, Reason("differ.dataset")), off.dataset, on.dataset)
    shots = (_text(off.num_fewshot), _text(on.num_fewshot))
    yield from _differing(FindingCode.FEWSHOT, of(name, Reason("differ.few-shot")), *shots)
    same_version = baseline.run.harness_version == candidate.run.harness_version
    for one in _differing(FindingCode.TASK_CONFIG, of(name, Reason("differ.scoring")), off.scoring, on.scoring):
        yield one if same_version else replace(one, stops=False)  # other versions write the same thing otherwise


def _generation_findings(
    name: str, baseline: ArmLog, candidate: ArmLog, matches: Sequence[Match]
) -> Iterator[ImportFinding]:
    """Of every pair the settings of its requests, else those of the task's configuration."""
    off, on = (
        settings_text(log.run.tasks[name].generation) if name in log.run.tasks else "" for log in (baseline, candidate)
    )
    pairs = [
        (match.baseline.generation or off, match.candidate.generation or on)
        for match in matches
        if match.baseline and match.candidate
    ]
    differing = [(one, other) for one, other in pairs if one and other and one != other]
    if differing:
        what = of(name, Reason("differ.generation", {"n": len(differing), "total": len(pairs)}))
        yield from _differing(FindingCode.GENERATION, what, *differing[0])


def _differing(code: FindingCode, what: Reason, off: str | None, on: str | None) -> Iterator[ImportFinding]:
    """Only where both tell: what one log does not say is not known to differ."""
    if off is None or on is None or off == on or not (code in _ALWAYS_TOLD or (off and on)):
        return
    both = dict(zip(("baseline", "candidate"), map(_shown, _apart(off, on)), strict=True))
    if what.code == "of":
        differs = what.values["reason"]
        what = of(what.values["name"], replace(differs, values={**differs.values, **both}))
    else:
        what = replace(what, values={**what.values, **both})
    yield ImportFinding(code=code, what=what, stops=code in STOPPING)


_ALWAYS_TOLD = frozenset(code for code, _ in _SETTINGS.values())
"""Where an empty text says that there is none."""


def _apart(off: str, on: str) -> tuple[str, str]:
    """Of two long texts the part from which they differ on."""
    if max(len(off), len(on)) <= _LONGEST:
        return off, on
    same = next((place for place, (one, other) in enumerate(zip(off, on, strict=False)) if one != other), 0)
    start = max(0, same - _LONGEST // 3)
    return off[start:], on[start:]


def _shown(text: str) -> str:
    return (text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}...") or "none"


def _text(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def settle(findings: Sequence[ImportFinding], allowed: Sequence[FindingCode]) -> tuple[ImportFinding, ...]:
    """The findings, with what is allowed marked. Raises PairDiffers for what stops and is not allowed."""
    settled = [replace(one, is_allowed=one.stops and one.code in allowed) for one in findings]
    if stopping := [one for one in settled if one.stops and not one.is_allowed]:
        codes = ",".join(dict.fromkeys(one.code for one in stopping))
        raise PairDiffers(
            f"These two runs do not ask the same: {'; '.join(ENGLISH.reasons(one.what for one in stopping))}",
            hint=f"Compare runs that differ in the drafter alone, or let it stand with --allow {codes}",
        )
    return tuple(settled)


def names_of(runs: Mapping[str, LoggedRun]) -> dict[str, str]:
    """Each run as a person knows it."""
    return {arm: f"{f'{run.format} {run.harness_version}'.strip()}, {run.name}" for arm, run in runs.items()}


def import_caveats(imported: Imported) -> Iterator[Reason]:
    """Notes for whoever reads the result, what may make it void first."""
    first = [one for one in imported.findings if one.code is FindingCode.SAME_RUN]
    yield from (Reason("finding", {"what": one.what}) for one in first)
    yield Reason("runs-unchecked" if imported.is_of_store else "logs-unchecked")
    if imported.plan_hash:
        yield Reason("plan-adopted.changed" if imported.is_rule_changed else "plan-adopted")
    if not imported.plan_hash or imported.is_rule_changed:
        yield Reason("margin-chosen-after-data")
    if imported.leaves_unasked and any(join.only_baseline or join.only_candidate for join in imported.joins):
        yield Reason("unasked-left-out")
    for join in imported.joins:
        if parts := tuple(left_over(join)):
            values = {"task": join.task, "n": join.paired, "parts": parts}
            allowed = tuple(_allowed(join, imported))
            yield Reason("joined.allowed", {**values, "allowed": allowed}) if allowed else Reason("joined", values)
    for finding in (one for one in imported.findings if one not in first):
        yield Reason("finding.allowed" if finding.is_allowed else "finding", {"what": finding.what})


def left_over(join: TaskJoin) -> Iterator[Reason]:
    """What of a task's answers is no pair."""
    counts = {
        "only-baseline": join.only_baseline,
        "only-candidate": join.only_candidate,
        "prompts-differ": join.prompt_differs,
        "targets-differ": join.target_differs,
        "duplicated": join.duplicated,
        "lost-rows": join.lost,
    }
    yield from (Reason(code, {"n": count}) for code, count in counts.items() if count)


def _allowed(join: TaskJoin, imported: Imported) -> Iterator[str]:
    """Findings under which some of them count as pairs all the same."""
    counts = {
        FindingCode.PROMPTS: join.prompt_differs,
        FindingCode.TARGETS: join.target_differs,
        FindingCode.DUPLICATES: join.duplicated,
        FindingCode.ROWS: join.lost,
    }
    yield from (code.value for code, count in counts.items() if count and code in imported.allowed)
