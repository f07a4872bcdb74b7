"""Why a store cannot be used. It needs no database to say so."""

from polar_mitm.errors import NotReady


class StoreUnusable(NotReady):
    """The database cannot be used at all; the message says why and what to do."""


class StoreBusy(StoreUnusable):
    """Another server uses it."""
