"""Messages on the ends of comparisons: which are due, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import or_, select, update

from qualab.model.names import ComparisonStatus, WebhookState
from qualab.model.registry import Webhook
from qualab.store.engine import Sessions
from qualab.store.rows import value_of
from qualab.store.tables import comparison, webhook

ENDED = tuple(status for status in ComparisonStatus if status.has_ended and status is not ComparisonStatus.INTERRUPTED)
_C, _W = comparison.c, webhook.c
_WEBHOOKS = select(webhook, _C.id.label("comparison_id"), _C.version.label("ended_at")).join(comparison)


class Webhooks(Sessions):
    """Each method is one transaction; threads and hosts may share it."""

    def webhook(self, comparison_id: str) -> Webhook | None:
        """Read the message of a comparison; None where none was asked for."""
        with self.reading() as connection:
            row = connection.execute(_WEBHOOKS.where(_C.id == comparison_id)).one_or_none()
            return None if row is None else value_of(Webhook, row)

    def take_webhooks(self, *, now: datetime, stale_after_s: float, lease_s: float, limit: int) -> Sequence[Webhook]:
        """Take messages that are due, and that no other worker is sending; each is due again after `lease_s`.

        A comparison that ends anew, after it was resumed, has a new message.
        """
        is_new = _W.version != _C.version
        is_due = or_(is_new, (_W.state == WebhookState.WAITING) & (_W.due_at <= now))
        is_free = or_(_C.runner.is_(None), _C.heartbeat_at < now - timedelta(seconds=stale_after_s))
        query = _WEBHOOKS.where(_C.status.in_(ENDED), is_free, is_due).order_by(_C.key).limit(limit)
        with self.reading() as connection:
            rows = connection.execute(query).all()
        taken = []
        for row in rows:
            n_before = row.attempts if row.version == row.ended_at else 0
            values = {"version": row.ended_at, "state": WebhookState.WAITING, "attempts": n_before + 1}
            values |= {"last_at": now, "due_at": now + timedelta(seconds=lease_s)}
            if self._change(row.comparison_key, row.version, row.attempts, values):
                taken.append(value_of(Webhook, row, **values))
        return taken

    def settle_webhook(self, value: Webhook) -> None:
        """Note what came of a message that was taken, unless another worker has taken it since."""
        with self.reading() as connection:
            key = connection.scalar(select(_C.key).where(_C.id == value.comparison_id))
        values = {name: getattr(value, name) for name in ("state", "due_at", "result")}
        self._change(key or 0, value.version, value.attempts, values)

    def _change(self, key: int, version: int, attempts: int, values: dict[str, object]) -> bool:
        is_same = _W.comparison_key == key, _W.version == version, _W.attempts == attempts
        with self.writing() as connection:
            return bool(connection.execute(update(webhook).where(*is_same).values(values)).rowcount)
