"""Scored answers of the token audit: they come back as stored, and are scored once."""

from __future__ import annotations

from dataclasses import replace

from qualab.model.names import ArmName, AuditPart
from qualab.store import Store
from tests.store import samples as make


def test_scored_answers_come_back_in_order_with_their_pieces_where_asked_for(store: Store) -> None:
    store.create(make.comparison(), make.items(3))
    answers = [
        make.scored(position, arm, part, is_tokenized_again=position == 2)
        for part in (AuditPart.SAMPLED, AuditPart.GREEDY)
        for arm in ArmName
        for position in (2, 0)
    ]
    store.put_scored("c-1", answers)
    in_order = sorted(answers, key=lambda own: (own.part, own.arm, own.position))
    assert list(store.scored("c-1", with_pieces=True)) == in_order
    assert list(store.scored("c-1", positions={2})) == [replace(o, pieces=None) for o in in_order if o.position == 2]


def test_an_answer_is_scored_once_whatever_comes_later(store: Store) -> None:
    store.create(make.comparison(), make.items(1))
    unscored = make.scored(0, part=AuditPart.SAMPLED, text="The cat", scores=None, pieces=None)
    scored = make.scored(0, part=AuditPart.SAMPLED, text="The cat")
    for answer, stored in ((unscored, unscored), (scored, scored), (unscored, scored)):
        store.put_scored("c-1", [answer])
        assert list(store.scored("c-1", with_pieces=True)) == [stored]
    store.put_scored("c-1", [replace(scored, scores=b"", token_ids=b"")])
    assert list(store.scored("c-1", with_pieces=True)) == [scored]
