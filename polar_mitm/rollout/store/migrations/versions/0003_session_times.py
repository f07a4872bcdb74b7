"""When a session came to each stage stands beside it, so that lists show it without the report's body."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("times", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("sessions", "times")
