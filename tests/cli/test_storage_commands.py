"""`qualab list` with its filters and `qualab prune`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from qualab.bootstrap import share
from qualab.model.names import ComparisonStatus, Verdict
from qualab.store import Store, open_store
from tests.cli.conftest import Command
from tests.store import samples as make
from tests.store.samples import ask_for, put

NOW = datetime.now(UTC)
OLD = timedelta(days=100)


@pytest.fixture
def store(qualab: Command) -> Iterator[Store]:
    """The commands' database."""
    with open_store(os.environ["QUALAB_DB"], migrations=share("migrations")) as opened:
        yield opened


def listed(qualab: Command, *options: str) -> list[str]:
    return [entry["id"] for entry in qualab.json("list", *options)]


def test_list_filters_by_verdict_model_and_time(qualab: Command, store: Store) -> None:
    other = make.plan()
    other = replace(other, sampling=replace(other.sampling, model="other"))
    finished = ComparisonStatus.FINISHED
    assert f"No comparisons yet in {os.environ['QUALAB_DB']}" in qualab("list").out
    store.create(make.comparison("old", created_at=NOW - OLD, status=finished, verdict=Verdict.REGRESSION), [])
    store.create(make.comparison("new", created_at=NOW, plan=other, label="nightly"), [])
    assert listed(qualab) == ["new", "old"]
    assert listed(qualab, "--verdict", "REGRESSION") == listed(qualab, "--verdict", "regression") == ["old"]
    assert listed(qualab, "--model", "other") == listed(qualab, "--label", "nightly") == ["new"]
    assert listed(qualab, "--since", "99d") == ["new"]
    assert listed(qualab, "--since", f"{NOW - timedelta(days=101):%Y-%m-%d}") == ["new", "old"]
    assert "No comparison matches these filters" in qualab("list", "--model", "none").out


def test_prune_deletes_what_is_old_and_says_so(qualab: Command, store: Store) -> None:
    for comparison_id, age, label in (("old", OLD, "nightly"), ("other", OLD, ""), ("new", timedelta(), "nightly")):
        store.create(make.comparison(comparison_id, created_at=NOW - age, label=label), make.items(3))
        store.add_answers(comparison_id, [make.answer(1)])
    dry = qualab("prune", "--older-than", "90d", "--label", "nightly", "--dry-run")
    assert dry.out.splitlines() == [
        f"would delete: old  {NOW - OLD:%Y-%m-%d}  planned  nightly",
        "would delete 1, kept 0",
    ]
    assert len(listed(qualab)) == 3
    done = qualab("prune", "--older-than", "90d", "--label", "nightly")
    assert (done.code, done.out) == (0, dry.out.replace("would delete", "deleted"))
    assert listed(qualab) == ["new", "other"]
    assert qualab("prune", "--older-than", "90d", "--label", "nightly").out == "deleted 0, kept 0\n"
    (entry,) = store.audit().entries
    assert (entry.action, entry.subject, entry.details["label"]) == ("comparison.prune", "old", "nightly")
    assert "@" in entry.who


def test_prune_keeps_what_is_signed_off_what_runs_and_what_waits(qualab: Command, store: Store) -> None:
    ask_for(store, "given-back", at=NOW - OLD)
    for comparison_id in ("signed", "running", "dead", "given-back"):
        store.create(make.comparison(comparison_id, created_at=NOW - OLD), [])
    store.sign_off(make.signoff(comparison_id="signed"), entry=make.entry())
    store.claim("dead", runner="elsewhere:1:b", now=NOW - OLD, stale_after_s=30)
    store.claim("running", runner="elsewhere:1:a", now=datetime.now(UTC), stale_after_s=30)
    for comparison_id in ("queued", "failed"):
        ask_for(store, comparison_id, at=NOW - OLD)
    put(store, "failed", status=ComparisonStatus.FAILED)
    done = qualab.json("prune", "--older-than", "2w")
    assert {one["id"]: one["kept"] for one in done} == {
        "signed": "signed off",
        "running": "runs, or waits to be run",
        "given-back": "waits to be run",
        "queued": "waits to be run",
        "dead": "",
        "failed": "",
    }
    assert sorted(listed(qualab)) == ["given-back", "running", "signed"]


def test_more_than_a_page_is_pruned(qualab: Command, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qualab.run.prune.PAGE", 2)
    for number in range(5):
        store.create(make.comparison(f"c-{number}", created_at=NOW - OLD), [])
    assert qualab("prune", "--older-than", "90d").out.endswith("deleted 5, kept 0\n")
