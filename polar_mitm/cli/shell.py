"""What every command shares: the console, `--json`, and the one place where an error becomes an exit code."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import orjson
import typer
from rich.console import Console

from polar_mitm.errors import BadInput, Explained, Failed, NotReady
from polar_mitm.json_text import dumps, loads
from polar_mitm.proxy.lines import printable

FAILED = 1
"""The work failed. An evaluator's 0.0 is not a failure."""
BAD_USAGE = 2
NOT_READY = 3
"""The environment is not ready; the message or `polar doctor` says why."""
INTERRUPTED = 128 + signal.SIGINT

EXIT_CODES: dict[type[Explained], int] = {BadInput: BAD_USAGE, Failed: FAILED, NotReady: NOT_READY}

EXTRA = "`make setup` in polar's folder brings it, and so does `pip install '.[rollout]'` there"
"""Where the packages of the rollout service come from."""

out = Console()
err = Console(stderr=True)

TokensFlag = Annotated[
    Literal["exact", "chat"] | None,
    typer.Option(
        "--tokens",
        help="How prompts go to the engine: as token ids built from what it sampled, or as messages. "
        "[default: exact, where the engine offers it]",
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def one_of[T: (str, list[str])](names: Iterable[str]) -> Callable[[T], T]:
    """A typer callback that refuses a name, or a list with a name, that is not one of these."""
    known = list(names)

    def check(value: T) -> T:
        for name in [value] if isinstance(value, str) else value:
            if name not in known:
                raise typer.BadParameter(f"{name!r} is not one of {', '.join(known)}")
        return value

    return check


def tell(console: Console, text: str, *, style: str | None = None) -> None:
    """Print the text as it is, on lines as long as they are. What would steer the terminal becomes visible instead."""
    console.print(printable(text), style=style, highlight=False, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output, indented. What UTF-8 cannot hold, half of a surrogate pair, is escaped."""
    try:
        text = dumps(value, indent=True).decode()
    except (TypeError, ValueError):  # a long integer beside a fragment; half of a surrogate pair
        text = json.dumps(value, indent=2, allow_nan=False, default=_spelled_out)
    sys.stdout.write(text + "\n")


def _spelled_out(value: object) -> Any:
    if isinstance(value, orjson.Fragment):
        return loads(orjson.dumps(value))
    raise TypeError(f"{type(value).__name__} is no value of JSON's")


INTERRUPTED_WORDS = "interrupted; everything started here was ended"


@contextmanager
def exit_codes(interrupted: str = INTERRUPTED_WORDS) -> Iterator[None]:
    """Turn a known error, and one about a file, into a message on standard error and an exit code; an unknown one keeps
    its traceback."""
    try:
        yield
    except Explained as error:
        tell(err, f"polar: {error}", style="red")
        raise typer.Exit(next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))) from error
    except OSError as error:
        if error.filename is None:  # not about a file that was named
            raise
        tell(err, f"polar: {os.fsdecode(error.filename)}: {error.strerror}", style="red")
        raise typer.Exit(FAILED) from error
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        err.print(f"polar: {interrupted}", style="yellow")
        raise typer.Exit(INTERRUPTED) from error


def run_async[T](work: Callable[[], Coroutine[Any, Any, T]], *, interrupted: str = INTERRUPTED_WORDS) -> T:
    """Run to the end. Ctrl-C, SIGTERM and SIGHUP end it, once: a second one would cut short the ending of what runs.

    `interrupted` is what is said then.
    """

    async def main() -> T:
        task = asyncio.current_task()
        assert task

        def end() -> None:
            if not task.cancelling():
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, end)
        return await work()

    with exit_codes(interrupted):
        return asyncio.run(main())


class Steps:
    """Says what is being done: a status line on a terminal, plain lines elsewhere, nothing when quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live = err.is_terminal and not quiet
        self._status = err.status("") if self.live else None
        self._phase = ""

    def __enter__(self) -> "Steps":
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status:
            self._status.stop()

    def say(self, text: str) -> None:
        """One thing done or begun."""
        if not self.quiet:
            tell(err, text)

    def progress(self, seconds: float, phase: str) -> None:
        """Where something long is; a line for each new phase where there is no terminal."""
        if self._status:
            self._status.update(f"{phase} ({seconds:.0f} s)")
        elif phase != self._phase and not self.quiet:
            self.say(f"  {phase} ({seconds:.0f} s)")
        self._phase = phase


def default_engine_url() -> str | None:
    """The first of them."""
    return next(iter(default_engine_urls()), None)


def default_engine_urls() -> list[str]:
    """Of $POLAR_ENGINE_URL, which may name several, by commas."""
    return [url.strip() for url in os.environ.get("POLAR_ENGINE_URL", "").split(",") if url.strip()]
