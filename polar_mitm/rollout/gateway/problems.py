"""What can keep a gateway from its work."""

import errno

from polar_mitm.errors import Failed, NotReady

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE})
"""Errors of a machine that has no room for a file; they pass when somebody makes room."""


class Displaced(Failed):
    """Another process has this gateway's name now: this one is to end."""


class RegistrationRefused(NotReady):
    """The server does not want this gateway, and will not want it later."""


class Unregistered(Exception):
    """The server does not know this gateway any more."""


class CannotOpen(Exception):
    """An assignment that cannot be run on this gateway; says why."""


def passing(error: BaseException) -> bool:
    """Whether it goes away when there is room again."""
    return isinstance(error, OSError) and error.errno in FULL
