"""Writes a comparison's arms as two lm-eval runs."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qualab.analysis.scoring import Answered, answered_items
from qualab.errors import InfrastructureError, InvalidValue, UsageError
from qualab.model.canonical import plain
from qualab.model.comparison import Comparison
from qualab.model.items import Item, JsonObject, Reply
from qualab.model.names import Api, ArmName
from qualab.model.plan import Plan
from qualab.run.experiment import check_unchanged, planned_options, refuse_imported
from qualab.run.services import Services

Entry = tuple[Item, tuple[Reply, ...]]


def export(
    services: Services, comparison_id: str, folder: Path, *, local: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """One folder an arm (and repeat), each an lm-eval run. Yields what was written. Raises InvalidValue when empty."""
    comparison = refuse_imported(services.store.get(comparison_id), "exported")
    tasks = services.harness.load(planned_options(comparison.plan, {**comparison.local, **(local or {})}))
    check_unchanged(comparison.plan, tasks)
    items = list(services.store.items(comparison.id))
    date_id = f"{comparison.created_at:%Y-%m-%dT%H-%M-%S.%f}"
    for arm in ArmName:
        answered = list(answered_items(services.store.answers(comparison.id, arm=arm), items))
        if not answered:
            raise InvalidValue(f"The {arm} of {comparison.id} has no answers to export")
        for repeat in range(comparison.plan.sampling.repeats):
            name = arm.value if repeat == 0 else f"{arm}-repeat-{repeat}"
            entries = _by_task(comparison.plan, answered, repeat)
            results = {**tasks.results(entries), **_settings(comparison, arm, repeat)}
            samples = ((task, tasks.samples(task, rows)) for task, rows in entries.items())
            yield from write_lm_eval_files(folder / name, date_id=date_id, results=results, samples=samples)


def _by_task(plan: Plan, answered: list[Answered], repeat: int) -> dict[str, list[Entry]]:
    """Entries of one repeat, by task in the plan's order and by document, as lm-eval logs them."""
    entries: dict[str, list[Entry]] = {task.name: [] for task in plan.tasks}
    for _, item, own_repeat, replies in answered:
        if own_repeat == repeat:
            entries[item.task].append((item, replies))
    return {task: sorted(rows, key=lambda row: row[0].doc_id) for task, rows in entries.items() if rows}


def _settings(comparison: Comparison, arm: ArmName, repeat: int) -> JsonObject:
    """What lm-eval records of a run's settings, in its names; and which comparison this was."""
    plan, sampling = comparison.plan, comparison.plan.sampling
    url = comparison.baseline_url if arm is ArmName.BASELINE else comparison.candidate_url
    model = "local-chat-completions" if sampling.api is Api.CHAT else "local-completions"
    arguments = {"model": sampling.model, "base_url": url, "num_concurrent": plan.policy.concurrency}
    config: dict[str, Any] = {
        "model": model,
        "model_args": arguments,
        "batch_size": 1,
        "limit": plan.limit,
        "bootstrap_iters": 0,
        "gen_kwargs": sampling.gen_kwargs or None,
        "random_seed": sampling.seed + repeat,
        "fewshot_seed": sampling.seed,
    }
    return {
        "config": config,
        "date": comparison.created_at.timestamp(),
        "model_source": model,
        "model_name": sampling.model,
        "system_instruction": sampling.system_instruction or None,
        "fewshot_as_multiturn": sampling.api is Api.CHAT,
        "lm_eval_version": plan.harness_version,
        "qualab": {
            "comparison": comparison.id,
            "plan_hash": comparison.plan_hash,
            "plan": plain(plan),  # for `qualab import`
            "arm": arm.value,
        },
    }


NOT_IN_FILE_NAMES = re.compile(r"[^\w.-]")
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def write_lm_eval_files(
    folder: Path, *, date_id: str, results: Mapping[str, Any], samples: Iterable[tuple[str, Iterable[JsonObject]]]
) -> Iterator[Path]:
    """Writes `results_<date>.json` and a `samples_<task>_<date>.jsonl` for each task, and yields their paths.

    Raises UsageError for a file that cannot be written, InfrastructureError where there is no room for it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"results_{date_id}.json"
        path.write_text(json.dumps(results, indent=2, ensure_ascii=False), encoding="utf-8")
        yield path
        for task, rows in samples:
            path = folder / f"samples_{NOT_IN_FILE_NAMES.sub('_', task)}_{date_id}.jsonl"
            with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            yield path
    except OSError as exc:
        kind = InfrastructureError if exc.errno in NO_ROOM else UsageError
        raise kind(f"Cannot write {exc.filename or folder}: {exc.strerror}", hint="Give another folder") from exc
