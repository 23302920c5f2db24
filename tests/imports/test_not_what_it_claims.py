"""A folder or file that is not what it should be: one sentence with file, line and what was expected."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from qualab.errors import BadLog
from tests.imports.conftest import Importer
from tests.imports.lm_eval_files import DATE, Row, Run, binary_rows

SAMPLES = f"samples_sums_{DATE}.jsonl"


def run(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """A run in whose folder something is changed."""
    return lambda folder: change(Run(samples={"sums": binary_rows([1] * 5)}).write(folder))


def with_results(text: str) -> Callable[[Path], object]:
    return run(lambda folder: (folder / f"results_{DATE}.json").write_text(text))


def second_row(change: Callable[[Row], object]) -> Callable[[Path], object]:
    def rewrite(folder: Path) -> object:
        rows = [json.loads(line) for line in (folder / SAMPLES).read_text().splitlines()]
        change(rows[1])
        return (folder / SAMPLES).write_text("".join(json.dumps(one) + "\n" for one in rows))

    return run(rewrite)


def cut_in_line_3(ending: bytes, *, rest: bool) -> Callable[[Path], object]:
    def cut(folder: Path) -> object:
        lines = (folder / SAMPLES).read_bytes().splitlines(keepends=True)
        lines = [*lines[:2], lines[2][:50] + ending, *(lines[3:] if rest else [])]
        return (folder / SAMPLES).write_bytes(b"".join(lines))

    return run(cut)


WRONG: list[tuple[Callable[[Path], object], str, str]] = [
    (lambda folder: None, "does not exist", "Check the path"),
    (lambda folder: folder.mkdir(), "holds no known evaluation logs", "lm-eval"),
    (run(lambda folder: (folder / SAMPLES).unlink()), "no samples_", "--log_samples"),
    (with_results('{"score": 1}'), r'results_.*\.json, line 1: has no "results"', "configs"),
    (with_results('{\n"results": {\n"sums"'), r"results_.*\.json, line 3: is not a JSON object", "results"),
    (cut_in_line_3(b"\n", rest=True), r"_sums_.*\.jsonl, line 3: is not a JSON object", "lm_eval --log_samples"),
    (cut_in_line_3(b"", rest=False), r"_sums_.*\.jsonl, line 3: is not a JSON object", "lm_eval --log_samples"),
    (run(lambda folder: shutil.copy(folder / SAMPLES, folder / f"{SAMPLES}.gz")), "both of task sums", "Keep one"),
    (second_row(lambda row: row.pop("doc")), "line 2: has no doc", "resps"),
    (second_row(lambda row: row.pop("filter")), "line 2: has no filter", "0.4.7 or newer"),
    (second_row(lambda row: row.update(resps="x")), "line 2: its resps are not a list of lists", "resps"),
    (second_row(lambda row: row.update(resps=[[["x", "True"]]])), "line 2: the log-likelihood 'x' is not a", "resps"),
    (second_row(lambda row: row.update(metrics=["bypass"])), "line 2: has no score: .* without --predict_only", ""),
]


@pytest.mark.parametrize(("write", "message", "hint"), WRONG)
def test_what_is_wrong_is_said(importer: Importer, write: Callable[[Path], object], message: str, hint: str) -> None:
    good = Run(samples={"sums": binary_rows([1, 0, 1])}).write(importer.folder / "good")
    bad = importer.folder / "bad"
    write(bad)
    for arms in ((good, bad), (bad, good)):
        with pytest.raises(BadLog, match=message) as caught:
            importer(*arms)
        assert hint in caught.value.hint
        assert "\n" not in str(caught.value)
    assert not importer.comparisons


def test_a_sample_file_stands_for_itself_and_needs_no_results(importer: Importer) -> None:
    folder = Run(samples={"a": binary_rows([1, 0]), "b": binary_rows([1])}).write(importer.folder / "off")
    other = shutil.copytree(folder, importer.folder / "on")
    importer(folder / f"samples_a_{DATE}.jsonl", other / f"samples_a_{DATE}.jsonl")
    assert importer.join.task == "a"
    for path in (folder, other):
        (path / f"results_{DATE}.json").unlink()
    bare = Importer(folder=importer.folder)
    bare(folder, other)
    assert [(join.task, join.paired) for join in bare.imported.joins] == [("a", 2), ("b", 1)]
