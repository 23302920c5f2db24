"""What every registry does with the list of comparisons and submissions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qualab.errors import ComparisonNotFound, InvalidValue
from qualab.model.names import ComparisonStatus, LookDecision, Verdict
from qualab.model.ports import ComparisonFilter, Registry, Store
from qualab.model.registry import ORDERS, ComparisonSummary, ListOrder, SubmissionStatus, encode_cursor
from tests.store.samples import (
    NOW,
    after,
    make_analysis,
    make_comparison,
    make_entry,
    make_look,
    make_plan,
    make_signoff,
    make_submission,
)

EVERYTHING = ComparisonFilter()


def submit(registry: Registry, comparison_id: str, **changes: Any) -> None:
    registry.submit(make_submission(comparison_id, **changes), entry=make_entry(subject=comparison_id))


def ids(registry: Registry, **wanted: Any) -> list[str]:
    return [one.id for one in registry.page(ComparisonFilter(**wanted)).entries]


def turned(registry: Registry, wanted: ComparisonFilter) -> list[list[str]]:
    """The ids of every page, by following cursors."""
    pages, cursor = [], None
    while True:
        page = registry.page(wanted, cursor=cursor)
        pages.append([one.id for one in page.entries])
        if page.next_cursor is None:
            return pages
        cursor = page.next_cursor


def test_a_comparison_is_summed_up(store: Store, registry: Registry) -> None:
    plan = make_plan()
    plan = replace(plan, tasks=(plan.tasks[0], replace(plan.tasks[0], name="other", n_items=40)))
    comparison = make_comparison("c-1", plan=plan, label="밤", stop_reason="full", started_at=after(1))
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
        stop_reason="full",
        is_signed_off=False,
    )
    assert registry.summary("c-1") == wanted
    assert registry.page(EVERYTHING).entries == (wanted,)


def test_a_run_that_a_look_ended_tells_how_many_items_were_asked(store: Store, registry: Registry) -> None:
    store.create(make_comparison(), [])
    store.add_look("c-1", make_look(1, n_items=1, decision=LookDecision.CONTINUE), now=NOW)
    assert registry.summary("c-1").n_items_asked is None
    store.add_look("c-1", make_look(2, n_items=2), now=NOW)
    found = registry.summary("c-1")
    assert (found.n_items, found.n_items_asked) == (3, 2)
    assert registry.page(EVERYTHING).entries == (found,)
    store.add_look("c-1", make_look(3, n_items=3), now=NOW)
    assert registry.summary("c-1").n_items_asked is None


def test_a_summary_follows_its_comparison(store: Store, registry: Registry) -> None:
    store.create(make_comparison(), [])
    store.put_analysis(make_analysis(verdict=Verdict.REGRESSION), now=after(9))
    registry.sign_off(make_signoff(), entry=make_entry())
    found = registry.summary("c-1")
    assert (found.status, found.verdict, found.finished_at) == (
        ComparisonStatus.FINISHED,
        Verdict.REGRESSION,
        after(9),
    )
    assert found.is_signed_off
    assert registry.page(EVERYTHING).entries == (found,)


def test_a_submission_is_summed_up_until_there_is_a_comparison(store: Store, registry: Registry) -> None:
    submit(registry, "c-1", label="asked", model="m")
    assert registry.summary("c-1") == ComparisonSummary(
        id="c-1",
        status=SubmissionStatus.QUEUED,
        verdict=None,
        label="asked",
        model="m",
        suite="",
        plan_hash="",
        n_items=0,
        created_at=NOW,
        started_at=None,
        finished_at=None,
        stop_reason="",
        is_signed_off=False,
    )
    assert registry.page(EVERYTHING).entries == (registry.summary("c-1"),)
    store.create(make_comparison("c-1", label="made"), [])
    assert registry.summary("c-1").label == "made"
    assert registry.page(EVERYTHING).entries == (registry.summary("c-1"),)


def test_a_submission_that_could_not_run_says_why(registry: Registry) -> None:
    submit(registry, "c-1")
    registry.set_submission("c-1", SubmissionStatus.FAILED, error={"code": "usage", "message": "no such task"})
    assert registry.summary("c-1").stop_reason == "no such task"


def test_a_summary_is_read_with_its_submission(store: Store, registry: Registry) -> None:
    submit(registry, "s-1")
    assert registry.about("s-1") == (registry.summary("s-1"), registry.submission("s-1"))
    store.create(make_comparison("c-1"), [])
    assert registry.about("c-1") == (registry.summary("c-1"), None)
    assert registry.abouts(["c-1", "s-1", "nothing", "c-1"]) == {one: registry.about(one) for one in ("c-1", "s-1")}
    assert registry.abouts([]) == {}
    with pytest.raises(ComparisonNotFound):
        registry.about("s")


def test_an_unknown_id_has_no_summary(store: Store, registry: Registry) -> None:
    store.create(make_comparison("c-10"), [])
    with pytest.raises(ComparisonNotFound, match="'c-1'"):
        registry.summary("c-1")


def test_newest_first_whatever_they_are(store: Store, registry: Registry) -> None:
    store.create(make_comparison("b", created_at=after(2)), [])
    submit(registry, "a", created_at=after(3))
    store.create(make_comparison("d", created_at=after(0)), [])
    submit(registry, "c", created_at=after(1))
    assert ids(registry) == ["a", "b", "c", "d"]
    assert [one.id for one in store.list(EVERYTHING)] == ["b", "d"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 8])
def test_pages_hold_everything_once_though_times_are_the_same(store: Store, registry: Registry, limit: int) -> None:
    for number in range(4):
        store.create(make_comparison(f"c-{number}", created_at=after(number // 2)), [])
        submit(registry, f"s-{number}", created_at=after(number // 2))
    pages = turned(registry, ComparisonFilter(limit=limit))
    assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)
    assert [id_ for page in pages for id_ in page] == ["s-3", "s-2", "c-3", "c-2", "s-1", "s-0", "c-1", "c-0"]


def test_what_comes_meanwhile_shifts_no_page(store: Store, registry: Registry) -> None:
    for number in range(4):
        store.create(make_comparison(f"c-{number}", created_at=after(number)), [])
    first = registry.page(ComparisonFilter(limit=2))
    store.create(make_comparison("new", created_at=after(9)), [])
    second = registry.page(ComparisonFilter(limit=2), cursor=first.next_cursor)
    assert [one.id for one in second.entries] == ["c-1", "c-0"]
    assert second.next_cursor is None


def test_filters_hold_together_and_alone(store: Store, registry: Registry) -> None:
    other = make_plan()
    other = replace(other, sampling=replace(other.sampling, model="other"))
    finished = ComparisonStatus.FINISHED
    store.create(make_comparison("a", label="x", status=finished, verdict=Verdict.INVALID), [])
    store.create(make_comparison("b", label="y", plan=other, created_at=after(10)), [])
    store.create(make_comparison("c", label="x", plan=other, status=ComparisonStatus.RUNNING, created_at=after(20)), [])
    submit(registry, "d", label="x", model="other", created_at=after(30))
    filters: list[tuple[dict[str, Any], list[str]]] = [
        ({"label": "x"}, ["d", "c", "a"]),
        ({"label": ""}, []),
        ({"model": "other"}, ["d", "c", "b"]),
        ({"verdict": Verdict.INVALID}, ["a"]),
        ({"verdict": Verdict.REGRESSION}, []),
        ({"status": finished}, ["a"]),
        ({"status": SubmissionStatus.QUEUED}, ["d"]),
        ({"status": ComparisonStatus.STOPPED}, []),
        ({"since": after(10)}, ["d", "c", "b"]),
        ({"until": after(20)}, ["b", "a"]),
        ({"since": after(10), "until": after(20)}, ["b"]),
        ({"label": "x", "model": "other"}, ["d", "c"]),
        ({"label": "x", "model": "other", "status": ComparisonStatus.RUNNING, "since": after(20)}, ["c"]),
        ({"label": "x", "limit": 2}, ["d", "c"]),
    ]
    for wanted, found in filters:
        assert ids(registry, **wanted) == found, wanted
        listed = [one.id for one in store.list(ComparisonFilter(**wanted))]
        assert listed == [id_ for id_ in found if id_ != "d"] or wanted.get("limit"), wanted


def test_running_is_a_word_of_both(store: Store, registry: Registry) -> None:
    store.create(make_comparison("c", status=ComparisonStatus.RUNNING), [])
    submit(registry, "s", status=SubmissionStatus.RUNNING)
    for status in (ComparisonStatus.RUNNING, SubmissionStatus.RUNNING):
        assert ids(registry, status=status) == ["s", "c"]
        assert [one.id for one in store.list(ComparisonFilter(status=status))] == ["c"]


def test_filters_find_texts_as_they_were_stored(store: Store, registry: Registry) -> None:
    store.create(make_comparison("c", label="a\x00b\ud800c"), [])
    submit(registry, "s", label="a\x00b\ud800c", model="m\x00", created_at=after(1))
    assert ids(registry, label="a\x00b\ud800c") == ["s", "c"]
    assert ids(registry, model="m\x00") == ["s"]


def test_pages_of_a_filter_hold_what_it_finds(store: Store, registry: Registry) -> None:
    for number in range(9):
        store.create(make_comparison(f"c-{number}", label="odd" if number % 2 else "", created_at=after(number)), [])
    assert turned(registry, ComparisonFilter(label="odd", limit=3)) == [["c-7", "c-5", "c-3"], ["c-1"]]
    assert turned(registry, ComparisonFilter(label="none", limit=3)) == [[]]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "!",
        "c",
        "ünï",
        "a" * 999,
        encode_cursor("comparisons", 1, 2),
        encode_cursor("comparisons", 1, 2, 2**63),
        encode_cursor("items", 1, 2, 3),
    ],
)
def test_a_cursor_of_no_page_is_refused(registry: Registry, cursor: str) -> None:
    with pytest.raises(InvalidValue, match="cursor"):
        registry.page(EVERYTHING, cursor=cursor)


def test_a_page_holds_at_least_one(store: Store, registry: Registry) -> None:
    store.create(make_comparison(), [])
    assert ids(registry, limit=0) == ["c-1"]


def test_comparisons_and_submissions_are_counted_by_status(store: Store, registry: Registry) -> None:
    assert registry.counts() == {}
    for comparison_id, status in {"a": "running", "b": "finished", "c": "running"}.items():
        store.create(make_comparison(comparison_id, status=ComparisonStatus(status)), [])
    submit(registry, "d", status=SubmissionStatus.RUNNING)
    submit(registry, "e")
    submit(registry, "f", status=SubmissionStatus.DONE)
    store.create(make_comparison("f"), [])
    assert registry.counts() == {"running": 3, "finished": 1, "queued": 1, "planned": 1}


def fill(store: Store, registry: Registry) -> None:
    """Ten lines, two of most values, made at five moments."""
    other = make_plan()
    other = replace(other, sampling=replace(other.sampling, model="a-model"))
    rows: list[tuple[str, str, Any, ComparisonStatus, Verdict | None]] = [
        ("c-0", "beta", make_plan(), ComparisonStatus.FINISHED, Verdict.EQUIVALENT),
        ("c-1", "alpha", other, ComparisonStatus.FINISHED, Verdict.REGRESSION),
        ("c-2", "beta", other, ComparisonStatus.RUNNING, None),
        ("c-3", "", make_plan(), ComparisonStatus.FINISHED, Verdict.INVALID),
        ("c-4", "gamma", make_plan(), ComparisonStatus.STOPPED, None),
        ("c-5", "alpha", make_plan(), ComparisonStatus.FINISHED, Verdict.REGRESSION),
    ]
    for number, (name, label, plan, status, verdict) in enumerate(rows):
        made = make_comparison(
            name, label=label, plan=plan, status=status, verdict=verdict, created_at=after(number // 2)
        )
        store.create(made, [])
    for number, (label, submitted) in enumerate(
        [("beta", SubmissionStatus.QUEUED), ("alpha", SubmissionStatus.FAILED), ("delta", SubmissionStatus.RUNNING)]
    ):
        submit(registry, f"s-{number}", label=label, model="a-model", status=submitted, created_at=after(number))


ORDERED = {
    "-created": "s-2 c-5 c-4 s-1 c-3 c-2 s-0 c-1 c-0",
    "created": "c-0 c-1 s-0 c-2 c-3 s-1 c-4 c-5 s-2",
    "label": "c-3 c-5 s-1 c-1 c-2 s-0 c-0 s-2 c-4",
    "-label": "c-4 s-2 c-2 s-0 c-0 c-5 s-1 c-1 c-3",
    "model": "s-2 s-1 c-2 s-0 c-1 c-5 c-4 c-3 c-0",
    "-model": "c-5 c-4 c-3 c-0 s-2 s-1 c-2 s-0 c-1",
    "status": "s-2 c-2 s-0 s-1 c-4 c-5 c-3 c-1 c-0",
    "-status": "c-5 c-3 c-1 c-0 c-4 s-1 s-0 s-2 c-2",
    "verdict": "c-5 c-1 c-3 c-0 s-2 c-4 s-1 c-2 s-0",
    "-verdict": "s-2 c-4 s-1 c-2 s-0 c-0 c-3 c-5 c-1",
}


def sorted_pages(registry: Registry, order: ListOrder, **wanted: Any) -> list[list[str]]:
    pages, cursor = [], None
    while True:
        page = registry.page(ComparisonFilter(**wanted), order=order, cursor=cursor)
        pages.append([one.id for one in page.entries])
        if page.next_cursor is None:
            return pages
        cursor = page.next_cursor


def test_every_order_goes_over_all_pages(store: Store, registry: Registry) -> None:
    """What is equal stands newest first, submissions before comparisons of the same moment."""
    assert ORDERED.keys() == ORDERS.keys()
    fill(store, registry)
    for name, wanted in ORDERED.items():
        for limit in (1, 2, 4, 9, 20):
            pages = sorted_pages(registry, ORDERS[name], limit=limit)
            assert " ".join(id_ for page in pages for id_ in page) == wanted, (name, limit)
            assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1), (name, limit)


def test_orders_and_filters_hold_together(store: Store, registry: Registry) -> None:
    fill(store, registry)
    for wanted in ({"label": "alpha"}, {"model": "a-model"}, {"verdict": Verdict.REGRESSION}, {"since": after(1)}):
        among = set(ids(registry, **wanted))
        for name, all_of_them in ORDERED.items():
            pages = sorted_pages(registry, ORDERS[name], limit=2, **wanted)
            assert [id_ for page in pages for id_ in page] == [one for one in all_of_them.split() if one in among]


def test_what_comes_or_goes_meanwhile_shifts_no_page_of_an_order(store: Store, registry: Registry) -> None:
    fill(store, registry)
    first = registry.page(ComparisonFilter(limit=4), order=ORDERS["label"])
    assert [one.id for one in first.entries] == ["c-3", "c-5", "s-1", "c-1"]
    store.create(make_comparison("new", label="alpha", created_at=after(9)), [])
    registry.delete("c-1", entry=make_entry(), stale_after_s=1.0)
    second = registry.page(ComparisonFilter(limit=9), order=ORDERS["label"], cursor=first.next_cursor)
    assert [one.id for one in second.entries] == ["c-2", "s-0", "c-0", "s-2", "c-4"]


def test_a_cursor_of_another_order_is_refused(store: Store, registry: Registry) -> None:
    fill(store, registry)
    cursors = {
        name: registry.page(ComparisonFilter(limit=1), order=order).next_cursor for name, order in ORDERS.items()
    }
    for name, order in ORDERS.items():
        for other, cursor in cursors.items():
            if other != name:
                with pytest.raises(InvalidValue, match="cursor"):
                    registry.page(EVERYTHING, order=order, cursor=cursor)
        for broken in ("", "!", ".", f"{cursors['label']}!", f"{cursors['label']}AP8", encode_cursor("x", 1, 2, 3)):
            with pytest.raises(InvalidValue, match="cursor"):
                registry.page(EVERYTHING, order=order, cursor=broken)


def test_texts_of_any_kind_are_turned_over(store: Store, registry: Registry) -> None:
    labels = ["", "a,b", "a.b", "밤 1", "'; --", "%", "x" * 300, "밤 2", "é"]
    for number, label in enumerate(labels):
        store.create(make_comparison(f"c-{number}", label=label, created_at=after(number)), [])
    for name in ("label", "-label"):
        found = [id_ for page in sorted_pages(registry, ORDERS[name], limit=1) for id_ in page]
        assert sorted(found) == sorted(f"c-{number}" for number in range(len(labels))), name
