"""What every store does with tokens, with the record of who did what, and with sign-offs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from qualab.errors import ComparisonNotFound, InvalidValue, StoreError, TokenNotFound
from qualab.model.names import Verdict
from qualab.model.reason import Reason
from qualab.model.registry import Scope, encode_cursor
from qualab.store import Store
from tests.store.samples import after, make_comparison, make_entry, make_signoff, make_token


def test_a_token_comes_back_as_it_went_in(store: Store) -> None:
    forever = make_token("t2", name="하나", scope=Scope.ADMIN, expires_at=None, digest=bytes(range(32)))
    for token in (make_token(), forever):
        store.add_token(token, entry=make_entry("token.create", subject=token.id))
        assert store.token(token.id) == token
    assert list(store.tokens()) == [forever, make_token()]
    assert store.token("t") is None
    assert [entry.subject for entry in store.audit().entries] == ["t2", "t1"]


def test_a_token_ends_when_it_expires_or_is_revoked(store: Store) -> None:
    store.add_token(make_token(), entry=make_entry())
    token = store.token("t1")
    assert token is not None
    assert [token.is_valid(after(seconds)) for seconds in (0, 3_599, 3_600)] == [True, True, False]
    store.revoke_token("t1", entry=make_entry("token.revoke", at=after(5)))
    store.revoke_token("t1", entry=make_entry("token.revoke", at=after(7)))
    revoked = store.token("t1")
    assert revoked == make_token(revoked_at=after(5))
    assert list(store.tokens()) == [revoked]
    assert [entry.action for entry in store.audit().entries] == ["token.revoke", "comparison.create"]


def test_an_unknown_token_is_not_revoked(store: Store) -> None:
    with pytest.raises(TokenNotFound, match="'t1'"):
        store.revoke_token("t1", entry=make_entry())
    assert store.audit().entries == ()


@pytest.mark.parametrize("changes", [{}, {"id": "t2", "digest": b"short"}])
def test_a_token_that_cannot_be_stored_is_refused(store: Store, changes: dict[str, object]) -> None:
    store.add_token(make_token(), entry=make_entry())
    with pytest.raises(StoreError, match="token"):
        store.add_token(replace(make_token(), **changes), entry=make_entry())  # type: ignore[arg-type]
    assert len(store.tokens()) == len(store.audit().entries) == 1


def test_the_record_is_paged_newest_first(store: Store) -> None:
    for number in range(5):
        # times may stand still, or go back
        store.add_token(make_token(f"t{number}"), entry=make_entry(at=after(-(number // 2)), subject=str(number)))
    first = store.audit(limit=2)
    store.add_token(make_token("new"), entry=make_entry())
    second = store.audit(limit=2, cursor=first.next_cursor)
    third = store.audit(limit=2, cursor=second.next_cursor)
    pages = (first, second, third)
    assert [[entry.subject for entry in page.entries] for page in pages] == [["4", "3"], ["2", "1"], ["0"]]
    assert third.next_cursor is None
    with pytest.raises(InvalidValue, match="cursor"):
        store.audit(cursor=encode_cursor("items", 1))


def test_a_record_comes_back_as_it_went_in_where_text_can_be_stored(store: Store) -> None:
    east = timezone(timedelta(hours=9))
    entry = make_entry(at=after(1).astimezone(east), who="a\x00\ud800b", details={"a": '"\\\n', "b": ""})
    store.add_token(make_token(), entry=entry)
    (found,) = store.audit().entries
    assert found == replace(entry, who="a\ufffd\ufffdb")
    assert found.at.tzname() == "UTC"


def test_sign_offs_are_added_in_their_order(store: Store) -> None:
    for comparison_id in ("c-1", "c-2"):
        store.create(make_comparison(comparison_id), [])
    assert list(store.signoffs("c-1")) == []
    obstacles = Reason("limited-items", {"limit": 10}), Reason("unpinned-parts", {"parts": ("이미지",)})
    overridden = make_signoff(verdict=Verdict.INVALID, obstacles=obstacles, override="urgent", signed_at=after(-5))
    for signoff in (make_signoff(), overridden):
        store.sign_off(signoff, entry=make_entry("comparison.sign_off"))
    assert list(store.signoffs("c-1")) == [make_signoff(), overridden]
    assert list(store.signoffs("c-2")) == []
    assert len(store.audit().entries) == 2
    assert [store.summary(id_).is_signed_off for id_ in ("c-1", "c-2")] == [True, False]


def test_what_is_not_there_is_not_signed_off(store: Store) -> None:
    with pytest.raises(ComparisonNotFound):
        store.sign_off(make_signoff(), entry=make_entry())
    with pytest.raises(ComparisonNotFound):
        store.signoffs("c-1")
    assert store.audit().entries == ()


def test_the_record_of_one_action_on_one_subject_is_told_oldest_first(store: Store) -> None:
    for at, action, subject in (
        (5, "token.create", "a"),
        (3, "token.create", "a"),
        (4, "token.revoke", "a"),
        (1, "token.create", "b"),
    ):
        store.note(make_entry(action, at=after(at), subject=subject))
    assert [entry.at for entry in store.recorded("a", "token.create")] == [after(5), after(3)]
    assert store.recorded("a", "comparison.delete") == []
