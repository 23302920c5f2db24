"""Find what two runs differ in, and which differences make their comparison meaningless."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from qualab.errors import PairDiffers
from qualab.imports.join import ArmLog, Match, settings_text
from qualab.model.logged import LoggedRun
from qualab.model.names import ArmName
from qualab.model.plan import FindingCode, ImportFinding
from qualab.model.reason import Reason, of
from qualab.report.words import ENGLISH

STOPPING = frozenset(
    {
        *(FindingCode.TASK_VERSION, FindingCode.TASK_CONFIG, FindingCode.DATASET, FindingCode.FEWSHOT),
        *(FindingCode.CHAT_TEMPLATE, FindingCode.SYSTEM_INSTRUCTION, FindingCode.GENERATION, FindingCode.FORMAT),
    }
)
"""A difference that is no drafter's: the scores are not those of one question asked twice."""
_ALWAYS_TOLD = frozenset({FindingCode.CHAT_TEMPLATE, FindingCode.SYSTEM_INSTRUCTION})
"""Where an empty text says that there is none."""
_LONGEST = 60


def run_findings(baseline: ArmLog, candidate: ArmLog, joined: Mapping[str, Sequence[Match]]) -> Iterator[ImportFinding]:
    """Compare the logs' settings, run by run and task by task."""
    off, on = baseline.run, candidate.run
    if off.files and sorted(off.files.values()) == sorted(on.files.values()):
        yield ImportFinding(code=FindingCode.SAME_RUN, what=Reason("same-bytes"))
    elif off.date and off.date == on.date and not (off.exported_from and on.exported_from):
        what = Reason("same-date", {"date": f"{off.date:%Y-%m-%d %H:%M:%S}"})
        yield ImportFinding(code=FindingCode.SAME_RUN, what=what)
    yield from _differing(FindingCode.FORMAT, "format", off.format, on.format)
    yield from _differing(FindingCode.HARNESS, "harness", off.harness_version, on.harness_version, tool=off.format)
    yield from _differing(FindingCode.MODEL, "model", off.model, on.model)
    yield from _differing(FindingCode.SEED, "seed", _text(off.seed), _text(on.seed))
    yield from _differing(FindingCode.LIMIT, "limit", _text(off.limit), _text(on.limit))
    for code, differs, name in (
        (FindingCode.CHAT_TEMPLATE, "chat-template", "chat template"),
        (FindingCode.CHAT_TEMPLATE, "turns", "few-shot examples as turns"),
        (FindingCode.SYSTEM_INSTRUCTION, "system-instruction", "system instruction"),
    ):
        yield from _differing(code, differs, off.settings.get(name), on.settings.get(name))
    yield from _unchecked(off, on, sorted(joined))
    for task in sorted(joined):
        yield from _task_findings(off, on, task, joined[task])
    arms = ((ArmName.BASELINE, baseline, candidate), (ArmName.CANDIDATE, candidate, baseline))
    for arm, log, other in arms:
        if only := tuple(sorted(log.tasks.keys() - other.tasks)):
            yield ImportFinding(code=FindingCode.TASKS, what=Reason("one-arm-has", {"arm": arm, "tasks": only}))
    for arm, log, _ in arms:
        yield from _of_arm(arm, log)


def _told(run: LoggedRun, names: Sequence[str]) -> dict[str, bool]:
    tasks = [run.task(name) for name in names]
    return {
        "part.tool-version": bool(run.harness_version),
        "part.task-versions": all(task.version for task in tasks),
        "part.few-shot": all(task.num_fewshot is not None for task in tasks),
        "part.scoring": all(task.scoring for task in tasks),
        "part.chat-template": "chat template" in run.settings,
        "part.system-instruction": "system instruction" in run.settings,
    }


def _unchecked(off: LoggedRun, on: LoggedRun, names: Sequence[str]) -> Iterator[ImportFinding]:
    """Find what could not be compared, since a log lacks it. A table of scores has nothing at all."""
    if off.format == "table":
        return
    told = {arm: _told(run, names) for arm, run in zip(ArmName, (off, on), strict=True)}
    silent: dict[tuple[ArmName, ...], list[Reason]] = {}
    for part in told[ArmName.BASELINE]:
        if arms := tuple(arm for arm in ArmName if not told[arm][part]):
            silent.setdefault(arms, []).append(Reason(part))
    for arms, parts in silent.items():
        what = Reason("not-compared", {"arms": arms, "parts": tuple(parts)})
        yield ImportFinding(code=FindingCode.UNCHECKED, what=what)


def _of_arm(arm: ArmName, log: ArmLog) -> Iterator[ImportFinding]:
    if log.run.others:
        what = Reason("other-runs", {"arm": arm, "n": log.run.others, "run": log.run.name})
        yield ImportFinding(code=FindingCode.RUNS, what=what)
    for task, entries in log.tasks.items():
        if entries.has_more_answers:
            yield ImportFinding(code=FindingCode.ASSUMED, what=of(task, Reason("more-answers", {"arm": arm})))
        if entries.left_out:
            what = of(task, Reason("no-numbers", {"metrics": tuple(sorted(entries.left_out))}))
            yield ImportFinding(code=FindingCode.ASSUMED, what=what)


def _task_findings(
    baseline: LoggedRun, candidate: LoggedRun, name: str, matches: Sequence[Match]
) -> Iterator[ImportFinding]:
    off, on = baseline.task(name), candidate.task(name)
    versions = [re.sub(r"^(\d+)\.0+$", r"\1", task.version) for task in (off, on)]  # some tools write 3.0 as 3
    yield from _differing(FindingCode.TASK_VERSION, "task-version", *versions, task=name)
    yield from _differing(FindingCode.DATASET, "dataset", off.dataset, on.dataset, task=name)
    yield from _differing(FindingCode.FEWSHOT, "few-shot", _text(off.num_fewshot), _text(on.num_fewshot), task=name)
    same_version = baseline.harness_version == candidate.harness_version
    for finding in _differing(FindingCode.TASK_CONFIG, "scoring", off.scoring, on.scoring, task=name):
        yield replace(finding, stops=same_version)  # other versions write the same thing otherwise
    of_task = settings_text(off.generation), settings_text(on.generation)
    pairs = [
        (match.baseline.generation or of_task[0], match.candidate.generation or of_task[1])
        for match in matches
        if match.baseline and match.candidate
    ]
    differing = [pair for pair in pairs if all(pair) and pair[0] != pair[1]]
    if differing:
        n, total = len(differing), len(pairs)
        yield from _differing(FindingCode.GENERATION, "generation", *differing[0], task=name, n=n, total=total)


def _differing(
    code: FindingCode, differs: str, off: str | None, on: str | None, *, task: str = "", **values: object
) -> Iterator[ImportFinding]:
    if off is None or on is None or off == on or not (code in _ALWAYS_TOLD or (off and on)):
        return
    if max(len(off), len(on)) > _LONGEST:  # shown from where they differ
        n_same = next((n for n, pair in enumerate(zip(off, on, strict=False)) if pair[0] != pair[1]), 0)
        off, on = (text[max(0, n_same - _LONGEST // 3) :] for text in (off, on))
    shown = [(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}...") or "none" for text in (off, on)]
    reason = Reason(f"differ.{differs}", {**values, "baseline": shown[0], "candidate": shown[1]})
    yield ImportFinding(code=code, what=of(task, reason) if task else reason, stops=code in STOPPING)


def _text(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def settle(findings: Sequence[ImportFinding], allowed: Sequence[FindingCode]) -> tuple[ImportFinding, ...]:
    """Mark findings that are allowed. Raises PairDiffers for one that stops and is not."""
    settled = [replace(finding, is_allowed=finding.stops and finding.code in allowed) for finding in findings]
    if stopping := [finding for finding in settled if finding.stops and not finding.is_allowed]:
        codes = ",".join(dict.fromkeys(finding.code for finding in stopping))
        raise PairDiffers(
            f"These two runs do not ask the same: {'; '.join(ENGLISH.reasons(finding.what for finding in stopping))}",
            hint=f"Compare runs that differ in the drafter alone, or let it stand with --allow {codes}",
        )
    return tuple(settled)
