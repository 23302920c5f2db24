"""Logs that once got a wrong verdict or none: small ones made here, and the handed ones of QUALAB_SHARED."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qualab.errors import BadLog, PairDiffers, UsageError
from qualab.model.names import AnswerStatus, ArmName, Verdict
from qualab.model.plan import FindingCode
from qualab.run.sign import signoff_obstacles
from tests.imports.conftest import BASELINE, CANDIDATE, Importer, evidence
from tests.imports.lm_eval_files import DATE, Row, Run, binary_rows, row
from tests.said import english

SHARED = os.environ.get("QUALAB_SHARED")
FIXTURES = Path(__file__).parent / "fixtures"
EARLIER, LATER = "2026-01-01T00-00-00.1", "2026-02-01T00-00-00.1"


def dated(date: str, rows: list[Row], **more: Any) -> Run:
    return Run(samples={"sums": rows}, date=date, more={"date": float(date[5:7]), **more})


# one run as both arms


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (dated(EARLIER, binary_rows([1] * 1_000)), "both logs are the same bytes"),
        (dated(EARLIER, binary_rows([1] * 999 + [0])), "both runs have the same date"),
    ],
)
def test_what_may_be_a_copy_is_said_first_and_a_link_is_refused(importer: Importer, run: Run, said: str) -> None:
    found = importer.runs(dated(EARLIER, binary_rows([1] * 1_000)), run)
    assert english(found.caveats)[0].startswith(said)
    assert "both logs may be of one run" in english(signoff_obstacles(found, importer.comparison))
    (importer.folder / "link").symlink_to(importer.folder / "off")
    with pytest.raises(UsageError, match="Both arms are one file"):
        importer(importer.folder / "off", importer.folder / "link")


# rows that both logs have lost


def counting(n_items: int, **more: Any) -> Row:
    return {"n-samples": {"sums": {"original": n_items, "effective": n_items}}, **more}


SAMPLE_LEN = {"results": {"sums": {"alias": "sums", "sample_len": 60}}}
"""Counts before effective documents: under `--samples` older versions of lm-eval count all documents as effective."""


@pytest.mark.parametrize(
    ("n_off", "more", "allowed", "figures", "said"),
    [
        (60, {}, (), (100, 40, 40), "sums: 60 answers paired, 40 lost in both logs."),
        (98, {}, (), (100, 2, 0), "sums: 98 answers paired, 2 only in the candidate."),
        (60, {}, (FindingCode.ROWS,), (60, 0, 40), "sums: 60 answers paired, 40 lost in both logs (allowed: rows)."),
        (60, SAMPLE_LEN, (), (60, 0, 0), ""),
    ],
)
def test_rows_that_logs_lost_are_missing_unless_that_is_allowed(  # noqa: PLR0917
    importer: Importer, n_off: int, more: Row, allowed: tuple[FindingCode, ...], figures: tuple[int, ...], said: str
) -> None:
    rows = binary_rows([1] * 100)
    n_on = 100 if n_off == 98 else n_off
    runs = (dated(EARLIER, rows[:n_off], **counting(100, **more)), dated(LATER, rows[:n_on], **counting(100, **more)))
    found = importer.runs(*runs, allowed=allowed)
    assert (found.metrics[0].n_items, found.metrics[0].n_missing, importer.join.lost) == figures
    assert (found.verdict is Verdict.INVALID) == bool(figures[1])
    assert not said or said in english(found.caveats)
    items = list(importer.store.items(found.comparison_id))
    assert [item.doc_id for item in items] == list(range(figures[0]))
    assert {len(item.prompts) for item in items} == {1}


# the same text with another score


RIGHT, SAME, OTHER = [["an answer"]], [["an answer"]], [["other"]]
SEVERAL = ([["an answer", "right"]], [["an answer", "wrong"]])
"""As of a majority of eight answers, of which the first alone is kept."""


@pytest.mark.parametrize(
    ("off", "on", "verdict", "n_same"),
    [(RIGHT, SAME, Verdict.INVALID, 40), (RIGHT, OTHER, Verdict.REGRESSION, 0), (*SEVERAL, Verdict.REGRESSION, 0)],
)
def test_the_same_text_with_another_score_is_the_scorer_s_doing(
    importer: Importer, off: list[list[str]], on: list[list[str]], verdict: Verdict, n_same: int
) -> None:
    rows = [row(n, {"q": n}, exact_match=1) for n in range(200)]
    worse = [{**one, "resps": on, "exact_match": 0} if n < 40 else {**one, "resps": off} for n, one in enumerate(rows)]
    found = importer.rows([{**one, "resps": off} for one in rows], worse)
    assert (found.verdict, found.pairs.same_text_other_score) == (verdict, n_same)
    if n_same:
        (reason, *_) = english(found.reasons)
        assert reason.startswith("40 items have the same answer and another score: the scoring differs")
        assert "qualab rescore" in reason
    if len(off[0]) > 1:
        assert importer.imported.tasks_with_more_answers == ("sums",)
        assert any("from more answers an item than the one that is kept" in one for one in english(found.caveats))


# what went unchecked


def test_what_one_log_does_not_tell_is_named(importer: Importer) -> None:
    rows = binary_rows([1] * 100)
    run = Run(samples={"sums": rows}, more={"chat_template_sha": "a", "system_instruction": "Be brief."})
    off, on = (run.write(importer.folder / name) for name in ("off", "on"))
    (on / f"results_{DATE}.json").unlink()
    found = importer(off, on)
    (note,) = (caveat for caveat in english(found.caveats) if caveat.startswith("not compared"))
    assert note.startswith("not compared, since the log of the candidate does not tell: the tool's version, ")
    names = ("task versions", "few-shot examples", "filters and metrics", "the chat template", "the system instruction")
    assert all(name in note for name in names)


# Inspect


def sample(number: int, text: str, **more: Any) -> Row:
    choice = {"message": {"role": "assistant", "content": text}, "stop_reason": "stop"}
    asked = {"id": number, "epoch": 1, "input": f"What is {number}?", "target": str(number)}
    return {**asked, "output": {"model": "m", "choices": [choice]}, "scores": {"match": {"value": "C"}}, **more}


def inspect_log(path: Path, samples: Sequence[Row], *, created: str = "2026-01-01T00:00:00", **header: Any) -> Path:
    """As Inspect writes it; of a `.json` path one file."""
    eval_ = {"task": "sums", "model": path.stem, "created": created, "dataset": {"samples": len(samples)}}
    document = {"version": 2, "status": "success", "eval": eval_, "plan": {}, **header}
    if path.suffix == ".json":
        path.write_text(json.dumps({**document, "samples": samples}, indent=2))
        return path
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps(document))
        for one in samples:
            archive.writestr(f"samples/{one['id']}_epoch_1.json", json.dumps(one))
    return path


PARTS = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "It is "}, {"type": "text", "text": "3"}]


@pytest.mark.parametrize("content", ["It is 3", PARTS])
def test_answers_without_a_completion_are_read_from_their_message(importer: Importer, content: Any) -> None:
    off = inspect_log(importer.folder / "off.eval", [sample(n, f"It is {n}") for n in range(12)])
    on = inspect_log(importer.folder / "on.eval", [sample(n, content) for n in range(12)])
    found = importer(off, on)
    assert (found.pairs.n_pairs, found.pairs.same_text) == (12, 1)
    assert [arm.empty_answers for arm in found.arms] == [0, 0]


@pytest.mark.parametrize(
    ("more", "status"), [({"output": {}}, "no_final_answer"), ({"error": {"message": "no\nanswer"}}, "http_error")]
)
def test_a_sample_without_any_output_is_missing(importer: Importer, more: Row, status: str) -> None:
    whole = [sample(n, "It is 3") for n in range(12)]
    off = inspect_log(importer.folder / "off.eval", whole)
    on = inspect_log(importer.folder / "on.eval", [sample(0, "", **more), *whole[1:]])
    found = importer(off, on)
    assert found.metrics[0].n_missing_candidate == 1
    assert found.arms[1].statuses == {status: 1, "ok": 11}


def test_scores_after_several_messages_are_not_those_of_the_last_text(importer: Importer) -> None:
    talk = [{"role": "assistant", "content": text} for text in ("using a tool", "done")]
    off = [sample(n, "done", messages=talk) for n in range(12)]
    on = [sample(n, "done", messages=talk, scores={"match": {"value": "I"}}) for n in range(12)]
    found = importer(inspect_log(importer.folder / "a.eval", off), inspect_log(importer.folder / "b.eval", on))
    assert found.pairs.same_text_other_score == 0


def test_a_run_that_broke_off_is_refused_unless_it_was_run_again(importer: Importer) -> None:
    whole, folder = [sample(n, "x") for n in range(4)], importer.folder / "on"
    folder.mkdir()
    off = inspect_log(importer.folder / "off.eval", whole)
    dataset = {"task": "sums", "dataset": {"samples": 40}}
    cancelled = sample(3, "", error={"message": "CancelledError()"})
    inspect_log(folder / "1.eval", [*whole[:3], cancelled], status="error", eval=dataset)
    with pytest.raises(BadLog, match=r"1\.eval: the run ended with status error after 3 of 40 samples") as caught:
        importer(off, folder)
    assert "inspect eval-retry 1.eval" in caught.value.hint
    inspect_log(folder / "2.eval", whole)
    assert importer(off, folder).metrics[0].n_missing == 0


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_json_log_is_read_as_an_eval_is(importer: Importer, is_folder: bool) -> None:
    samples = [sample(n, f"It is {n}") for n in range(12)]
    folder = importer.folder / "json"
    folder.mkdir()
    path = inspect_log(folder / "2026-01-01T00-00-00_sums_x.json", samples)
    (folder / "notes.json").write_text("{}")
    found = importer(inspect_log(importer.folder / "off.eval", samples), folder if is_folder else path)
    assert (importer.join.paired, found.pairs.same_text) == (12, 12)
    with pytest.raises(BadLog, match="holds no samples"):
        importer(path, inspect_log(folder / "none.json", []))


# files that are something else, null answers


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 21785\n"
WRONG = [
    (POINTER, "is a Git LFS pointer", "git lfs pull"),
    (b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "is an HTML page", "Download the file"),
    ("{}".encode("utf-16"), "is UTF-16 text", "UTF-8"),
]


@pytest.mark.parametrize(("content", "said", "hint"), WRONG)
@pytest.mark.parametrize(
    "name",
    [f"samples_sums_{DATE}.jsonl", f"results_{DATE}.json", "x.eval", f"details_sums|0_{DATE}.parquet", "x.csv"],
)
def test_a_file_that_is_something_else_is_named(
    importer: Importer, name: str, content: bytes, said: str, hint: str
) -> None:
    off = dated(EARLIER, binary_rows([1])).write(importer.folder / "off")
    folder = importer.folder / "on"
    if name.startswith(("samples", "results")):
        Run(samples={"sums": binary_rows([1])}).write(folder)
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    with pytest.raises(BadLog, match=said) as caught:
        importer.table(folder / name) if name == "x.csv" else importer(off, folder)
    assert name in caught.value.message
    assert hint in caught.value.hint


def test_an_answer_that_is_null_is_missing(importer: Importer) -> None:
    off = binary_rows([1] * 300)
    on = [{**one, "resps": [[None]]} if n < 4 else one for n, one in enumerate(off)]
    results = {"results": {"sums": {"exact_match,none": 1.0}}}
    found = importer.runs(dated(EARLIER, off, **results), dated(LATER, on, **results))
    metric = found.metrics[0]
    assert (metric.n_items, metric.n_missing_candidate, found.arms[1].n_answers) == (300, 4, 296)
    assert found.arms[1].statuses == {"no_final_answer": 4, "ok": 296}
    (answer, *_) = importer.store.answers(found.comparison_id, arm=ArmName.CANDIDATE)
    assert (answer.reply.text, answer.reply.status) == (None, AnswerStatus.NO_FINAL_ANSWER)


# the handed cases

HANDED: list[tuple[str, str, str, dict[str, object]]] = [
    # the baseline, the candidate ("" for off and on of one folder), the verdict or error, and figures of the analysis
    ("01-one-folder-two-runs", "01-one-folder-two-runs", "Both arms are one file", {}),
    ("02-rows-lost", "", "INVALID", {"metrics.0.n_items": 1319, "metrics.0.n_missing": 419}),
    ("03-same-text-other-score", "", "INVALID", {"pairs.same_text_other_score": 48}),
    ("05-inspect-no-completion/off.eval", "05-inspect-no-completion/on.eval", "INCONCLUSIVE", {"pairs.same_text": 0}),
    ("06-later-rows-other-settings", "", "1318 of 1319 answers", {}),
    ("07-no-results-in-one-arm/off", "12-lfs-pointer", r"samples_gsm8k.*\.jsonl is a Git LFS pointer", {}),
    ("08-inspect-unscored/off.eval", "08-inspect-unscored/on.eval", r"off\.eval has no scores", {}),
    ("08-inspect-failed-run", "", "error after 30 of 40 samples", {}),
    (
        *("09-lighteval-double-underscore/baseline", "09-lighteval-double-underscore/candidate", "INCONCLUSIVE"),
        {"metrics.0.task": "capitals|5", "metrics.1.task": "sums|0"},
    ),
    # its texts are all the same
    ("10-lower-is-better", "", "INVALID", {"metrics.0.verdict": "REGRESSION", "metrics.0.evidence.losses": 120}),
    ("11-version-3-and-3.0", "", "EQUIVALENT", {}),
    ("15-inspect-json", "08-inspect-failed-run/off", "INCONCLUSIVE", {"pairs.n_pairs": 40}),
    ("16-null-answers", "", "INVALID", {"metrics.0.n_missing_candidate": 40}),
]


@pytest.fixture
def cases() -> Path:
    if not SHARED:
        pytest.skip("needs QUALAB_SHARED, the directory with cases/import")
    return Path(SHARED) / "cases" / "import"


@pytest.mark.parametrize(("off", "on", "outcome", "figures"), HANDED)
def test_a_handed_case_gets_its_verdict_or_is_refused(  # noqa: PLR0917
    importer: Importer, cases: Path, off: str, on: str, outcome: str, figures: dict[str, object]
) -> None:
    arms = (cases / off, cases / on) if on else (cases / off / "off", cases / off / "on")
    if outcome not in set(Verdict):
        with pytest.raises((BadLog, PairDiffers, UsageError), match=outcome):
            importer(*arms)
        assert not importer.comparisons
        return
    analysis = importer(*arms)
    assert analysis.verdict == outcome
    for path, figure in figures.items():
        value: Any = analysis
        for part in path.split("."):
            value = value[int(part)] if part.isdigit() else getattr(value, part)
        assert value == figure, path


def test_handed_runs_of_one_folder_are_told_apart_by_name(importer: Importer, cases: Path) -> None:
    folder = cases / "01-one-folder-two-runs"
    analysis = importer(folder, folder, runs={BASELINE: "T10", CANDIDATE: "T12"})
    assert (analysis.verdict, round(evidence(analysis).difference, 4)) == (Verdict.REGRESSION, -0.069)
