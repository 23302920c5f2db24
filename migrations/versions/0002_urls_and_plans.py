"""The arms' URLs leave the plan, so that a plan may be used with other endpoints; analyses name their plan."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COMPARISON = sa.table(
    "comparison",
    sa.column("key", sa.Integer),
    sa.column("plan", sa.Text),
    sa.column("plan_hash", sa.Text),
    sa.column("baseline_url", sa.Text),
    sa.column("candidate_url", sa.Text),
)
ANALYSIS = sa.table("analysis", sa.column("comparison_key", sa.Integer), sa.column("plan_hash", sa.Text))
COLUMNS = (("comparison", "baseline_url"), ("comparison", "candidate_url"), ("analysis", "plan_hash"))


def upgrade() -> None:
    for table, column in COLUMNS:
        op.add_column(table, sa.Column(column, sa.Text(), nullable=False, server_default=sa.text("''")))
    connection = op.get_bind()
    for key, plan, plan_hash in connection.execute(
        sa.select(COMPARISON.c.key, COMPARISON.c.plan, COMPARISON.c.plan_hash)
    ).all():
        urls = {name: json.loads(plan).get(name, "") for name in ("baseline_url", "candidate_url")}
        connection.execute(sa.update(COMPARISON).where(COMPARISON.c.key == key).values(urls))
        # until now every analysis was under its comparison's own plan
        connection.execute(sa.update(ANALYSIS).where(ANALYSIS.c.comparison_key == key).values(plan_hash=plan_hash))


def downgrade() -> None:
    for table, column in reversed(COLUMNS):
        op.drop_column(table, column)
