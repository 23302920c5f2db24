"""First schema: the tables of qualab.store.tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None

UTC_TIME = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")
BYTEWISE = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def words(name: str, *values: str) -> sa.Enum:
    """Text with a CHECK that holds it to the values."""
    return sa.Enum(*values, name=name, native_enum=False, create_constraint=True, length=32)


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("at", UTC_TIME, nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("audit_pk")),
    )
    op.create_table(
        "comparison",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("plan_hash", sa.Text(), nullable=False),
        sa.Column(
            "status",
            words("status", "planned", "running", "interrupted", "stopped", "answered", "finished"),
            nullable=False,
        ),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("created_at", UTC_TIME, nullable=False),
        sa.Column("started_at", UTC_TIME),
        sa.Column("finished_at", UTC_TIME),
        sa.Column(
            "verdict",
            words(
                "verdict",
                "EQUIVALENT",
                "NON_INFERIOR",
                "REGRESSION",
                "IMPROVEMENT",
                "INCONCLUSIVE",
                "INVALID",
                "NOT_TESTED",
            ),
        ),
        sa.Column("stop_reason", sa.Text(), nullable=False),
        sa.Column("duplicates", sa.BigInteger(), nullable=False),
        sa.Column("runner", sa.Text()),
        sa.Column("claimed_at", UTC_TIME),
        sa.Column("heartbeat_at", UTC_TIME),
        sa.Column("baseline_url", sa.Text(), nullable=False),
        sa.Column("candidate_url", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("suite", sa.Text(), nullable=False),
        sa.Column("n_items", sa.Integer(), nullable=False),
        sa.Column("local", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.CheckConstraint("id <> ''", name=op.f("comparison_id_check")),
        sa.CheckConstraint(
            "(runner IS NULL) = (claimed_at IS NULL) AND (runner IS NULL) = (heartbeat_at IS NULL)",
            name=op.f("comparison_claim_check"),
        ),
        sa.CheckConstraint("duplicates >= 0", name=op.f("comparison_duplicates_check")),
        sa.PrimaryKeyConstraint("key", name=op.f("comparison_pk")),
        sa.UniqueConstraint("id", name=op.f("comparison_id_unique")),
    )
    op.create_index(op.f("comparison_created_at_key_index"), "comparison", ["created_at", "key"])
    op.create_index(op.f("comparison_label_created_at_key_index"), "comparison", ["label", "created_at", "key"])
    op.create_index(op.f("comparison_model_created_at_key_index"), "comparison", ["model", "created_at", "key"])
    op.create_index(op.f("comparison_status_created_at_key_index"), "comparison", ["status", "created_at", "key"])
    op.create_index(op.f("comparison_verdict_created_at_key_index"), "comparison", ["verdict", "created_at", "key"])
    op.create_table(
        "host_lease",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("comparison_id", sa.Text(), nullable=False),
        sa.Column("runner", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("is_exclusive", sa.Boolean(), nullable=False),
        sa.Column("heartbeat_at", UTC_TIME, nullable=False),
        sa.CheckConstraint("slots >= 1", name=op.f("host_lease_slots_check")),
        sa.PrimaryKeyConstraint("host", "comparison_id", name=op.f("host_lease_pk")),
    )
    op.create_index(op.f("host_lease_comparison_id_index"), "host_lease", ["comparison_id"])
    op.create_table(
        "submission",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("created_at", UTC_TIME, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("status", words("status", "queued", "running", "done", "failed", "cancelled"), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("is_planned", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("body_hash", sa.Text(), nullable=False),
        sa.Column("takeovers", sa.Integer(), nullable=False),
        sa.Column("answered", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint("id <> ''", name=op.f("submission_id_check")),
        sa.CheckConstraint("idempotency_key <> ''", name=op.f("submission_idempotency_key_check")),
        sa.CheckConstraint("version >= 1", name=op.f("submission_version_check")),
        sa.PrimaryKeyConstraint("key", name=op.f("submission_pk")),
        sa.UniqueConstraint("id", name=op.f("submission_id_unique")),
        sa.UniqueConstraint("idempotency_key", name=op.f("submission_idempotency_key_unique")),
    )
    op.create_index(
        op.f("submission_is_planned_created_at_key_index"), "submission", ["is_planned", "created_at", "key"]
    )
    op.create_index(op.f("submission_status_created_at_key_index"), "submission", ["status", "created_at", "key"])
    op.create_table(
        "token",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("scope", words("scope", "read", "run", "admin"), nullable=False),
        sa.Column("created_at", UTC_TIME, nullable=False),
        sa.Column("expires_at", UTC_TIME),
        sa.Column("revoked_at", UTC_TIME),
        sa.CheckConstraint("length(digest) = 32", name=op.f("token_digest_check")),
        sa.PrimaryKeyConstraint("key", name=op.f("token_pk")),
        sa.UniqueConstraint("id", name=op.f("token_id_unique")),
    )
    op.create_table(
        "worker",
        sa.Column("runner", sa.Text(), nullable=False),
        sa.Column("since", UTC_TIME, nullable=False),
        sa.Column("heartbeat_at", UTC_TIME, nullable=False),
        sa.PrimaryKeyConstraint("runner", name=op.f("worker_pk")),
    )
    op.create_table(
        "analysis",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("created_at", UTC_TIME, nullable=False),
        sa.Column(
            "verdict",
            words(
                "verdict",
                "EQUIVALENT",
                "NON_INFERIOR",
                "REGRESSION",
                "IMPROVEMENT",
                "INCONCLUSIVE",
                "INVALID",
                "NOT_TESTED",
            ),
            nullable=False,
        ),
        sa.Column("input_hash", sa.Text(), nullable=False),
        sa.Column("plan_hash", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("seal", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["comparison_key"], ["comparison.key"], name=op.f("analysis_comparison_key_fk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("analysis_pk")),
    )
    op.create_index(op.f("analysis_comparison_key_id_index"), "analysis", ["comparison_key", "id"])
    op.create_table(
        "item",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("doc_id", sa.Integer(), nullable=False),
        sa.Column("kind", words("kind", "generation", "loglikelihood"), nullable=False),
        sa.Column("n_requests", sa.Integer(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("doc", sa.Text(), nullable=False),
        sa.Column("prompts", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("position >= 0", name=op.f("item_position_check")),
        sa.ForeignKeyConstraint(
            ["comparison_key"], ["comparison.key"], name=op.f("item_comparison_key_fk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("comparison_key", "position", name=op.f("item_pk")),
        sa.UniqueConstraint("comparison_key", "task", "doc_id", name=op.f("item_comparison_key_task_doc_id_unique")),
    )
    op.create_table(
        "look",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("created_at", UTC_TIME, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.CheckConstraint("number >= 1", name=op.f("look_number_check")),
        sa.ForeignKeyConstraint(
            ["comparison_key"], ["comparison.key"], name=op.f("look_comparison_key_fk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("comparison_key", "number", name=op.f("look_pk")),
    )
    op.create_table(
        "observation",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", words("kind", "engine", "segment", "pins", "first_tokens"), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.CheckConstraint("number >= 1", name=op.f("observation_number_check")),
        sa.ForeignKeyConstraint(
            ["comparison_key"], ["comparison.key"], name=op.f("observation_comparison_key_fk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("comparison_key", "number", name=op.f("observation_pk")),
    )
    op.create_table(
        "signoff",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("plan_hash", sa.Text(), nullable=False),
        sa.Column("analysis_hash", sa.Text(), nullable=False),
        sa.Column(
            "verdict",
            words(
                "verdict",
                "EQUIVALENT",
                "NON_INFERIOR",
                "REGRESSION",
                "IMPROVEMENT",
                "INCONCLUSIVE",
                "INVALID",
                "NOT_TESTED",
            ),
            nullable=False,
        ),
        sa.Column("signed_by", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("override", sa.Text(), nullable=False),
        sa.Column("obstacles", sa.Text(), nullable=False),
        sa.Column("signed_at", UTC_TIME, nullable=False),
        sa.CheckConstraint("number >= 1", name=op.f("signoff_number_check")),
        sa.ForeignKeyConstraint(
            ["comparison_key"], ["comparison.key"], name=op.f("signoff_comparison_key_fk"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("comparison_key", "number", name=op.f("signoff_pk")),
    )
    op.create_table(
        "answer",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("choice", sa.Integer(), nullable=False),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("arm", words("arm", "baseline", "candidate"), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column(
            "status",
            words(
                "status",
                "ok",
                "truncated",
                "no_final_answer",
                "bad_body",
                "http_error",
                "timeout",
                "connection_error",
                "rejected",
            ),
            nullable=False,
        ),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("system_fingerprint", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer()),
        sa.Column("completion_tokens", sa.Integer()),
        sa.Column("reasoning_characters", sa.Integer(), nullable=False),
        sa.Column("sent_at", UTC_TIME, nullable=False),
        sa.Column("latency_s", sa.Double(), nullable=False),
        sa.Column("loglikelihood", sa.Double()),
        sa.Column("is_greedy", sa.Boolean()),
        sa.Column("draft_tokens", sa.Integer()),
        sa.Column("accepted_tokens", sa.Integer()),
        sa.Column("rounds", sa.Text()),
        sa.Column("request_hash", sa.LargeBinary(), nullable=False),
        sa.Column("text", sa.Text()),
        sa.Column("reasoning", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.CheckConstraint("run = 0 OR (run > 0 AND arm = 'baseline')", name=op.f("answer_run_check")),
        sa.CheckConstraint("attempts >= 1", name=op.f("answer_attempts_check")),
        sa.CheckConstraint("choice >= 0", name=op.f("answer_choice_check")),
        sa.CheckConstraint("latency_s >= 0", name=op.f("answer_latency_s_check")),
        sa.CheckConstraint("length(request_hash) = 16", name=op.f("answer_request_hash_check")),
        sa.CheckConstraint("repeat >= 0", name=op.f("answer_repeat_check")),
        sa.ForeignKeyConstraint(
            ["comparison_key", "position"],
            ["item.comparison_key", "item.position"],
            name=op.f("answer_comparison_key_position_fk"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("comparison_key", "position", "choice", "repeat", "arm", "run", name=op.f("answer_pk")),
    )
    op.create_table(
        "outcome",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("doc_id", sa.Integer(), nullable=False),
        sa.Column("kind", words("kind", "generation", "loglikelihood"), nullable=False),
        sa.Column("change", words("change", "same", "gain", "loss", "unknown"), nullable=False),
        sa.Column("baseline", sa.Double()),
        sa.Column("candidate", sa.Double()),
        sa.Column("different_text", sa.Boolean(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "(change = 'unknown') = (baseline IS NULL OR candidate IS NULL)", name=op.f("outcome_values_check")
        ),
        sa.CheckConstraint("length >= 0", name=op.f("outcome_length_check")),
        sa.CheckConstraint("repeat >= 0", name=op.f("outcome_repeat_check")),
        sa.ForeignKeyConstraint(
            ["comparison_key", "position"],
            ["item.comparison_key", "item.position"],
            name=op.f("outcome_comparison_key_position_fk"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("comparison_key", "position", "repeat", name=op.f("outcome_pk")),
    )
    op.create_index(
        op.f("outcome_comparison_key_change_position_repeat_index"),
        "outcome",
        ["comparison_key", "change", "position", "repeat"],
    )
    op.create_table(
        "score",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("metric", BYTEWISE, nullable=False),
        sa.Column("arm", words("arm", "baseline", "candidate"), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("detail", sa.Text()),
        sa.CheckConstraint("repeat >= 0", name=op.f("score_repeat_check")),
        sa.ForeignKeyConstraint(
            ["comparison_key", "position"],
            ["item.comparison_key", "item.position"],
            name=op.f("score_comparison_key_position_fk"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("comparison_key", "position", "repeat", "metric", "arm", name=op.f("score_pk")),
    )
