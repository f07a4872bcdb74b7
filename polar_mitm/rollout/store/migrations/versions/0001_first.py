"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("gateway", sa.Text(), nullable=True),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
    )
    op.create_index("ix_events_task_id_seq", "events", ["task_id", "seq"], unique=False)
    op.create_table(
        "gateways",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("incarnation", sa.Text(), nullable=False),
        sa.Column("registration", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("registered_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_gateways")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("status_reason", sa.Text(), nullable=True),
        sa.Column("stopping", sa.Text(), nullable=True),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("num_samples", sa.Integer(), nullable=False),
        sa.Column("stop_after", sa.Integer(), nullable=True),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("policy_version", sa.Text(), nullable=True),
        sa.Column("waiting_s", sa.Double(), nullable=True),
        sa.Column("callback_url", sa.Text(), nullable=True),
        sa.Column("callback_events", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("open", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("timeout", sa.Integer(), nullable=False),
        sa.Column("cancelled", sa.Integer(), nullable=False),
        sa.Column("error", sa.Integer(), nullable=False),
        sa.Column("usable", sa.Integer(), nullable=False),
        sa.Column("rewarded", sa.Integer(), nullable=False),
        sa.Column("reward_sum", sa.Double(), nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_tasks_idempotency_key")),
        sa.UniqueConstraint("task_id", name=op.f("uq_tasks_task_id")),
    )
    op.create_index("ix_tasks_group_id_id", "tasks", ["group_id", "id"], unique=False)
    op.create_index("ix_tasks_status_id", "tasks", ["status", "id"], unique=False)
    op.create_table(
        "callbacks",
        sa.Column("n", SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name=op.f("fk_callbacks_task_id")),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_callbacks")),
        sa.UniqueConstraint("id", name=op.f("uq_callbacks_id")),
    )
    op.create_index(
        "ix_callbacks_due",
        "callbacks",
        ["next_at"],
        unique=False,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index("ix_callbacks_state_n", "callbacks", ["state", "n"], unique=False)
    op.create_index("ix_callbacks_task_id_n", "callbacks", ["task_id", "n"], unique=False)
    op.create_table(
        "requests",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name=op.f("fk_requests_task_id")),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pk_requests")),
    )
    op.create_table(
        "sessions",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("sample", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("faults", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("gateway", sa.Text(), nullable=True),
        sa.Column("incarnation", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=True),
        sa.Column("status_reason", sa.Text(), nullable=True),
        sa.Column("ended_in", sa.Text(), nullable=True),
        sa.Column("reported", sa.Boolean(), nullable=False),
        sa.Column("counts", sa.Boolean(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("usable", sa.Boolean(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("queued_at", sa.Double(), nullable=False),
        sa.Column("assigned_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.task_id"], name=op.f("fk_sessions_task_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("session_id", name=op.f("uq_sessions_session_id")),
        sa.UniqueConstraint("task_id", "sample", "attempt", name=op.f("uq_sessions_task_id_sample_attempt")),
    )
    op.create_index("ix_sessions_gateway_id", "sessions", ["gateway", "id"], unique=False)
    op.create_index("ix_sessions_group_id_seq", "sessions", ["group_id", "seq"], unique=False)
    op.create_index("ix_sessions_seq", "sessions", ["seq"], unique=True)
    op.create_index("ix_sessions_state_id", "sessions", ["state", "id"], unique=False)
    op.create_index("ix_sessions_task_id_id", "sessions", ["task_id", "id"], unique=False)
    op.create_index("ix_sessions_task_id_seq", "sessions", ["task_id", "seq"], unique=False)
    op.create_index(
        "uq_sessions_one_open",
        "sessions",
        ["task_id", "sample"],
        unique=True,
        sqlite_where=sa.text("state <> 'done'"),
        postgresql_where=sa.text("state <> 'done'"),
    )
    op.create_index(
        "uq_sessions_one_result",
        "sessions",
        ["task_id", "sample"],
        unique=True,
        sqlite_where=sa.text("counts"),
        postgresql_where=sa.text("counts"),
    )
    op.create_table(
        "results",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name=op.f("fk_results_session_id")),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_results")),
    )


def downgrade() -> None:
    op.drop_table("results")
    op.drop_table("sessions")
    op.drop_table("requests")
    op.drop_table("callbacks")
    op.drop_table("tasks")
    op.drop_table("gateways")
    op.drop_table("events")
