"""Comparisons: create, get, list, status, verdict, and those that are finished when they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from qualab.errors import ComparisonNotFound, StoreError
from qualab.model.canonical import plan_hash
from qualab.model.comparison import Analysis
from qualab.model.items import Answer, Item, OutcomeFilter
from qualab.model.names import ArmName, ComparisonStatus, Verdict
from qualab.model.ports import ComparisonFilter
from qualab.store import Store
from tests.store import samples as make
from tests.store.samples import FULL, NOW, after, put

EVERYTHING = ComparisonFilter()


def test_an_analysis_under_another_plan_stands_beside_the_own_one(store: Store) -> None:
    store.create(make.comparison(), make.items(1))
    other = make.analysis(verdict=Verdict.INVALID, plan_hash="o" * 64)
    store.put_analysis(other, now=after(1))
    assert store.analysis("c-1") is None
    assert (store.get("c-1").status, store.get("c-1").verdict) == (ComparisonStatus.PLANNED, None)
    own = make.analysis(verdict=Verdict.EQUIVALENT)
    store.put_analysis(own, now=after(2))
    store.put_analysis(other, now=after(3))
    assert store.analysis("c-1") == own
    assert store.analysis("c-1", plan_hash="o" * 64) == other
    assert store.analysis("c-1", plan_hash="x" * 64) is None
    assert list(store.plan_hashes("c-1")) == ["o" * 64, own.plan_hash]
    assert store.get("c-1").verdict is Verdict.EQUIVALENT
    assert store.get("c-1").finished_at == after(2)


def test_a_comparison_comes_back_as_it_was(store: Store) -> None:
    ended = {"status": ComparisonStatus.STOPPED, "verdict": Verdict.INCONCLUSIVE, "stop_reason": FULL, "duplicates": 7}
    times = {"started_at": after(1), "finished_at": after(2.000001)}
    local = {"data_dir": "/자료", "tokenizer": "x"}
    comparison = make.comparison("c-2", label="새 드래프터 🚀", local=local, **ended, **times)
    store.create(comparison, [])
    stored = store.get("c-2")
    assert (stored, plan_hash(stored.plan)) == (comparison, comparison.plan_hash)
    seoul = datetime(2026, 3, 4, 14, 0, tzinfo=timezone(timedelta(hours=9)))
    store.create(make.comparison(created_at=seoul, label="a\x00b\ud800c"), [])
    stored = store.get("c-1")
    assert (stored.created_at, stored.created_at.utcoffset()) == (seoul, timedelta(0))
    assert stored.label == "a\ufffdb\ufffdc", "what no database can hold"


def test_an_id_can_be_shortened_while_it_is_unambiguous(store: Store) -> None:
    for comparison_id in ("abc-1", "abc-2", "abd", "ab"):
        store.create(make.comparison(comparison_id), [])
    assert [store.get(id_).id for id_ in ("ab", "abd")] == ["ab", "abd"]
    assert store.get("abc-2").id == "abc-2"
    with pytest.raises(ComparisonNotFound, match=r"begins several comparisons: .*abc"):
        store.get("abc")
    for number in range(8):
        store.create(make.comparison(f"c-{number}"), [])
    with pytest.raises(ComparisonNotFound, match=r"c-\d, c-\d, c-\d, c-\d, c-\d, \.\.\."):
        store.get("c")
    for begins_none in ("", "x", "C-1", "c_", "c%", "c-1 ", "\u0661"):
        with pytest.raises(ComparisonNotFound, match="qualab list"):
            store.get(begins_none)


def test_items_come_back_exactly_and_in_order(store: Store) -> None:
    items = [make.item(2), make.choices(0), make.item(1, doc={}, prompts=(), requests=(), target="", cluster="c")]
    store.create(make.comparison(), iter(items))
    found = list(store.items("c-1"))
    assert store.n_requests("c-1") == sum(len(item.requests) for item in items) > 2
    assert found == sorted(items, key=lambda item: item.position)
    keys = [list(item.requests[0].payload) for item in found if item.requests]
    assert keys == [["prompt"], ["model", "prompt", "max_tokens", "a"]]


def test_a_document_keeps_every_json_value(store: Store) -> None:
    numbers = {"big": 2**70, "float": 0.1 + 0.2, "tiny": 5e-324, "whole": 1.0, "inf": float("inf")}
    doc = {**numbers, "text": "a\x00b 한글 🧪 \ud800 \u2028", "list": [[], {}, [None, False, -0.5]]}
    store.create(make.comparison(), [make.item(0, doc=doc)])
    (found,) = store.items("c-1")
    assert found.doc == doc
    assert isinstance(found.doc["whole"], float)


def broken_off() -> Iterator[Item]:
    yield from make.items(2_500)
    raise KeyboardInterrupt


def test_of_a_comparison_whose_items_cannot_be_stored_nothing_is_and_an_id_is_taken_once(store: Store) -> None:
    for items, error in (
        ([make.item(0, doc={"when": NOW})], "item gsm8k/1000 holds a value that JSON cannot say"),
        ([make.item(0), make.item(0, doc_id=5)], "two items have the same"),
        ([make.item(0), replace(make.item(0), position=1)], "two items have the same"),
        (broken_off(), None),
    ):
        with pytest.raises(StoreError if error else KeyboardInterrupt, match=error):
            store.create(make.comparison(), items)
        assert store.list(EVERYTHING) == [], error
    store.create(make.comparison(), make.items(1))
    with pytest.raises(StoreError, match="c-1 exists already"):
        store.create(make.comparison(label="other"), make.items(2))
    assert (store.get("c-1").label, len(list(store.items("c-1")))) == ("", 1)


def test_running_starts_a_comparison_once_and_an_analysis_finishes_it_until_it_goes_on(store: Store) -> None:
    store.create(make.comparison(), [])
    store.set_status("c-1", ComparisonStatus.RUNNING, now=after(1))
    store.set_status("c-1", ComparisonStatus.STOPPED, now=after(2), stop_reason=FULL)
    stopped = store.get("c-1")
    assert (stopped.status, stopped.started_at, stopped.finished_at) == (ComparisonStatus.STOPPED, after(1), None)
    assert stopped.stop_reason == FULL
    store.set_status("c-1", ComparisonStatus.RUNNING, now=after(3))
    assert (store.get("c-1").started_at, store.get("c-1").stop_reason) == (after(1), None)
    store.set_status("c-1", ComparisonStatus.STOPPED, now=after(4), stop_reason=FULL)
    analysis = make.analysis(verdict=Verdict.REGRESSION)
    store.put_analysis(analysis, now=after(5))
    found = store.get("c-1")
    assert (found.status, found.verdict) == (ComparisonStatus.FINISHED, Verdict.REGRESSION)
    assert (found.finished_at, found.stop_reason) == (after(5), FULL)
    store.set_status("c-1", ComparisonStatus.RUNNING, now=after(6))
    found = store.get("c-1")
    assert (found.verdict, found.finished_at, found.started_at) == (None, None, after(1))
    assert store.analysis("c-1") == analysis


def test_every_status_and_verdict_can_be_stored(store: Store) -> None:
    store.create(make.comparison(), [])
    for status in ComparisonStatus:
        put(store, "c-1", status=status)
        assert store.get("c-1").status is status
    for verdict in Verdict:
        store.put_analysis(make.analysis(verdict=verdict), now=NOW)
        assert store.get("c-1").verdict is verdict


def test_an_unknown_id_is_refused_everywhere_at_the_call(store: Store) -> None:
    store.create(make.comparison("abcd"), [])
    calls = [
        lambda: store.items("abc"),
        lambda: store.claim("abc", runner="r", now=NOW, stale_after_s=1),
        lambda: store.heartbeat("abc", runner="r", now=NOW),
        lambda: store.add_answers("abc", []),
        lambda: store.looks("abc"),
        lambda: store.outcomes("abc", OutcomeFilter()),
        lambda: store.summary("abc"),
    ]
    for call in calls:
        with pytest.raises(ComparisonNotFound, match="no comparison 'abc'"):
            call()  # type: ignore[no-untyped-call]


ANSWERS = [make.answer(position, arm) for arm in ArmName for position in range(3)]
SCORES = [make.score(0), make.score(1, ArmName.CANDIDATE)]


def put_whole(store: Store, answers: Any = ANSWERS, analysis: Callable[[], Analysis] = make.analysis) -> Analysis:
    return store.put_whole(make.comparison(), make.items(3), answers, SCORES, analysis, now=NOW)


def test_a_whole_comparison_is_stored_finished_and_its_analysis_made_after_everything_was_read(store: Store) -> None:
    read: list[Answer] = []

    def seen() -> Iterator[Answer]:
        for answer in ANSWERS:
            read.append(answer)
            yield answer

    def analyse() -> Analysis:
        assert len(read) == 6
        return make.analysis()

    analysis, comparison = put_whole(store, seen(), analyse), store.get("c-1")
    assert comparison.status is ComparisonStatus.FINISHED
    assert (comparison.verdict, comparison.finished_at) == (analysis.verdict, NOW)
    assert list(store.items("c-1")) == list(make.items(3))
    assert [answer for arm in ArmName for answer in store.answers("c-1", arm=arm)] == ANSWERS
    assert list(store.scores("c-1")) == SCORES
    assert store.analysis("c-1") == analysis == make.analysis()
    with pytest.raises(StoreError, match="exists already"):
        put_whole(store)


def fails() -> Analysis:
    raise RuntimeError


def breaks() -> Iterator[Answer]:
    yield from ANSWERS
    raise RuntimeError


def test_where_a_part_fails_nothing_is_there(store: Store) -> None:
    for parts in ({"analysis": fails}, {"answers": breaks()}, {"answers": [make.answer(99)]}):
        with pytest.raises((RuntimeError, StoreError)):
            put_whole(store, **parts)
        assert store.list(EVERYTHING) == []
    put_whole(store)
