"""`qualab import` from the command line: real exports, parity with the run that they are of, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, write_table
from tests.imports.lm_eval_files import Run, binary_rows, row
from tests.said import english


def of_arms(folder: Path) -> list[object]:
    return ["--baseline", folder / "baseline", "--candidate", folder / "candidate"]


def imported(qualab: Command, folder: Path, *more: object) -> dict[str, Any]:
    return dict(qualab.json("import", *of_arms(folder), *more))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes what results files say."""
    for path in folder.rglob("results_*.json"):
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))


Case = tuple[str, int, str, str, tuple[int, int, int] | None]
CASES: list[Case] = [
    # file and flags, exit code, verdict, first reason, gains, losses and items of it
    ("many.csv --margin 0.01", 3, "INCONCLUSIVE", "t00/score,none: these 160 items prove ±6.46 pp; ", None),
    ("c0_5.csv", 0, "EQUIVALENT", "t/score,none: a loss of 0.50 pp (0.23 to 1.02) is real and inside", (0, 5, 1_000)),
    ("c0_4.csv", 3, "INCONCLUSIVE", "t/score,none: these 80 items prove ±11.09 pp; ", (0, 4, 80)),
    ("within.csv", 0, "EQUIVALENT", "t/score,none: a loss of 0.30 pp (0.15 to 0.46) is real", (30, 60, 10_000)),
    ("within.csv --strict", 1, "REGRESSION", "t/score,none: the candidate is worse (adjusted p", (30, 60, 10_000)),
    ("cross.csv", 0, "EQUIVALENT", "the primary metric is equivalent within ±2.00 pp", (24, 33, 1_123)),
    ("big0_40.csv --margin 0.05", 1, "REGRESSION", "t/score,none: the candidate is worse (adj", (0, 40, 1_000)),
]
"""Tables that once got a wrong verdict, or two."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_table_gets_one_right_verdict_and_the_calculator_the_same(qualab: Command, shared: Path, case: Case) -> None:
    (name, *flags), code, verdict, reason, counts = case[0].split(), *case[1:]
    outcome = qualab("import", shared / "cases" / "statistics" / name, *flags, "--format", "json")
    analysis = json.loads(outcome.out)["analysis"]
    assert (outcome.code, analysis["verdict"]) == (code, verdict)
    assert english(analysis["reasons"])[0].startswith(reason)
    assert not any(row["verdict"] == "REGRESSION" for row in analysis["metrics"]) or verdict == "REGRESSION"
    if counts is None:
        return
    evidence = analysis["metrics"][0]["evidence"]
    assert evidence["pvalue_adjusted"] == evidence["pvalue"]
    options = dict(zip(("--gains", "--losses", "--items"), counts, strict=True)) | {"--margin": 0.02}
    given = [part for option in options.items() for part in option]
    found = qualab.json("stats", "test", *given, *flags)
    assert found["verdict"] == verdict
    assert found["reason"] == analysis["metrics"][0]["reason"]
    same = ("pvalue", "pvalue_exact", "pvalue_equivalence", "provable_margin", "items_needed", "items_needed_range")
    for part in (*same, "interval", "equivalence_interval"):
        assert found[part] == pytest.approx(evidence[part]), part
    assert found["pvalue_equivalence"] == max(found["pvalue_lower"], found["pvalue_upper"])
    assert found["pvalue"] == pytest.approx(2 * min(found["pvalue_loss"], found["pvalue_gain"]))


KINDS = ("kobest,belebele_kor_Hang,ifeval", {"binary_mean", "list_mean", "macro_f1", "group_mean"})


@pytest.mark.parametrize(("tasks", "kinds"), [("demo", {"binary_mean", "list_mean"}), KINDS], ids=["demo", "all kinds"])
def test_a_run_exported_and_imported_gives_the_same_analysis(  # noqa: PLR0917
    qualab: Command, arms: list[str], tmp_path: Path, request: pytest.FixtureRequest, tasks: str, kinds: set[str]
) -> None:
    data = [] if tasks == "demo" else ["--limit", "20", "--data-dir", request.getfixturevalue("shared") / "data"]
    outcome = qualab("run", *arms, "--tasks", tasks, *data, "--output_path", tmp_path / "out")
    first = qualab.json("show", outcome.comparison_id)["analysis"]
    assert {one["kind"] for one in first["metrics"]} == kinds
    assert any(one["evidence"]["n_changed"] for one in first["metrics"]) or tasks != "demo"
    again = imported(qualab, tmp_path / "out")
    for part in ("metrics", "suite", "verdict", "reasons", "versions"):
        assert json.dumps(again["analysis"][part]) == json.dumps(first[part]), part
    assert again["analysis"]["pairs"]["same_text"] == first["pairs"]["same_text"] < first["pairs"]["n_pairs"]
    assert again["comparison"]["plan"]["imported"]["plan_hash"] == first["plan_hash"]
    rewrite(tmp_path / "out", lambda document: document.pop("qualab"))  # all but what is drawn at random stays
    other = imported(qualab, tmp_path / "out")
    fixed = ("id", "kind", "baseline", "candidate", "n_items", "n_missing", "is_primary", "margin", "equals")
    for one, expected in zip(other["analysis"]["metrics"], first["metrics"], strict=True):
        assert {key: one[key] for key in fixed} == {key: expected[key] for key in fixed}
        for key in ("difference", "gains", "losses", "n_clusters"):
            assert one["evidence"][key] == expected["evidence"][key]


def test_an_exported_plan_judges_its_own_arms_alone(qualab: Command, arms: list[str], tmp_path: Path) -> None:
    late, out = "the margin was chosen after the data", tmp_path / "out"
    done = qualab("run", *arms, "--tasks", "demo_arithmetic", "--limit", "10", "--output_path", out)
    same = imported(qualab, out)
    assert late not in english(same["signoff"]["obstacles"])
    for comparison_id in (done.comparison_id, same["comparison"]["id"]):
        again = qualab("rescore", comparison_id)
        assert (again.code, again.out) == (0, "Nothing changed: all 40 scores are as stored.\n")
    other = imported(qualab, out, "--margin", "0.5")
    assert other["comparison"]["plan"]["rule"]["margin"] == 0.5
    assert late in english(other["signoff"]["obstacles"])
    swapped = qualab.json("import", "--baseline", out / "candidate", "--candidate", out / "baseline")
    assert swapped["comparison"]["plan"]["imported"]["plan_hash"] == ""
    rewrite(out, lambda document: document["qualab"]["plan"]["rule"].update(margin=0.5))
    (path,) = (out / "candidate").glob("samples_*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["exact_match"] = 1.0 - rows[0]["exact_match"]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    edited = imported(qualab, out)
    assert edited["comparison"]["plan"]["rule"]["margin"] == 0.02
    assert late in english(edited["signoff"]["obstacles"])
    assert any("plans in the logs are not taken up" in caveat for caveat in english(edited["analysis"]["caveats"]))
    again = qualab("rescore", edited["comparison"]["id"])
    assert again.out.startswith("1 of 40 scores changed:\n")
    assert f"\n  demo_arithmetic/{rows[0]['doc_id']}, candidate, exact_match," in again.out


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    rows = [row(n, {"question": f"q{n}"}, resps=[f"answer {n}"], exact_match=1.0) for n in range(200)]
    worse = [{**one, "resps": [["another"]], "exact_match": 0.0} if n < 40 else one for n, one in enumerate(rows)]
    for arm, own in (("baseline", rows), ("candidate", worse)):
        Run(samples={"sums": own}, more={"model_name": f"its/{arm}"}).write(tmp_path / "logs" / arm)
    return tmp_path / "logs"


def test_the_text_names_logs_models_and_joins(qualab: Command, logs: Path) -> None:
    outcome = qualab("import", *of_arms(logs), "--label", "old")
    assert outcome.code == 1
    for text in ("lm-eval 0.4.13, results_2026", "200 answers were paired from logs", "its/baseline", "its/candidate"):
        assert text in outcome.out
    assert "same text in 160 of 200 generations" in outcome.out
    assert "  retries" not in outcome.out
    assert "old" in qualab("list").out


def test_what_stops_exits_as_a_pair_that_differs_and_allow_lets_it_stand(qualab: Command, logs: Path) -> None:
    Run(samples={"sums": binary_rows([1] * 200)}, more={"n-shot": {"sums": 5}}).write(logs / "candidate")
    outcome = qualab("import", *of_arms(logs))
    assert outcome.code == 4
    assert "sums: the number of few-shot examples: 0 and 5" in outcome.err
    assert "--allow fewshot" in outcome.err
    assert "No comparisons yet" in qualab("list").out
    found = imported(qualab, logs, "--allow", "fewshot,prompts")
    assert "Allowed: sums: the number of few-shot examples: 0 and 5." in english(found["analysis"]["caveats"])


def test_an_imported_comparison_is_neither_resumed_nor_exported(qualab: Command, logs: Path, tmp_path: Path) -> None:
    found = imported(qualab, logs)
    for command, *more in (["resume"], ["export", tmp_path / "out"]):
        outcome = qualab(command, found["comparison"]["id"], *more)
        assert (outcome.code, "was imported" in outcome.err) == (2, True)


def test_flips_of_an_import_are_shown_with_both_answers(qualab: Command, logs: Path) -> None:
    found = imported(qualab, logs)
    comparison_id = found["comparison"]["id"]
    outcome = qualab("show", comparison_id, "--flips", "--limit", "2")
    assert outcome.out.startswith("40 lost, 0 gained by the candidate; 2 shown (--limit)")
    assert "lost  sums/1  exact_match,none: 1 to 0" in outcome.out
    document = qualab.json("show", comparison_id, "--flips")
    assert (document["n_losses"], len(document["shown"])) == (40, 20)
    assert qualab("show", comparison_id, "--flips", "--task", "none").code == 2
    assert qualab("show", comparison_id, "--flips", "--texts").code == 2
    texts = qualab.json("show", comparison_id, "--texts")
    assert texts["n_pairs"] == len(texts["shown"])
    assert qualab("show", comparison_id, "--leaks").out == "No pair in which an answer leaks.\n"


def test_a_report_of_an_import_claims_nothing_that_no_log_tells(qualab: Command, logs: Path, tmp_path: Path) -> None:
    found = imported(qualab, logs)
    for language, title in (("en", "Speculative decoding quality report:"), ("ko", "투기적 디코딩 품질 보고서:")):
        path = tmp_path / f"{language}.md"
        qualab("report", found["comparison"]["id"], "--lang", language, "-o", path)
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {title} its/baseline / its/candidate")
        assert "| its/baseline | its/candidate |" in text
        assert "lm-eval 0.4.13, results\\_2026" in text
        claims = ("byte-identical", "retries |", "requests in flight", "drafter on", "rafter off")
        for claim in (*claims, "바이트까지 같은", "원문", "드래프터를 켜", "드래프터 켬", "드래프터 끔", "적용 전후"):
            assert claim not in text


def test_a_table_is_imported_by_its_name_alone(qualab: Command, tmp_path: Path) -> None:
    path = write_table(tmp_path / "scores.csv", [(80, 80.5)] * 300)
    outcome = qualab("import", path, "--score-bounds", "scores=0:100", "--objective", "non_inferiority")
    assert outcome.code == 0
    assert "scores/score,none" in outcome.out
    assert "300 answers were paired from logs" in outcome.out
    (listed,) = qualab.json("list")
    (shown,) = qualab.json("show", listed["id"])["analysis"]["metrics"]
    assert shown["evidence"]["difference"] == pytest.approx(0.005)
    assert shown["baseline"] == pytest.approx(80)


def test_two_stored_runs_are_compared(qualab: Command, logs: Path) -> None:
    first = imported(qualab, logs)
    second = imported(qualab, logs)
    ids = [one["comparison"]["id"] for one in (first, second)]
    found = qualab.json("compare", f"{ids[0]}/baseline", ids[1])
    assert found["analysis"]["metrics"][0]["evidence"]["losses"] == 40
    assert found["comparison"]["plan"]["imported"]["candidate"] == f"lm-eval 0.4.13, {ids[1]}/candidate"
    assert qualab("compare", *ids, "--plan", logs).code == 2
    twice = qualab("compare", ids[0], f"{ids[0]}/candidate")
    assert (twice.code, "Both arms are one run" in twice.err) == (2, True)
