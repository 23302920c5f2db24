"""What every registry does with tokens, with the record of who did what, and with sign-offs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from qualab.errors import ComparisonNotFound, InvalidValue, StoreError, TokenNotFound
from qualab.model.names import Verdict
from qualab.model.reason import Reason
from qualab.model.registry import Scope, encode_cursor
from qualab.store import Store
from qualab.store.registry import Registry
from tests.store.samples import after, make_comparison, make_entry, make_signoff, make_token


def test_a_token_comes_back_as_it_went_in(registry: Registry) -> None:
    forever = make_token("t2", name="하나", scope=Scope.ADMIN, expires_at=None, digest=bytes(range(32)))
    for token in (make_token(), forever):
        registry.add_token(token, entry=make_entry("token.create", subject=token.id))
        assert registry.token(token.id) == token
    assert list(registry.tokens()) == [forever, make_token()]
    assert registry.token("t") is None
    assert [entry.subject for entry in registry.audit().entries] == ["t2", "t1"]


def test_a_token_ends_when_it_expires_or_is_revoked(registry: Registry) -> None:
    registry.add_token(make_token(), entry=make_entry())
    token = registry.token("t1")
    assert token is not None
    assert [token.is_valid(after(seconds)) for seconds in (0, 3_599, 3_600)] == [True, True, False]
    registry.revoke_token("t1", entry=make_entry("token.revoke", at=after(5)))
    registry.revoke_token("t1", entry=make_entry("token.revoke", at=after(7)))
    revoked = registry.token("t1")
    assert revoked == make_token(revoked_at=after(5))
    assert list(registry.tokens()) == [revoked]
    assert [entry.action for entry in registry.audit().entries] == ["token.revoke", "comparison.create"]


def test_an_unknown_token_is_not_revoked(registry: Registry) -> None:
    with pytest.raises(TokenNotFound, match="'t1'"):
        registry.revoke_token("t1", entry=make_entry())
    assert registry.audit().entries == ()


@pytest.mark.parametrize("changes", [{}, {"id": "t2", "digest": b"short"}])
def test_a_token_that_cannot_be_stored_is_refused(registry: Registry, changes: dict[str, object]) -> None:
    registry.add_token(make_token(), entry=make_entry())
    with pytest.raises(StoreError, match="token"):
        registry.add_token(replace(make_token(), **changes), entry=make_entry())  # type: ignore[arg-type]
    assert len(registry.tokens()) == len(registry.audit().entries) == 1


def test_the_record_is_paged_newest_first(registry: Registry) -> None:
    for number in range(5):
        # times may stand still, or go back
        registry.add_token(make_token(f"t{number}"), entry=make_entry(at=after(-(number // 2)), subject=str(number)))
    first = registry.audit(limit=2)
    registry.add_token(make_token("new"), entry=make_entry())
    second = registry.audit(limit=2, cursor=first.next_cursor)
    third = registry.audit(limit=2, cursor=second.next_cursor)
    pages = (first, second, third)
    assert [[entry.subject for entry in page.entries] for page in pages] == [["4", "3"], ["2", "1"], ["0"]]
    assert third.next_cursor is None
    with pytest.raises(InvalidValue, match="cursor"):
        registry.audit(cursor=encode_cursor("items", 1))


def test_a_record_comes_back_as_it_went_in_where_text_can_be_stored(registry: Registry) -> None:
    east = timezone(timedelta(hours=9))
    entry = make_entry(at=after(1).astimezone(east), who="a\x00\ud800b", details={"a": '"\\\n', "b": ""})
    registry.add_token(make_token(), entry=entry)
    (found,) = registry.audit().entries
    assert found == replace(entry, who="a\ufffd\ufffdb")
    assert found.at.tzname() == "UTC"


def test_sign_offs_are_added_in_their_order(store: Store, registry: Registry) -> None:
    for comparison_id in ("c-1", "c-2"):
        store.create(make_comparison(comparison_id), [])
    assert list(registry.signoffs("c-1")) == []
    obstacles = Reason("limited-items", {"limit": 10}), Reason("unpinned-parts", {"parts": ("이미지",)})
    overridden = make_signoff(verdict=Verdict.INVALID, obstacles=obstacles, override="urgent", signed_at=after(-5))
    for signoff in (make_signoff(), overridden):
        registry.sign_off(signoff, entry=make_entry("comparison.sign_off"))
    assert list(registry.signoffs("c-1")) == [make_signoff(), overridden]
    assert list(registry.signoffs("c-2")) == []
    assert len(registry.audit().entries) == 2
    assert [registry.summary(id_).is_signed_off for id_ in ("c-1", "c-2")] == [True, False]


def test_what_is_not_there_is_not_signed_off(registry: Registry) -> None:
    with pytest.raises(ComparisonNotFound):
        registry.sign_off(make_signoff(), entry=make_entry())
    with pytest.raises(ComparisonNotFound):
        registry.signoffs("c-1")
    assert registry.audit().entries == ()


def test_an_entry_is_noted_by_itself(registry: Registry) -> None:
    registry.note(make_entry("comparison.analyse"))
    assert registry.audit().entries == (make_entry("comparison.analyse"),)


def test_the_record_of_one_action_on_one_subject_is_told_oldest_first(registry: Registry) -> None:
    for at, action, subject in (
        (5, "token.create", "a"),
        (3, "token.create", "a"),
        (4, "token.revoke", "a"),
        (1, "token.create", "b"),
    ):
        registry.note(make_entry(action, at=after(at), subject=subject))
    assert [entry.at for entry in registry.recorded("a", "token.create")] == [after(5), after(3)]
    assert registry.recorded("a", "comparison.delete") == []
