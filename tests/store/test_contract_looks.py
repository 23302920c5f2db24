"""What every store does with looks."""

from __future__ import annotations

import pytest

from qualab.errors import StoreError
from qualab.model.names import ComparisonStatus, LookDecision
from qualab.model.plan import LookPlan, NoisePlan
from qualab.store import Store
from tests.store.samples import NOW, make_analysis, make_comparison, make_items, make_look, make_plan


@pytest.fixture(autouse=True)
def _comparison(store: Store) -> None:
    store.create(make_comparison(), make_items(3))


def test_looks_come_back_as_they_were_in_their_order(store: Store) -> None:
    assert list(store.looks("c-1")) == []
    looks = [make_look(number) for number in range(1, 11)]
    for look in looks:
        store.add_look("c-1", look, now=NOW)
    assert list(store.looks("c-1")) == looks


@pytest.mark.parametrize("number", [0, -1, 1, 3])
def test_a_look_follows_the_last_and_is_taken_once(store: Store, number: int) -> None:
    store.add_look("c-1", make_look(1), now=NOW)
    with pytest.raises(StoreError, match=f"look {number} of c-1 does not follow the 1 that were taken"):
        store.add_look("c-1", make_look(number, decision=LookDecision.CONTINUE), now=NOW)
    assert list(store.looks("c-1")) == [make_look(1)]


def test_a_plan_keeps_its_looks_and_its_noise_floor(store: Store) -> None:
    plan = make_plan(looks=LookPlan(n_looks=5, harm_alpha=1 / 30), noise_floor=NoisePlan(runs=2, concurrency=16))
    store.create(make_comparison("planned", plan=plan), [])
    assert store.get("planned").plan == plan


def test_each_comparison_has_its_own_looks(store: Store) -> None:
    store.create(make_comparison("c-2"), make_items(1))
    store.add_look("c-1", make_look(1), now=NOW)
    store.add_look("c-2", make_look(1, n_items=5), now=NOW)
    assert [look.n_items for look in store.looks("c-2")] == [5]
    assert len(store.looks("c-1")) == 1


def test_looks_outlive_every_status_and_analysis(store: Store) -> None:
    store.add_look("c-1", make_look(1), now=NOW)
    store.put_analysis(make_analysis(), now=NOW)
    store.set_status("c-1", ComparisonStatus.RUNNING, now=NOW)
    store.put_scores("c-1", [])
    assert list(store.looks("c-1")) == [make_look(1)]
