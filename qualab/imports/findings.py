"""What two runs differ in, and what of it makes their comparison meaningless."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from qualab.errors import PairDiffers
from qualab.imports.join import ArmLog, Match, settings_text
from qualab.model.comparison import ArmSummary, Comparison
from qualab.model.logged import LoggedRun, LoggedTask
from qualab.model.plan import FindingCode, Imported, ImportFinding, TaskJoin

STOPPING = frozenset(
    {
        *(FindingCode.TASK_VERSION, FindingCode.TASK_CONFIG, FindingCode.DATASET, FindingCode.FEWSHOT),
        *(FindingCode.CHAT_TEMPLATE, FindingCode.SYSTEM_INSTRUCTION, FindingCode.GENERATION, FindingCode.FORMAT),
    }
)
"""A difference that is no drafter's: the scores are not those of one question asked twice."""

_SETTINGS = {
    "chat template": FindingCode.CHAT_TEMPLATE,
    "few-shot examples as turns": FindingCode.CHAT_TEMPLATE,
    "system instruction": FindingCode.SYSTEM_INSTRUCTION,
}
_LONGEST = 60


def run_findings(baseline: ArmLog, candidate: ArmLog, joined: Mapping[str, Sequence[Match]]) -> Iterator[ImportFinding]:
    """Everything that the logs themselves tell apart, run by run and task by task."""
    off, on = baseline.run, candidate.run
    yield from _same_run(off, on)
    yield from _differing(FindingCode.FORMAT, "the logs' format", off.format, on.format)
    yield from _differing(FindingCode.HARNESS, f"{off.format}'s version", off.harness_version, on.harness_version)
    yield from _differing(FindingCode.MODEL, "the model's name", off.model, on.model)
    yield from _differing(FindingCode.SEED, "the seed", _text(off.seed), _text(on.seed))
    yield from _differing(FindingCode.LIMIT, "the limit", _text(off.limit), _text(on.limit))
    for name, code in _SETTINGS.items():
        yield from _differing(code, f"the {name}", off.settings.get(name), on.settings.get(name))
    yield from _unchecked(off, on, sorted(joined))
    for task in sorted(joined):
        yield from _task_findings(task, baseline, candidate)
        yield from _generation_findings(task, baseline, candidate, joined[task])
    for arm, only in ((off, baseline.tasks.keys() - candidate.tasks), (on, candidate.tasks.keys() - baseline.tasks)):
        if only:
            what = f"only the {'baseline' if arm is off else 'candidate'} has {', '.join(sorted(only))}: left out"
            yield ImportFinding(code=FindingCode.TASKS, what=what)
    for name, log in (("baseline", baseline), ("candidate", candidate)):
        yield from _of_arm(name, log)


def _same_run(off: LoggedRun, on: LoggedRun) -> Iterator[ImportFinding]:
    """What a run that was copied, or taken for both arms, looks like."""
    if off.files and sorted(off.files.values()) == sorted(on.files.values()):
        what = "both logs are the same bytes: a copy of one run, or two runs that answered alike to the last letter"
        yield ImportFinding(code=FindingCode.SAME_RUN, what=what)
    elif off.date and off.date == on.date and not (off.exported_from and on.exported_from):
        what = f"both runs have the same date ({off.date:%Y-%m-%d %H:%M:%S}): one may be a copy of the other"
        yield ImportFinding(code=FindingCode.SAME_RUN, what=what)


def _unchecked(off: LoggedRun, on: LoggedRun, tasks: Sequence[str]) -> Iterator[ImportFinding]:
    """What could not be compared, since a log does not tell it. A table of scores tells nothing at all."""
    silent: dict[str, list[str]] = {}
    for name, tells in _TOLD.items():
        arms = [arm for arm, run in (("baseline", off), ("candidate", on)) if not tells(run, tasks)]
        if arms and off.format != "table":
            silent.setdefault(" and the ".join(arms), []).append(name)
    for silent_arms, names in silent.items():
        what = f"not compared, since the log of the {silent_arms} does not tell: {', '.join(names)}"
        yield ImportFinding(code=FindingCode.UNCHECKED, what=what)


def _tell(tell: Callable[[LoggedTask], object]) -> Callable[[LoggedRun, Sequence[str]], bool]:
    """Whether a run tells something of all of its tasks."""
    return lambda run, tasks: all(tell(run.tasks.get(name, LoggedTask(name=name))) not in ("", None) for name in tasks)


_TOLD: Mapping[str, Callable[[LoggedRun, Sequence[str]], bool]] = {
    "the tool's version": lambda run, _: bool(run.harness_version),
    "task versions": _tell(lambda task: task.version),
    "few-shot examples": _tell(lambda task: task.num_fewshot),
    "filters and metrics": _tell(lambda task: task.scoring),
    "the chat template": lambda run, _: "chat template" in run.settings,
    "the system instruction": lambda run, _: "system instruction" in run.settings,
}


def _of_arm(name: str, log: ArmLog) -> Iterator[ImportFinding]:
    for cut in log.cut:
        what = f"the {name}'s {cut.file} ends in the middle of line {cut.line}: that item is left out"
        yield ImportFinding(code=FindingCode.CUT, what=what)
    if log.run.others:
        runs = f"{log.run.others} other run{'' if log.run.others == 1 else 's'}"
        yield ImportFinding(code=FindingCode.RUNS, what=f"the {name}'s folder has {runs}; this is {log.run.name}")
    for task, entries in log.tasks.items():
        if entries.has_more_answers:
            what = f"{task}: the {name}'s scores come from more answers an item than the one that is kept"
            yield ImportFinding(code=FindingCode.ASSUMED, what=what)
        if entries.left_out:
            what = f"{task}: scores of {', '.join(sorted(entries.left_out))} are no numbers: left out"
            yield ImportFinding(code=FindingCode.ASSUMED, what=what)


def _task_findings(name: str, baseline: ArmLog, candidate: ArmLog) -> Iterator[ImportFinding]:
    off, on = (log.run.tasks.get(name, LoggedTask(name=name)) for log in (baseline, candidate))
    versions = (re.sub(r"^(\d+)\.0+$", r"\1", one.version) for one in (off, on))  # some tools write 3.0 as 3
    yield from _differing(FindingCode.TASK_VERSION, f"{name}: the task's version", *versions)
    yield from _differing(FindingCode.DATASET, f"{name}: the data set", off.dataset, on.dataset)
    shots = (_text(off.num_fewshot), _text(on.num_fewshot))
    yield from _differing(FindingCode.FEWSHOT, f"{name}: the number of few-shot examples", *shots)
    same_version = baseline.run.harness_version == candidate.run.harness_version
    for one in _differing(FindingCode.TASK_CONFIG, f"{name}: filters or metrics", off.scoring, on.scoring):
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
        what = f"{name}: the generation settings differ in {len(differing)} of {len(pairs)} answers"
        yield from _differing(FindingCode.GENERATION, what, *differing[0])


def _differing(code: FindingCode, what: str, off: str | None, on: str | None) -> Iterator[ImportFinding]:
    """Only where both tell: what one log does not say is not known to differ."""
    if off is None or on is None or off == on or not (code in _ALWAYS_TOLD or (off and on)):
        return
    shown = " and ".join(_shown(one) for one in _apart(off, on))
    yield ImportFinding(code=code, what=f"{what}: {shown}", stops=code in STOPPING)


_ALWAYS_TOLD = frozenset(_SETTINGS.values())
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
            f"These two runs do not ask the same: {'; '.join(one.what for one in stopping)}",
            hint=f"Compare runs that differ in the drafter alone, or let it stand with --allow {codes}",
        )
    return tuple(settled)


def names_of(runs: Mapping[str, LoggedRun]) -> dict[str, str]:
    """Each run as a person knows it."""
    return {arm: f"{f'{run.format} {run.harness_version}'.strip()}, {run.name}" for arm, run in runs.items()}


UNCHECKED = (
    "Imported from logs, which do not tell: that the drafter ran, and in the candidate alone; the arms' images and "
    "checkpoints; that both were sent the same bytes in one order, at one time, with the same retries and deadlines."
)
APART = (
    "Made of two runs of this store: whether they were asked at one time, of the same images and checkpoints, with the "
    "same retries, and with a drafter in the candidate alone, is not checked."
)
AFTER_DATA = "The margin was chosen after the data: not for sign-off."
UNASKED = "Items that only one of the two runs asked are left out: they are not missing."
ADOPTED = "The plan is that of the comparison that these logs were exported from, as they say."
ADOPTED_CHANGED = "The plan is that of the comparison that these logs were exported from, but for what decides."


def stream_source(comparison: Comparison) -> str:
    """The hash that an analysis draws its random numbers from: an exported run's is that of the run."""
    imported = comparison.plan.imported
    return imported.plan_hash if imported and imported.plan_hash else comparison.plan_hash


def without_times(arm: ArmSummary) -> ArmSummary:
    """No log tells how long an answer took."""
    return replace(arm, latency_p50_s=None, latency_p99_s=None)


def import_caveats(imported: Imported) -> Iterator[str]:
    """Notes for whoever reads the result, what may make it void first."""
    first = [one for one in imported.findings if one.code is FindingCode.SAME_RUN]
    yield from (f"{one.what}." for one in first)
    yield APART if imported.is_of_store else UNCHECKED
    if imported.plan_hash:
        yield ADOPTED_CHANGED if imported.is_rule_changed else ADOPTED
    if not imported.plan_hash or imported.is_rule_changed:
        yield AFTER_DATA
    if imported.leaves_unasked and any(join.only_baseline or join.only_candidate for join in imported.joins):
        yield UNASKED
    for join in imported.joins:
        if facts := list(left_over(join)):
            yield f"{join.task}: {join.paired} answers paired, {', '.join(facts)}{_taken(join, imported)}."
    for finding in (one for one in imported.findings if one not in first):
        yield f"{'Allowed: ' if finding.is_allowed else ''}{finding.what}."


def left_over(join: TaskJoin) -> Iterator[str]:
    """What of a task's answers is no pair."""
    counts = {
        "only in the baseline": join.only_baseline,
        "only in the candidate": join.only_candidate,
        "with other prompts": join.prompt_differs,
        "with another right answer": join.target_differs,
        "logged more than once": join.duplicated,
        "lost in both logs": join.lost,
    }
    yield from (f"{count} {what}" for what, count in counts.items() if count)


def _taken(join: TaskJoin, imported: Imported) -> str:
    """Which of them count as pairs all the same."""
    counts = {
        FindingCode.PROMPTS: join.prompt_differs,
        FindingCode.TARGETS: join.target_differs,
        FindingCode.DUPLICATES: join.duplicated,
        FindingCode.ROWS: join.lost,
    }
    taken = [code.value for code, count in counts.items() if count and code in imported.allowed]
    return f" (allowed: {', '.join(taken)})" if taken else ""
