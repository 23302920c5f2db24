"""A fourth kind of observation: where texts begin to differ, in tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

CHECK = "observation_kind_check"


def upgrade() -> None:
    allow_kinds("kind BETWEEN 0 AND 3")


def downgrade() -> None:
    op.execute("DELETE FROM observation WHERE kind > 2")
    allow_kinds("kind BETWEEN 0 AND 2")


def allow_kinds(condition: str) -> None:
    if op.get_context().dialect.name == "postgresql":
        op.drop_constraint(op.f(CHECK), "observation", type_="check")
        op.create_check_constraint(op.f(CHECK), "observation", condition)
        return
    # SQLite changes no constraint of a table that is there
    op.rename_table("observation", "observation_before")
    op.create_table(
        "observation",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("comparison_key", "number", name="observation_pk"),
        sa.ForeignKeyConstraint(["comparison_key"], ["comparison.key"], name="observation_comparison_key_fk"),
        sa.CheckConstraint("number >= 1", name=op.f("observation_number_check")),
        sa.CheckConstraint(condition, name=op.f(CHECK)),
    )
    op.execute("INSERT INTO observation SELECT comparison_key, number, kind, body FROM observation_before")
    op.drop_table("observation_before")
