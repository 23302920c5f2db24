"""Lists of comparisons: summaries, filters, orders, pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from qualab.errors import ComparisonNotFound, InvalidValue
from qualab.model.names import ComparisonStatus, LookDecision, Verdict
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import ComparisonSummary, ListOrder, VerdictSummary, encode_cursor
from qualab.store import Store, open_store
from tests.store.conftest import MIGRATIONS
from tests.store.samples import (
    FULL,
    NOW,
    after,
    ask_for,
    make_analysis,
    make_comparison,
    make_entry,
    make_look,
    make_plan,
    make_signoff,
    put,
)

EVERYTHING = ComparisonFilter()
FINISHED, QUEUED = ComparisonStatus.FINISHED, ComparisonStatus.QUEUED


def ids(store: Store, **wanted: Any) -> list[str]:
    return [one.id for one in store.page(ComparisonFilter(**wanted)).entries]


def turned(store: Store, order: ListOrder = ListOrder.NEWEST, **wanted: Any) -> list[list[str]]:
    """The ids of every page, by following cursors."""
    pages, cursor = [], None
    while True:
        page = store.page(ComparisonFilter(**wanted), order=order, cursor=cursor)
        pages.append([one.id for one in page.entries])
        if page.next_cursor is None:
            return pages
        cursor = page.next_cursor


def test_a_comparison_is_summed_up(store: Store) -> None:
    plan = make_plan()
    plan = replace(plan, tasks=(plan.tasks[0], replace(plan.tasks[0], name="other", n_items=40)))
    comparison = make_comparison("c-1", plan=plan, label="밤", stop_reason=FULL, started_at=after(1))
    store.create(comparison, [])
    wanted = ComparisonSummary(
        id="c-1",
        status=ComparisonStatus.PLANNED,
        verdict=None,
        label="밤",
        model="모델/7b",
        suite="custom",
        plan_hash=comparison.plan_hash,
        n_items=43,
        created_at=NOW,
        started_at=after(1),
        finished_at=None,
        stop_reason=FULL,
        is_signed_off=False,
    )
    assert store.summary("c-1") == wanted
    assert store.page(EVERYTHING).entries == (wanted,)

    with pytest.raises(ComparisonNotFound, match="'c-'"):
        store.summary("c-")


def test_what_waits_is_listed_before_it_has_a_plan(store: Store) -> None:
    ask_for(store, label="asked", model="m")
    summary = store.summary("c-1")
    assert (summary.status, summary.created_by, summary.plan_hash, summary.n_items) == (QUEUED, "ci", "", 0)
    assert (store.page(EVERYTHING).entries, store.list(EVERYTHING)) == ((summary,), [])
    with pytest.raises(ComparisonNotFound):
        store.get("c-1")
    store.create(make_comparison(label="another"), [])
    assert store.summary("c-1") == replace(
        summary, plan_hash=make_comparison().plan_hash, suite="custom", n_items=3, model="모델/7b"
    )


def test_a_run_that_a_look_ended_tells_how_many_items_were_asked(store: Store) -> None:
    store.create(make_comparison(), [])
    for number, n_items_asked in ((1, None), (2, 2), (3, None)):
        decision = LookDecision.CONTINUE if number == 1 else LookDecision.HARM
        store.add_look("c-1", make_look(number, n_items=number, decision=decision), now=NOW)
        found = store.summary("c-1")
        assert (found.n_items, found.n_items_asked) == (3, n_items_asked)
        assert store.page(EVERYTHING).entries == (found,)


def test_a_summary_follows_its_comparison(store: Store) -> None:
    store.create(make_comparison(), [])
    store.put_analysis(make_analysis(verdict=Verdict.REGRESSION), now=after(9))
    store.sign_off(make_signoff(), entry=make_entry())
    found = store.summary("c-1")
    assert (found.status, found.verdict, found.finished_at) == (FINISHED, Verdict.REGRESSION, after(9))
    assert found.is_signed_off
    assert store.verdict("c-1") == VerdictSummary.of(found)


def test_filters_hold_together_and_alone(store: Store) -> None:
    other = make_plan()
    other = replace(other, sampling=replace(other.sampling, model="other"))
    store.create(make_comparison("a", label="x", status=FINISHED, verdict=Verdict.INVALID), [])
    store.create(make_comparison("b", label="y", plan=other, created_at=after(10)), [])
    store.create(make_comparison("c", label="x", plan=other, status=ComparisonStatus.RUNNING, created_at=after(20)), [])
    ask_for(store, "d", label="x", model="other", at=after(30))
    filters: list[tuple[dict[str, Any], list[str]]] = [
        ({"label": "x"}, ["d", "c", "a"]),
        ({"label": ""}, []),
        ({"model": "other"}, ["d", "c", "b"]),
        ({"verdict": Verdict.INVALID}, ["a"]),
        ({"verdict": Verdict.REGRESSION}, []),
        ({"status": FINISHED}, ["a"]),
        ({"status": QUEUED}, ["d"]),
        ({"status": ComparisonStatus.STOPPED}, []),
        ({"since": after(10)}, ["d", "c", "b"]),
        ({"until": after(20)}, ["b", "a"]),
        ({"label": "x", "model": "other", "status": ComparisonStatus.RUNNING, "since": after(20)}, ["c"]),
    ]
    for wanted, found in filters:
        assert ids(store, **wanted) == found, wanted
        assert [one.id for one in store.list(ComparisonFilter(**wanted))] == [id_ for id_ in found if id_ != "d"]
    assert store.counts() == {"finished": 1, "planned": 1, "running": 1, "queued": 1}


def test_filters_find_texts_as_they_were_stored(store: Store) -> None:
    store.create(make_comparison("c", label="a\x00b\ud800c"), [])
    ask_for(store, "s", label="a\x00b\ud800c", model="m\x00", at=after(1))
    assert ids(store, label="a\x00b\ud800c") == ["s", "c"]
    assert ids(store, model="m\x00") == ["s"]


def fill(store: Store) -> None:
    """Nine lines, two of most values, made at three moments."""
    rows = [
        ("c-0", "beta", FINISHED, Verdict.EQUIVALENT),
        ("c-1", "alpha", FINISHED, Verdict.REGRESSION),
        ("c-2", "beta", ComparisonStatus.RUNNING, None),
        ("c-3", "", FINISHED, Verdict.INVALID),
        ("c-4", "gamma", ComparisonStatus.STOPPED, None),
        ("c-5", "alpha", FINISHED, Verdict.REGRESSION),
    ]
    for number, (id_, label, status, verdict) in enumerate(rows):
        made = make_comparison(id_, label=label, status=status, verdict=verdict, created_at=after(number // 2))
        store.create(made, [])
    for number, label in enumerate(("beta", "alpha", "delta")):
        ask_for(store, f"s-{number}", label=label, at=after(number))


ORDERED = {
    ListOrder.NEWEST: "s-2 c-5 c-4 s-1 c-3 c-2 s-0 c-1 c-0",
    ListOrder.LABEL: "c-3 c-5 s-1 c-1 c-2 s-0 c-0 s-2 c-4",
    ListOrder.VERDICT: "c-5 c-1 c-3 c-0 s-2 c-4 s-1 c-2 s-0",
}


def test_every_order_goes_over_all_pages_and_holds_with_filters(store: Store) -> None:
    assert set(ORDERED) == set(ListOrder)
    fill(store)
    assert ids(store, limit=0) == ["s-2"], "at least one"
    for order, wanted in ORDERED.items():
        for limit in (1, 2, 4, 9, 20):
            pages = turned(store, order, limit=limit)
            assert " ".join(id_ for page in pages for id_ in page) == wanted, (order, limit)
            assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1), (order, limit)
        for one in ({"label": "alpha"}, {"verdict": Verdict.REGRESSION}, {"since": after(1)}):
            among = set(ids(store, **one))
            found = [id_ for page in turned(store, order, limit=2, **one) for id_ in page]
            assert found == [id_ for id_ in wanted.split() if id_ in among], (order, one)


def test_what_comes_or_goes_meanwhile_shifts_no_page(store: Store) -> None:
    fill(store)
    first = store.page(ComparisonFilter(limit=4), order=ListOrder.LABEL)
    assert [one.id for one in first.entries] == ["c-3", "c-5", "s-1", "c-1"]
    store.create(make_comparison("new", label="alpha", created_at=after(9)), [])
    store.delete("c-1", entry=make_entry(), stale_after_s=1.0)
    second = store.page(ComparisonFilter(limit=9), order=ListOrder.LABEL, cursor=first.next_cursor)
    assert [one.id for one in second.entries] == ["c-2", "s-0", "c-0", "s-2", "c-4"]


@pytest.mark.parametrize("order", ListOrder)
def test_a_cursor_of_another_list_is_refused(store: Store, order: ListOrder) -> None:
    fill(store)
    cursors = {one: store.page(ComparisonFilter(limit=1), order=one).next_cursor for one in ListOrder}
    name = f"comparisons {order}"
    broken = ["", "!", ".", "ünï", "a" * 999, f"{cursors[order]}!", "NQ", "bnVsbA", "W10"]
    broken += [encode_cursor("x", 1, 2), encode_cursor(name, 1), encode_cursor(name, 1, 2, 3, 4)]
    broken += [encode_cursor(name, 1, 2**63), encode_cursor(name, "a\x00", 1, 2), encode_cursor(name, True, 1, 2)]
    for cursor in [*(one for other, one in cursors.items() if other is not order), *broken]:
        with pytest.raises(InvalidValue, match="cursor"):
            store.page(EVERYTHING, order=order, cursor=cursor)
    beyond = encode_cursor("comparisons -created", -(2**62), 1)
    assert store.page(EVERYTHING, cursor=beyond).entries == (), "a place before all times"


ORDER_BY = {
    "": "created_at DESC, key DESC",
    "label": "label, created_at DESC, key DESC",
    "verdict": "verdict_rank, created_at DESC, key DESC",
}


@pytest.mark.parametrize("order", ORDER_BY)
@pytest.mark.parametrize("condition", ["", "status = 'finished'", "verdict = 'INVALID'", "model = 'm'"])
def test_a_list_is_read_from_an_index(sqlite_url: str, order: str, condition: str) -> None:
    """SQLite tells how it would read one: never row by row, and an order by itself never by sorting."""
    query = f"SELECT key FROM comparison {condition and 'WHERE ' + condition} ORDER BY {ORDER_BY[order]} LIMIT 51"
    with open_store(sqlite_url, migrations=MIGRATIONS) as store, store.engine.connect() as connection:
        plan = " ".join(row.detail for row in connection.execute(text(f"EXPLAIN QUERY PLAN {query}")))
    assert "INDEX" in plan
    assert "TEMP B-TREE" not in plan or (condition and order), plan


def test_a_row_put_aside_keeps_its_rank(store: Store) -> None:
    fill(store)
    put(store, "c-0", verdict=Verdict.REGRESSION)
    assert turned(store, ListOrder.VERDICT)[0][:3] == ["c-5", "c-1", "c-0"]
