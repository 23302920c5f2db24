"""Lists of comparisons, tokens, the record of changes, and sign-offs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import text

from qualab.errors import ComparisonNotFound, InvalidValue, StoreError
from qualab.model.names import ComparisonStatus, LookDecision, Verdict
from qualab.model.ports import ComparisonFilter
from qualab.model.reason import Reason
from qualab.model.registry import ComparisonSummary, ListOrder, Scope, encode_cursor
from qualab.store import Store
from tests.fresh_store import opened
from tests.store import samples as make
from tests.store.samples import FULL, NOW, after, ask_for, filled, put

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
    plan = make.plan()
    plan = replace(plan, tasks=(plan.tasks[0], replace(plan.tasks[0], name="other", n_items=40)))
    comparison = make.comparison("c-1", plan=plan, label="밤", stop_reason=FULL, started_at=after(1))
    store.create(comparison, [])
    own = {name: getattr(comparison, name) for name in ("id", "status", "label", "plan_hash", "created_at")}
    planned = {"model": "모델/7b", "suite": "custom", "n_items": 43}
    wanted = filled(ComparisonSummary, **own, **planned, started_at=after(1), stop_reason=FULL)
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
    store.create(make.comparison(label="another"), [])
    planned = {"plan_hash": make.comparison().plan_hash, "suite": "custom", "n_items": 3, "model": "모델/7b"}
    assert store.summary("c-1") == replace(summary, **planned)


def test_a_summary_follows_its_comparison_and_tells_how_many_items_a_look_left_asked(store: Store) -> None:
    store.create(make.comparison(), [])
    for number, n_items_asked in ((1, None), (2, 2), (3, None)):
        decision = LookDecision.CONTINUE if number == 1 else LookDecision.HARM
        store.add_look("c-1", make.look(number, n_items=number, decision=decision), now=NOW)
        found = store.summary("c-1")
        assert (found.n_items, found.n_items_asked) == (3, n_items_asked)
        assert store.page(EVERYTHING).entries == (found,)
    store.put_analysis(make.analysis(verdict=Verdict.REGRESSION), now=after(9))
    store.sign_off(make.signoff(), entry=make.entry())
    found = store.summary("c-1")
    assert (found.status, found.verdict, found.finished_at) == (FINISHED, Verdict.REGRESSION, after(9))
    assert (found.is_signed_off, found.has_ended) == (True, True)


def test_filters_hold_together_and_alone(store: Store) -> None:
    other = make.plan()
    other = replace(other, sampling=replace(other.sampling, model="other"))
    store.create(make.comparison("a", label="x", status=FINISHED, verdict=Verdict.INVALID), [])
    store.create(make.comparison("b", label="y", plan=other, created_at=after(10)), [])
    store.create(make.comparison("c", label="x", plan=other, status=ComparisonStatus.RUNNING, created_at=after(20)), [])
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
    store.create(make.comparison("odd", label="a\x00b\ud800c"), [])
    ask_for(store, "s", label="a\x00b\ud800c", model="m\x00", at=after(1))
    assert ids(store, label="a\x00b\ud800c") == ["s", "odd"], "as they were stored"
    assert ids(store, model="m\x00") == ["s"]


def fill(store: Store) -> None:
    """Nine lines, two of most values, made at three moments."""
    worse = ("alpha", FINISHED, Verdict.REGRESSION)
    rows = [("beta", FINISHED, Verdict.EQUIVALENT), worse, ("beta", ComparisonStatus.RUNNING, None)]
    rows += [("", FINISHED, Verdict.INVALID), ("gamma", ComparisonStatus.STOPPED, None), worse]
    for number, (label, status, verdict) in enumerate(rows):
        own = {"label": label, "status": status, "verdict": verdict, "created_at": after(number // 2)}
        store.create(make.comparison(f"c-{number}", **own), [])
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
            assert {len(page) for page in pages[:-1]} <= {limit}, (order, limit)
        for one in ({"label": "alpha"}, {"verdict": Verdict.REGRESSION}, {"since": after(1)}):
            among = set(ids(store, **one))
            found = [id_ for page in turned(store, order, limit=2, **one) for id_ in page]
            assert found == [id_ for id_ in wanted.split() if id_ in among], (order, one)
    put(store, "c-0", verdict=Verdict.REGRESSION)
    assert turned(store, ListOrder.VERDICT)[0][:3] == ["c-5", "c-1", "c-0"], "a rank follows its verdict"


def test_what_comes_or_goes_meanwhile_shifts_no_page(store: Store) -> None:
    fill(store)
    first = store.page(ComparisonFilter(limit=4), order=ListOrder.LABEL)
    assert [one.id for one in first.entries] == ["c-3", "c-5", "s-1", "c-1"]
    store.create(make.comparison("new", label="alpha", created_at=after(9)), [])
    store.delete("c-1", entry=make.entry(), stale_after_s=1.0)
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


@pytest.mark.parametrize("order", ["", "label, ", "verdict_rank, "])
@pytest.mark.parametrize("condition", ["", *(f"WHERE {name} = 'x'" for name in ("status", "verdict", "model"))])
def test_a_list_is_read_from_an_index(sqlite_url: str, order: str, condition: str) -> None:
    """SQLite tells how it would read one: never row by row, and an order by itself never by sorting."""
    query = f"SELECT key FROM comparison {condition} ORDER BY {order}created_at DESC, key DESC LIMIT 51"
    with opened(sqlite_url) as store, store.engine.connect() as connection:
        plan = " ".join(row.detail for row in connection.execute(text(f"EXPLAIN QUERY PLAN {query}")))
    assert "INDEX" in plan
    assert "TEMP B-TREE" not in plan or (condition and order), plan


def test_a_token_comes_back_as_it_went_in_or_is_refused(store: Store) -> None:
    forever = make.token("t2", name="하나", scope=Scope.ADMIN, expires_at=None, digest=bytes(range(32)))
    for token in (make.token(), forever):
        store.add_token(token, entry=make.entry("token.create", subject=token.id))
        assert store.token(token.id) == token
    assert list(store.tokens()) == [forever, make.token()]
    assert store.token("t") is None
    assert [entry.subject for entry in store.audit().entries] == ["t2", "t1"]
    for taken in (make.token(), make.token("t3", digest=b"short")):
        with pytest.raises(StoreError, match="token"):
            store.add_token(taken, entry=make.entry())
    with pytest.raises(InvalidValue, match="'t3'"):
        store.revoke_token("t3", entry=make.entry())
    assert len(store.tokens()) == len(store.audit().entries) == 2


def test_a_token_ends_when_it_expires_or_is_revoked(store: Store) -> None:
    store.add_token(make.token(), entry=make.entry())
    token = store.token("t1")
    assert token is not None
    assert [token.is_valid(after(seconds)) for seconds in (0, 3_599, 3_600)] == [True, True, False]
    store.revoke_token("t1", entry=make.entry("token.revoke", at=after(5)))
    store.revoke_token("t1", entry=make.entry("token.revoke", at=after(7)))
    revoked = store.token("t1")
    assert revoked == make.token(revoked_at=after(5))
    assert list(store.tokens()) == [revoked]
    assert [entry.action for entry in store.audit().entries] == ["token.revoke", "comparison.create"]


def test_the_record_is_paged_newest_first(store: Store) -> None:
    for number in range(5):
        # times may stand still, or go back
        store.add_token(make.token(f"t{number}"), entry=make.entry(at=after(-(number // 2)), subject=str(number)))
    first = store.audit(limit=2)
    store.add_token(make.token("new"), entry=make.entry())
    second = store.audit(limit=2, cursor=first.next_cursor)
    third = store.audit(limit=2, cursor=second.next_cursor)
    pages = (first, second, third)
    assert [[entry.subject for entry in page.entries] for page in pages] == [["4", "3"], ["2", "1"], ["0"]]
    assert third.next_cursor is None
    with pytest.raises(InvalidValue, match="cursor"):
        store.audit(cursor=encode_cursor("items", 1))


def test_sign_offs_are_added_in_their_order(store: Store) -> None:
    for comparison_id in ("c-1", "c-2"):
        store.create(make.comparison(comparison_id), [])
    assert list(store.signoffs("c-1")) == []
    obstacles = Reason("limited-items", {"limit": 10}), Reason("unpinned-parts", {"parts": ("이미지",)})
    overridden = make.signoff(verdict=Verdict.INVALID, obstacles=obstacles, override="urgent", signed_at=after(-5))
    for signoff in (make.signoff(), overridden):
        store.sign_off(signoff, entry=make.entry("comparison.sign_off"))
    assert list(store.signoffs("c-1")) == [make.signoff(), overridden]
    assert list(store.signoffs("c-2")) == []
    assert len(store.audit().entries) == 2
    assert [store.summary(id_).is_signed_off for id_ in ("c-1", "c-2")] == [True, False]
    with pytest.raises(ComparisonNotFound):
        store.sign_off(make.signoff(comparison_id="c-3"), entry=make.entry())
    with pytest.raises(ComparisonNotFound):
        store.signoffs("c-3")
    assert len(store.audit().entries) == 2


def test_the_record_comes_back_as_it_went_in_and_of_one_subject_oldest_first(store: Store) -> None:
    east = timezone(timedelta(hours=9))
    entry = make.entry(at=after(1).astimezone(east), who="a\x00\ud800b", details={"a": '"\\\n', "b": ""})
    store.note(entry)
    (found,) = store.audit().entries
    assert found == replace(entry, who="a\ufffd\ufffdb"), "what a text can hold"
    assert found.at.tzname() == "UTC"
    for at, action, subject in ((5, "create", "a"), (3, "create", "a"), (4, "revoke", "a"), (1, "create", "b")):
        store.note(make.entry(action, at=after(at), subject=subject))
    assert [entry.at for entry in store.recorded("a", "create")] == [after(5), after(3)]
    assert store.recorded("a", "comparison.delete") == []
