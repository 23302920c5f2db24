"""Banked baselines: names for finished comparisons, which are kept as long as they are banked."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select

from qualab.errors import BankNotFound, ComparisonBanked, WrongState
from qualab.model.bank import Bank
from qualab.model.canonical import adapter, canonical_json
from qualab.model.registry import AuditEntry
from qualab.store.engine import Sessions
from qualab.store.rows import add_entry, insert_new
from qualab.store.tables import bank, comparison


class Banks(Sessions):
    """Each method is one transaction, its audit entry in it; threads may share it."""

    def add_bank(self, value: Bank, *, entry: AuditEntry) -> None:
        """Bank a comparison. Raises WrongState where the name is taken, ComparisonNotFound."""
        with self.writing_to(value.comparison_id) as (connection, key):
            row = {"name": value.name, "comparison_key": key, "banked_at": value.banked_at}
            if not insert_new(connection, bank, [row | {"body": canonical_json(value)}]):
                raise WrongState(
                    f"There is a banked baseline named {value.name} already",
                    hint=f"Choose another name, or drop that one: {_drop(value.name)}",
                    fields={"name": "is taken"},
                )
            add_entry(connection, entry)

    def bank(self, name: str) -> Bank:
        """Read a banked baseline. Raises BankNotFound where none has this name."""
        with self.reading() as connection:
            body = connection.scalar(select(bank.c.body).where(bank.c.name == name))
            if body is None:
                raise _no_bank(name)
            value: Bank = adapter(Bank).validate_json(body)
            return value

    def banks(self) -> Sequence[Bank]:
        """List banked baselines by name."""
        with self.reading() as connection:
            bodies = connection.scalars(select(bank.c.body).order_by(bank.c.name))
            return [adapter(Bank).validate_json(body) for body in bodies]

    def drop_bank(self, name: str, *, entry: AuditEntry) -> None:
        """Forget a name; the comparison stays. Raises BankNotFound where none has this name."""
        with self.writing() as connection:
            if not connection.execute(delete(bank).where(bank.c.name == name)).rowcount:
                raise _no_bank(name)
            add_entry(connection, entry)


def check_not_banked(connection: Connection, comparison_id: str) -> None:
    """Raise ComparisonBanked for a comparison that a bank names."""
    query = select(bank.c.name).join(comparison, comparison.c.key == bank.c.comparison_key)
    names = connection.scalars(query.where(comparison.c.id == comparison_id).order_by(bank.c.name)).all()
    if names:
        raise ComparisonBanked(
            f"comparison {comparison_id} holds the banked baseline {', '.join(names)}",
            hint=f"drop it first: {_drop(names[0])}",
        )


def _drop(name: str) -> str:
    return f"qualab baseline drop {name}, or DELETE /v1/baselines/{name}"


def _no_bank(name: str) -> BankNotFound:
    return BankNotFound(
        f"There is no banked baseline named '{name}'",
        hint="`qualab baseline list` shows what there is, `qualab baseline add NAME ID` banks a comparison's",
    )
