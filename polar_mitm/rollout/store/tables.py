"""The tables. Columns that lists and ticks look at are narrow; bodies stand in tables of their own.

What may never happen is an index: two live sessions of one sample, two results of one sample.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Serial = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only where the key is an INTEGER."""

tasks = Table(
    "tasks",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("task_id", Text, nullable=False, unique=True),
    Column("group_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("status_reason", Text),
    Column("stopping", Text),
    # Why no sample of it is begun any more; null while they are.
    Column("lane", Text, nullable=False),
    Column("num_samples", Integer, nullable=False),
    Column("stop_after", Integer),
    Column("max_attempts", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("policy_version", Text),
    Column("waiting_s", Double),
    Column("callback_url", Text),
    Column("callback_events", Text, nullable=False),
    Column("idempotency_key", Text, unique=True),
    Column("digest", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("open", Integer, nullable=False),
    # Samples without a result.
    Column("completed", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("timeout", Integer, nullable=False),
    Column("cancelled", Integer, nullable=False),
    Column("error", Integer, nullable=False),
    Column("usable", Integer, nullable=False),
    Column("rewarded", Integer, nullable=False),
    Column("reward_sum", Double, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
)
Index("ix_tasks_status_id", tasks.c.status, tasks.c.id)
Index("ix_tasks_group_id_id", tasks.c.group_id, tasks.c.id)

requests = Table(
    "requests",
    metadata,
    Column("task_id", Text, ForeignKey("tasks.task_id"), primary_key=True),
    Column("body", Text, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("session_id", Text, nullable=False, unique=True),
    Column("task_id", Text, ForeignKey("tasks.task_id"), nullable=False),
    Column("group_id", Text, nullable=False),
    Column("sample", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("faults", Integer, nullable=False),
    # How many sessions of the sample before this one ended as `error` or `lost`.
    Column("state", Text, nullable=False),
    # queued, live, done
    Column("gateway", Text),
    Column("incarnation", Text),
    Column("status", Text),
    Column("status_reason", Text),
    Column("ended_in", Text),
    Column("reported", Boolean, nullable=False, default=False),
    Column("counts", Boolean, nullable=False, default=False),
    Column("reward", Double),
    Column("usable", Boolean, nullable=False, default=False),
    Column("seq", BigInteger),
    Column("queued_at", Double, nullable=False),
    Column("assigned_at", Double),
    Column("finished_at", Double),
    Column("times", Text),
    # StageTimes as its gateway reported them, without those it lacks; null without a report.
    UniqueConstraint("task_id", "sample", "attempt"),
)
Index("ix_sessions_task_id_id", sessions.c.task_id, sessions.c.id)
Index("ix_sessions_gateway_id", sessions.c.gateway, sessions.c.id)
Index("ix_sessions_seq", sessions.c.seq, unique=True)
Index("ix_sessions_task_id_seq", sessions.c.task_id, sessions.c.seq)
Index("ix_sessions_group_id_seq", sessions.c.group_id, sessions.c.seq)
Index("ix_sessions_state_id", sessions.c.state, sessions.c.id)
_COUNTS = text("counts")
_OPEN = text("state <> 'done'")
Index(
    "uq_sessions_one_result",
    sessions.c.task_id,
    sessions.c.sample,
    unique=True,
    sqlite_where=_COUNTS,
    postgresql_where=_COUNTS,
)
Index(
    "uq_sessions_one_open",
    sessions.c.task_id,
    sessions.c.sample,
    unique=True,
    sqlite_where=_OPEN,
    postgresql_where=_OPEN,
)

results = Table(
    "results",
    metadata,
    Column("session_id", Text, ForeignKey("sessions.session_id"), primary_key=True),
    Column("body", Text, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("type", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("task_id", Text),
    Column("session_id", Text),
    Column("gateway", Text),
    Column("data", Text, nullable=False),
)
Index("ix_events_task_id_seq", events.c.task_id, events.c.seq)

callbacks = Table(
    "callbacks",
    metadata,
    Column("n", Serial, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("task_id", Text, ForeignKey("tasks.task_id"), nullable=False),
    Column("session_id", Text),
    Column("type", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("next_at", Double),
    Column("last_error", Text),
)
Index("ix_callbacks_state_next_at", callbacks.c.state, callbacks.c.next_at)
Index("ix_callbacks_state_n", callbacks.c.state, callbacks.c.n)
Index("ix_callbacks_task_id_n", callbacks.c.task_id, callbacks.c.n)

gateways = Table(
    "gateways",
    metadata,
    Column("name", Text, primary_key=True),
    Column("incarnation", Text, nullable=False),
    Column("registration", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("draining", Boolean, nullable=False, default=False),
    Column("registered_at", Double, nullable=False),
)
