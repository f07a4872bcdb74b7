"""The kinds of errors that a person can do something about: each is a message and an exit code, never a traceback."""


class Explained(Exception):
    """Its text says what is wrong, and the mend where there is one."""


class BadInput(Explained):
    """What was given cannot be used as it is."""


class NotReady(Explained):
    """Something that the work needs is missing or does not answer."""


class Failed(Explained):
    """The work was begun and did not come to its end."""
