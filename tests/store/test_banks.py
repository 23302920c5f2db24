"""Banked baselines in both databases."""

from __future__ import annotations

import pytest

from qualab.errors import ComparisonBanked, ComparisonNotFound, InvalidValue
from qualab.model.bank import Bank
from qualab.model.engine import Engine, EngineKind
from qualab.model.plan import BankNoise
from qualab.store import Store
from tests.store import samples as make


def bank(name: str, comparison_id: str) -> Bank:
    return Bank(
        name=name,
        comparison_id=comparison_id,
        plan_hash="p",
        model="m",
        n_runs=2,
        banked_at=make.comparison().created_at,
        engine=Engine(kind=EngineKind.VLLM, config={"a": "b"}),
        tokens="",
        pins=(),
        noise=BankNoise(n_texts=9, n_texts_differ=1, n_scores=9, n_scores_differ=0),
    )


def test_a_bank_is_read_back_and_keeps_its_comparison(store: Store) -> None:
    entry = make.entry()
    store.create(make.comparison("c-1"), make.items(2), [make.answer(1)])
    assert len(store.answered("c-1")) == 1
    for name in ("weekly", "nightly"):
        store.add_bank(bank(name, "c-1"), entry=entry)
    assert store.bank("nightly") == bank("nightly", "c-1")
    assert [own.name for own in store.banks()] == ["nightly", "weekly"]
    for wrong, error in ((bank("nightly", "c-1"), InvalidValue), (bank("other", "c-2"), ComparisonNotFound)):
        with pytest.raises(error):
            store.add_bank(wrong, entry=entry)
    with pytest.raises(ComparisonBanked, match="nightly, weekly"):
        store.delete("c-1", entry=entry, stale_after_s=60)
    for name in ("weekly", "nightly"):
        store.drop_bank(name, entry=entry)
    store.delete("c-1", entry=entry, stale_after_s=60)
    assert store.banks() == []
