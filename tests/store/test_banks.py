"""Banked baselines in both databases."""

from __future__ import annotations

import pytest

from qualab.errors import ComparisonBanked, ComparisonNotFound, WrongState
from qualab.store import Store
from tests.store import samples as make


def test_a_bank_is_read_back_and_keeps_its_comparison(store: Store) -> None:
    entry = make.entry()
    store.create(make.comparison("c-1"), make.items(2), [make.answer(1)])
    assert len(store.answered("c-1")) == 1
    for name in ("weekly", "nightly"):
        store.add_bank(make.bank(name), entry=entry)
    assert store.bank("nightly") == make.bank()
    assert [own.name for own in store.banks()] == ["nightly", "weekly"]
    for wrong, error in ((make.bank(), WrongState), (make.bank("other", "c-2"), ComparisonNotFound)):
        with pytest.raises(error):
            store.add_bank(wrong, entry=entry)
    with pytest.raises(ComparisonBanked, match="nightly, weekly"):
        store.delete("c-1", entry=entry, stale_after_s=60)
    for name in ("weekly", "nightly"):
        store.drop_bank(name, entry=entry)
    store.delete("c-1", entry=entry, stale_after_s=60)
    assert store.banks() == []
