"""Both kinds of database."""

from tests.rollout.databases import database_url, pg_cluster

__all__ = ["database_url", "pg_cluster"]
