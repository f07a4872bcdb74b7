"""Callbacks that are due are found in their order by one index: SQLite does not take a partial one for a parameter."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_callbacks_due", "callbacks")
    op.create_index("ix_callbacks_state_next_at", "callbacks", ["state", "next_at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_callbacks_state_next_at", "callbacks")
    op.create_index(
        "ix_callbacks_due",
        "callbacks",
        ["next_at"],
        unique=False,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
