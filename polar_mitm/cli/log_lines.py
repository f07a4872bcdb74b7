"""The log of a command that serves: a line a record, as long as it is, so that a path in it can be copied."""

import logging
import time
from typing import Final

from polar_mitm.cli.shell import err, tell

STYLES: Final = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}


class LogLines(logging.Handler):
    """On standard error: the time, the level where it is no mere information, the message."""

    def emit(self, record: logging.LogRecord) -> None:
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        try:
            tell(err, f"{when}  {level}{self.format(record)}", style=STYLES.get(record.levelno))
        except Exception:
            self.handleError(record)


def show_log(handler: logging.Handler | None = None, *, quiet: tuple[str, ...] = ()) -> None:
    """From here on this program's log is on standard error. Of the `quiet` loggers only warnings are."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler or LogLines()])
    for name in quiet:
        logging.getLogger(name).setLevel(logging.WARNING)
