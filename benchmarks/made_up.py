"""A comparison over the five published benchmarks with made-up scores: their task names, sizes, metrics and clusters.

The scores are drawn, not measured. An item's metrics move together, as they do where one text is scored several times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from qualab.analysis.analyse import analyse
from qualab.analysis.imported import aggregate_of
from qualab.analysis.summaries import Summary
from qualab.model.canonical import plan_hash
from qualab.model.comparison import Analysis, Comparison
from qualab.model.items import Answer, Item, Reply, Request, Score
from qualab.model.names import AnswerStatus, Api, ArmName, ComparisonStatus, MetricKind, RequestKind
from qualab.model.plan import DecisionRule, MetricSpec, Plan, RequestPolicy, SamplingPlan, TaskSpec
from qualab.store import Store
from tests.fresh_store import fresh_store

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


class Shape(NamedTuple):
    """A task's items, its clusters (0 where there are none), its choices and its metrics."""

    n_items: int
    n_clusters: int
    n_choices: int
    metrics: tuple[str, ...]


ACC = ("acc,none", "acc_norm,none")
F1 = ("acc,none", "f1,none")
GSM8K = ("exact_match,flexible-extract", "exact_match,strict-match")
IFEVAL = tuple(f"{level}_level_{way}_acc,none" for level in ("inst", "prompt") for way in ("loose", "strict"))
SHAPES: Mapping[str, Shape] = {
    "gsm8k": Shape(1319, 0, 50, GSM8K),
    "haerae_general_knowledge": Shape(176, 0, 5, ACC),
    "haerae_history": Shape(188, 0, 5, ACC),
    "haerae_loan_word": Shape(169, 0, 5, ACC),
    "haerae_rare_word": Shape(405, 0, 5, ACC),
    "haerae_standard_nomenclature": Shape(153, 0, 5, ACC),
    "kobest_boolq": Shape(1404, 1300, 2, F1),
    "kobest_copa": Shape(1000, 950, 2, F1),
    "kobest_hellaswag": Shape(500, 0, 4, ("acc,none", "acc_norm,none", "f1,none")),
    "kobest_sentineg": Shape(397, 0, 2, F1),
    "kobest_wic": Shape(1260, 778, 2, F1),
    "belebele_kor_Hang": Shape(900, 488, 4, ACC),
    "ifeval": Shape(541, 0, 0, IFEVAL),
}
GROUPS: Mapping[str, tuple[str, ...]] = {"haerae": ACC, "kobest": ("acc,none", "acc_norm,none", "f1,none")}
KINDS = {"f1": MetricKind.MACRO_F1, "inst_level_loose_acc": MetricKind.LIST_MEAN}
KINDS["inst_level_strict_acc"] = MetricKind.LIST_MEAN
PRIMARIES = (
    "gsm8k/exact_match,flexible-extract",
    "haerae/acc,none",
    "kobest/acc,none",
    "belebele_kor_Hang/acc,none",
    "ifeval/prompt_level_strict_acc,none",
)


def task_specs(scale: float = 1.0) -> tuple[TaskSpec, ...]:
    """The tasks, every size times `scale`."""
    return tuple(_task_spec(name, shape, max(1, round(shape.n_items * scale))) for name, shape in SHAPES.items())


def _task_spec(name: str, shape: Shape, n_items: int) -> TaskSpec:
    is_generation = name in ("gsm8k", "ifeval")
    return TaskSpec(
        name=name,
        benchmark=name.split("_", maxsplit=1)[0],
        kind=RequestKind.GENERATION if is_generation else RequestKind.LOGLIKELIHOOD,
        version="1",
        config_hash="c",
        data_hash="d",
        dataset="made-up",
        revision="local",
        num_fewshot=0,
        n_items=n_items,
        n_available=n_items,
        cluster_field="passage" if shape.n_clusters else "",
    )


def metric_specs() -> tuple[MetricSpec, ...]:
    """The 34 rows, groups before their members."""
    rows: list[MetricSpec] = []
    for task, shape in SHAPES.items():
        group = next((name for name in GROUPS if task.startswith(f"{name}_")), None)
        if group and group not in {row.task for row in rows}:
            members = tuple(name for name in SHAPES if name.startswith(f"{group}_"))
            rows += [_metric_spec(group, key, MetricKind.GROUP_MEAN, members) for key in GROUPS[group]]
        for key in shape.metrics:
            rows.append(_metric_spec(task, key, KINDS.get(key.partition(",")[0], MetricKind.BINARY_MEAN)))
    return tuple(rows)


def _metric_spec(task: str, key: str, kind: MetricKind, members: tuple[str, ...] = ()) -> MetricSpec:
    name, _, ensemble = key.partition(",")
    having = tuple(member for member in members if key in SHAPES[member].metrics)
    return MetricSpec(
        task=task,
        name=name,
        filter=ensemble,
        kind=kind,
        is_primary=f"{task}/{key}" in PRIMARIES,
        exercises_drafter=task in ("gsm8k", "ifeval"),
        members=having,
    )


@dataclass(frozen=True, kw_only=True)
class MadeUp:
    """What is drawn."""

    seed: int = 1
    scale: float = 1.0
    changed: float = 0.04
    """Share of items that the candidate answers anew."""
    loss: float = 0.0
    """Share of items, on top, that the candidate gets wrong whatever the baseline had."""
    missing: Mapping[ArmName, float] = field(default_factory=dict)
    """Share of items that an arm leaves unanswered."""
    rule: DecisionRule = field(default_factory=DecisionRule)
    order: int = 1
    """Seed of the order in which items are asked."""

    def plan(self) -> Plan:
        return Plan(
            suite="published-34",
            requested=("published-34",),
            tasks=task_specs(self.scale),
            metrics=metric_specs(),
            sampling=SamplingPlan(model="m", api=Api.COMPLETIONS),
            policy=RequestPolicy(),
            rule=self.rule,
            limit=None,
            num_fewshot=None,
            harness_version="0",
        )

    def items(self) -> list[Item]:
        """Items by position."""
        flat = [(task, doc) for task in task_specs(self.scale) for doc in range(task.n_items)]
        order = np.random.default_rng(self.order).permutation(len(flat))
        return [
            _item(flat[place][0], flat[place][1], position, self.scale) for position, place in enumerate(order.tolist())
        ]

    def scores(self, items: Sequence[Item]) -> Iterator[Score]:
        """Both arms' scores, drawn item by item in the order of the documents."""
        rng = np.random.default_rng(self.seed)
        for item in sorted(items, key=lambda item: (item.task, item.doc_id)):
            both = self._answers(SHAPES[item.task], rng)
            for arm, rows in zip(ArmName, both, strict=True):
                if rng.random() >= self.missing.get(arm, 0.0):
                    for metric, value, detail in rows:
                        yield Score(
                            arm=arm, position=item.position, repeat=0, metric=metric, value=value, detail=detail
                        )

    def _answers(self, shape: Shape, rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
        draw = _draw_lists if shape.n_choices == 0 else _draw_choice
        return draw(shape, self.changed, self.loss, rng)


Row = tuple[str, float, tuple[Any, ...] | None]


def _draw_choice(shape: Shape, changed: float, loss: float, rng: np.random.Generator) -> tuple[list[Row], list[Row]]:
    truth = int(rng.integers(shape.n_choices))

    def answer() -> int:
        return truth if rng.random() < 0.7 else int(rng.integers(shape.n_choices))

    before = (answer(), answer())
    after = (answer(), answer()) if rng.random() < changed else before
    if rng.random() < loss:
        after = ((truth + 1) % shape.n_choices,) * 2
    return _choice_rows(shape, truth, before), _choice_rows(shape, truth, after)


def _choice_rows(shape: Shape, truth: int, answers: tuple[int, int]) -> list[Row]:
    """The second answer is that of the second metric where the choices differ in length."""
    rows: list[Row] = []
    for metric in shape.metrics:
        is_second = (metric == "acc_norm,none" and len(shape.metrics) == 3) or metric.endswith("strict-match")
        answer = answers[is_second]
        detail = (truth, answer) if metric.startswith("f1") else None
        rows.append((metric, float(answer == truth), detail))
    return rows


def _draw_lists(shape: Shape, changed: float, loss: float, rng: np.random.Generator) -> tuple[list[Row], list[Row]]:
    n = int(rng.choice([1, 2, 3], p=[0.6, 0.26, 0.14]))
    before = rng.random((2, n)) < 0.7
    after = rng.random((2, n)) < 0.7 if rng.random() < changed else before
    if rng.random() < loss:
        after = np.zeros((2, n), dtype=np.bool_)
    return _list_rows(shape, before), _list_rows(shape, after)


def _list_rows(shape: Shape, followed: np.ndarray[Any, np.dtype[np.bool_]]) -> list[Row]:
    rows: list[Row] = []
    for metric in shape.metrics:
        own = (followed[0] if "strict" in metric else followed[0] | followed[1]).tolist()
        is_list = metric.startswith("inst")
        rows.append((metric, sum(own) / len(own) if is_list else float(all(own)), tuple(own) if is_list else None))
    return rows


def _item(task: TaskSpec, doc_id: int, position: int, scale: float) -> Item:
    n_clusters = round(SHAPES[task.name].n_clusters * scale)
    return Item(
        position=position,
        task=task.name,
        doc_id=doc_id,
        kind=task.kind,
        doc={},
        target="",
        prompts=(),
        requests=(Request(choice=0, api=Api.COMPLETIONS, payload={}),),
        cluster=f"passage {doc_id % n_clusters}" if n_clusters else "",
    )


class Tasks:
    """As much of loaded tasks as an analysis needs: lm-eval's aggregations, written anew."""

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        rows = {task: {key: _aggregate(column) for key, column in own.items()} for task, own in values.items()}
        for group, keys in GROUPS.items():
            for key in keys:
                members = [task for task in rows if task.startswith(f"{group}_") and key in rows[task]]
                sizes = [len(values[task][key]) for task in members]
                if members:
                    total = sum(rows[task][key] * size for task, size in zip(members, sizes, strict=True))
                    rows.setdefault(group, {})[key] = total / sum(sizes)
        return rows


def _aggregate(column: Sequence[Any]) -> float:
    if isinstance(column[0], tuple):
        if isinstance(column[0][0], bool):
            entries = [entry for own in column for entry in own]
            return float(sum(entries) / len(entries))
        return aggregate_of(MetricKind.MACRO_F1, column) or 0.0
    return float(sum(column) / len(column))


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A made-up comparison in a store."""

    store: Store
    comparison: Comparison
    items: list[Item]
    summary: Summary

    def analyse(self) -> Analysis:
        return analyse(self.store, self.comparison, Tasks(), self.items, self.summary)  # type: ignore[arg-type]


def stored(made_up: MadeUp, *, plan: Plan | None = None, scores: Sequence[Score] | None = None) -> Stored:
    """Puts what is drawn, or the scores given, into a store."""
    plan, items, store = plan or made_up.plan(), made_up.items(), fresh_store()
    comparison = Comparison(
        id="made-up",
        plan=plan,
        plan_hash=plan_hash(plan),
        status=ComparisonStatus.ANSWERED,
        label="",
        created_at=START,
        started_at=START,
    )
    store.create(comparison, items)
    store.put_scores(comparison.id, made_up.scores(items) if scores is None else scores)
    summary = Summary(items)
    for arm in ArmName:
        summary.add(_one_answer(arm))
    return Stored(store=store, comparison=replace(comparison), items=items, summary=summary)


def _one_answer(arm: ArmName) -> Answer:
    reply = Reply(
        status=AnswerStatus.OK,
        text="x",
        loglikelihood=None,
        is_greedy=None,
        finish_reason="stop",
        prompt_tokens=1,
        completion_tokens=1,
        attempts=1,
        latency_s=0.1,
        sent_at=START,
        system_fingerprint="",
        error="",
    )
    return Answer(arm=arm, position=0, choice=0, repeat=0, request_hash=b"x" * 16, reply=reply)
