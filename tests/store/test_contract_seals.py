"""Seals of stored analyses: the same chain in every store."""

from __future__ import annotations

from qualab.model.canonical import canonical_json
from qualab.model.comparison import seal_of
from qualab.store import Store
from tests.store.samples import after, make_analysis, make_comparison, make_items


def test_each_analysis_is_sealed_with_the_one_before_it_and_the_first_with_the_plan(store: Store) -> None:
    comparison = make_comparison()
    store.create(comparison, make_items(1))
    assert list(store.seals("c-1")) == []
    analyses = [make_analysis(), make_analysis(plan_hash="o" * 64), make_analysis()]
    for number, analysis in enumerate(analyses):
        store.put_analysis(analysis, now=after(number))
    seals = list(store.seals("c-1"))
    assert [one.body for one in seals] == [canonical_json(analysis) for analysis in analyses]
    assert [one.plan_hash for one in seals] == [analysis.plan_hash for analysis in analyses]
    assert [one.previous for one in seals] == [comparison.plan_hash, seals[0].seal, seals[1].seal]
    assert all(one.seal == seal_of(one.body, previous=one.previous) for one in seals)
    assert len({one.seal for one in seals}) == 3


def test_a_chain_is_of_one_comparison(store: Store) -> None:
    for name in ("a", "b"):
        store.create(make_comparison(name), make_items(1))
        store.put_analysis(make_analysis(name), now=after(1))
    assert [len(store.seals(name)) for name in ("a", "b")] == [1, 1]
    assert store.seals("b")[0].previous == store.get("b").plan_hash
