"""Tiers of a policy: critical metrics decide, a supporting one's loss warns, advisory ones are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.made_up import PRIMARIES, MadeUp, Stored, stored
from qualab.errors import InvalidValue, QualabError, UsageError
from qualab.model.canonical import canonical_json, plan_hash
from qualab.model.comparison import Analysis
from qualab.model.names import ArmName, Tier, Verdict
from qualab.model.plan import Plan
from qualab.model.reason import Reason
from qualab.model.report import GateResult
from qualab.report.scores import metric_table
from qualab.report.words import ENGLISH
from qualab.run.gate import check_policy
from qualab.run.prepare import with_tiers
from qualab.settings import load, read_policy

GSM8K, STRICT = "gsm8k/exact_match,flexible-extract", "gsm8k/exact_match,strict-match"
NONE = dict.fromkeys(Tier, ())


def tiered(**names: tuple[str, ...]) -> dict[Tier, tuple[str, ...]]:
    return {tier: names.get(tier, ()) for tier in Tier}


@pytest.fixture(scope="module")
def made() -> Stored:
    return stored(MadeUp(scale=0.3, changed=0.01))


def analysed(made: Stored, plan: Plan) -> Analysis:
    comparison = replace(made.comparison, plan=plan, plan_hash=plan_hash(plan))
    return replace(made, comparison=comparison).analyse()


def test_a_plan_without_a_policy_is_the_plan_that_it_was(made: Stored) -> None:
    plan = made.comparison.plan
    assert with_tiers(plan, NONE) is plan
    assert "tier" not in canonical_json(plan)
    assert "tier" not in canonical_json(made.analyse())


@pytest.mark.parametrize(
    ("names", "primaries", "advisory"),
    [
        (tiered(critical=("gsm8k",)), {GSM8K}, set()),
        (tiered(critical=(STRICT,), advisory=("kobest*",)), {STRICT}, {"kobest"}),
        (tiered(critical=("gsm8k", "haerae"), advisory=("ifeval",)), {GSM8K, "haerae/acc,none"}, {"ifeval"}),
        (tiered(critical=("gsm8k/*",), advisory=("haerae_history/acc*",)), {GSM8K, STRICT}, {"haerae_history"}),
        (tiered(critical=(GSM8K,), supporting=("gsm8k",)), {GSM8K}, set()),
    ],
)
def test_metrics_are_put_into_tiers_by_id_task_benchmark_or_pattern(
    made: Stored, names: dict[Tier, tuple[str, ...]], primaries: set[str], advisory: set[str]
) -> None:
    plan = with_tiers(made.comparison.plan, names)
    assert {metric.id for metric in plan.primaries} == primaries
    found = {metric.task.partition("_")[0] for metric in plan.metrics if metric.tier is Tier.ADVISORY}
    assert found == {name.partition("_")[0] for name in advisory}
    assert {metric.tier for metric in plan.metrics} <= set(Tier)
    assert plan_hash(plan) != plan_hash(made.comparison.plan)


@pytest.mark.parametrize(
    ("names", "part", "said"),
    [
        (tiered(advisory=("gsm8k",)), "critical", "critical metrics decide"),
        (tiered(critical=("gsm8k",), advisory=("nothing*",)), "advisory", "nothing* matches none"),
        (tiered(critical=("gsm8k",), advisory=("gsm8k",)), "advisory", "is in both"),
        (tiered(critical=(GSM8K,), supporting=(GSM8K,)), "supporting", "is in both"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(
    made: Stored, names: dict[Tier, tuple[str, ...]], part: str, said: str
) -> None:
    with pytest.raises(InvalidValue, match="must be") as refused:
        with_tiers(made.comparison.plan, names)
    assert said in json.dumps(refused.value.details["fields"])
    assert part in refused.value.details["fields"]


def test_a_supporting_loss_warns_a_critical_one_decides_and_an_advisory_one_is_shown() -> None:
    loser = "kobest_boolq/acc,none"
    made = stored(MadeUp(scale=0.3, changed=0.0))
    scores = list(made.store.scores(made.comparison.id))
    boolq = {item.position for item in made.items if item.task == "kobest_boolq"}
    spoilt = [
        replace(score, value=0.0) if score.position in boolq and score.arm is ArmName.CANDIDATE
        and score.metric == "acc,none" else score
        for score in scores
    ]  # fmt: skip
    made.store.put_scores(made.comparison.id, spoilt)
    plan = replace(made.comparison.plan, rule=replace(made.comparison.plan.rule, margin=0.1, allow_unobserved=True))
    verdicts = {}
    for tier in ("critical", "supporting", "advisory", ""):
        names = {"critical": ("gsm8k",)}
        if tier:
            names[tier] = (*names.get(tier, ()), loser)
        own = tiered(**names, **({} if tier == "advisory" else {"advisory": ("kobest/*",)})) if tier else NONE
        if tier == "advisory":
            own = tiered(critical=("gsm8k",), advisory=(loser, "kobest/*"))
        found = analysed(made, with_tiers(plan, own))
        (row,) = (row for row in found.metrics if row.id == loser)
        warned = [reason.values["name"] for reason in found.caveats if reason.code == "supporting-worse"]
        verdicts[tier] = (found.verdict, row.verdict, warned)
        if tier == "advisory":
            assert (row.evidence, row.reason) == (None, Reason("advisory"))
            assert row.baseline is not None
        if tier:
            table = metric_table(found.metrics, ENGLISH)
            place = [column.id for column in table.columns].index("tier")
            assert {line.cells[place].text for line in table.rows} <= {"critical", "supporting", "advisory"}
    assert verdicts["critical"] == (Verdict.REGRESSION, Verdict.REGRESSION, [])
    assert verdicts["supporting"] == (Verdict.EQUIVALENT, Verdict.REGRESSION, [loser])
    assert verdicts["advisory"] == (Verdict.EQUIVALENT, Verdict.NOT_TESTED, [])
    assert verdicts[""][0] is Verdict.REGRESSION


def test_a_file_holds_the_policy_for_runs_and_the_gate_holds_the_plan_against_it(made: Stored, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("critical: [gsm8k]\nadvisory: [ifeval*]\nmargin: 0.02\n", encoding="utf-8")
    settings = load(command_line={"policy_file": path})
    assert (settings.critical, settings.advisory, settings.margin) == (("gsm8k",), ("ifeval*",), 0.02)
    assert load(content={"policy": {"critical": ["gsm8k"]}}).critical == ("gsm8k",)
    rows = made.analyse().metrics
    names = {"id": "c-1", "label": "", "model": "m", "plan_hash": "p" * 64, "reasons": (), "caveats": ()}
    result = GateResult(verdict=Verdict.EQUIVALENT, metrics=rows, **names)  # type: ignore[arg-type]
    check_policy(result, read_policy(path), where="policy.yaml")
    for text, said in (
        ("critical: [gsm8k, mmlu]", "mmlu was not compared"),
        (f"critical: ['{STRICT}']", "decides nothing"),
        ("critical: [gsm8k]\nmargin: 0.01", f"the margin of {PRIMARIES[0]} is 0.02, above 0.01"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match="does not follow policy") as refused:
            check_policy(result, read_policy(path), where="policy.yaml")
        assert said in refused.value.message
    for text in ("supporting: [gsm8k]", "critical: [gsm8k]\ntier: x", "- a"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(QualabError):
            read_policy(path)
