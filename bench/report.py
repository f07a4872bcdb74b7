"""Where a measurement's tables go: the terminal, and a section of docs/benchmarks.md."""

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
OPENING = "# Benchmarks\n\nEach section is written by the command that it names.\n"


def machine() -> str:
    """The processor's model and the Python version, which is all that a reader needs to compare."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = (line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line)
        model = next(named, model)
    return f"{model}, Python {platform.python_version()}"


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def write_section(title: str, text: str) -> None:
    """Put the section in the place of the one with this title, or at the end of the page."""
    page = PAGE.read_text() if PAGE.exists() else OPENING
    before, _, rest = page.partition(f"\n## {title}\n")
    _, following, after = rest.partition("\n## ")
    PAGE.write_text(f"{before}\n## {title}\n\n{text.strip()}\n{following}{after}")
