"""`import qualab`: the cells of docs/python.md, and the table of pairs that `qualab export --format` writes."""

from __future__ import annotations

import asyncio
import csv
import io
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import qualab as package
from qualab.bootstrap import store_at
from qualab.run.pairs import COLUMNS, encoded_pairs, pairs_of
from tests.app.test_audit import scored
from tests.cli.conftest import Command, forget_settings
from tests.fresh_store import fresh_store
from tests.scripted_server import MODEL, Script, ScriptedServer
from tests.store import samples as make

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_cells_of_the_documentation_run_where_a_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    names: dict[str, object] = {}

    async def run(code: str) -> None:
        exec(compile(code, str(PAGE), "exec"), names)

    with ScriptedServer() as off, ScriptedServer(Script(flip_share=0.3, drafts=True)) as on:
        urls = {"http://off:8000/v1": off.url, "http://on:8000/v1": on.url, "my-model": MODEL}
        for cell in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
            asyncio.run(run(re.sub("|".join(urls), lambda found: urls[found[0]], cell)))
    result, pairs = names["result"], names["pairs"]
    assert isinstance(result, package.StoredComparison)
    assert isinstance(pairs, pd.DataFrame)
    assert result.verdict == "INCONCLUSIVE"
    assert len(pairs) == 60
    counts = pairs[["baseline_score", "candidate_score"]].groupby(pairs.metric).mean()
    for row in result.metrics.query("is_primary").itertuples():
        assert tuple(counts.loc[row.metric]) == pytest.approx((row.baseline, row.candidate))


def test_an_unfinished_comparison_has_pairs_and_no_verdict(tmp_path: Path) -> None:
    store = fresh_store()
    comparison = make.comparison()
    store.create(comparison, make.items(3))
    reply = replace(make.answer(0).reply, text="=1+1")
    store.add_answers(comparison.id, [replace(make.answer(0), reply=reply)])
    store.put_scored(comparison.id, [scored([(0.0, 0.9, 1), (2.0, 0.9, 2), (1.5, 0.9, 3)])])
    pairs = pairs_of(store, comparison.id)
    (row,) = pairs.to_dict("records")
    assert (row["change"], row["baseline_text"], row["baseline_foreign_tokens"]) == ("unknown", "=1+1", 2)
    assert row["baseline_largest_gap"] == pytest.approx(2.0)
    assert pd.isna(row["candidate_text"])
    assert pd.isna(row["candidate_foreign_tokens"])
    with pytest.raises(package.QualabError, match="no analysis yet"):
        _ = package.StoredComparison(comparison, store).verdict


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=A1", "'=A1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@x", "'@x"),
        ("\t=1", "'\t=1"),
        ("＝1", "'＝1"),
        ("답 = 1", "답 = 1"),
    ],
)
def test_no_text_of_a_csv_runs_as_a_formula_and_numbers_stay(text: str, written: str) -> None:
    row = {**dict.fromkeys(COLUMNS), "doc_id": 0, "repeat": 0, "candidate_text": text, "candidate_score": -0.5}
    frame = pd.DataFrame([row]).astype(COLUMNS)
    data = encoded_pairs(frame, is_csv=True)
    (read,) = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""))
    assert data.startswith(b"\xef\xbb\xbf")
    assert (read["candidate_text"], read["candidate_score"], read["baseline_text"]) == (written, "-0.5", "")
    assert pd.read_parquet(io.BytesIO(encoded_pairs(frame, is_csv=False))).candidate_text[0] == text


def test_imported_scores_have_pairs_too(qualab: Command, database: Path, tmp_path: Path) -> None:
    with store_at(str(database)) as store:
        ids = [line["id"] for line in qualab.json("list", "--db", database)]
        pairs = pairs_of(store, ids[0])
    assert pairs.change.value_counts().to_dict() == {"same": 300, "loss": 100}
    done = qualab("export", ids[0], "--format", "csv", tmp_path, "--db", database)
    assert (done.code, done.out.strip()) == (0, str(tmp_path / f"{ids[0]}.csv"))
    assert len(pd.read_csv(done.out.strip())) == 400
    for arguments, code in (([ids[0], "--format", "xlsx"], 2), (["nope", "--format", "csv"], 2)):
        assert qualab("export", *arguments, "--db", database).code == code
    assert qualab("export", ids[0], "--format", "csv", tmp_path / "no" / "x.csv", "--db", database).code == 2


def test_settings_that_a_comparison_cannot_have_are_qualab_s_errors(tmp_path: Path) -> None:
    for settings, told in (
        ({"baseline": "http://a", "candidates": {"x": "http://b", "y": "http://c"}, "model": "m"}, "one candidate"),
        ({"baseline": "http://a", "candidate": "http://b"}, "No model"),
        ({"experiment": tmp_path / "none.yaml"}, "Cannot read"),
    ):
        with pytest.raises(package.QualabError, match=told):
            package.compare(**settings, show_progress=False, db=str(tmp_path / "x.db"))
    with pytest.raises(AttributeError):
        _ = package.nothing
