"""One running mitmproxy per context, so that several can live in one process.

mitmproxy keeps its running master in module globals, and hands every new connection to whichever master was made last.
Here those globals become context variables: a proxy's tasks, and the connections its ports accept, inherit its own.
"""

from contextvars import ContextVar
from types import ModuleType
from typing import Any

from mitmproxy import ctx


def _local(name: str) -> property:
    variable: ContextVar[Any] = ContextVar(f"mitmproxy.ctx.{name}")

    def read(module: ModuleType) -> Any:
        try:
            return variable.get()
        except LookupError:
            raise AttributeError(f"no mitmproxy runs in this context: ctx.{name} is not set") from None

    def write(module: ModuleType, value: Any) -> None:
        variable.set(value)

    return property(read, write)


class _ContextLocal(ModuleType):
    master = _local("master")
    options = _local("options")
    log = _local("log")


def keep_masters_apart() -> None:
    """From here on a master is seen only in the context it was made in. Safe to call twice."""
    ctx.__class__ = _ContextLocal
