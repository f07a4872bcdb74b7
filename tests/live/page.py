"""docs/harnesses.md: its tables between marks, and what the harness modules say of themselves.

A table of measurements is merged row by row, so that a run of some rows leaves the others as they are. Run as a
program, it writes what the modules say.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from polar_mitm.harnesses import HARNESSES

DOCS = Path(__file__).parents[2] / "docs" / "harnesses.md"

LONGEST = 400
"""Characters of a cell: of what a harness said last, the end tells most."""

type Row = tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Table:
    mark: str
    heads: Row
    name: Callable[[Row], Row]
    """What names a row: a row of the same name takes its place."""
    names: Sequence[Row]
    """Every name there is, in order. Rows of other names are dropped."""

    def rows(self, text: str) -> dict[Row, Row]:
        """The rows that the page has, by name."""
        found = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines(text, self.mark)[2:]]
        return {self.name(row): row for row in found}

    def put(self, new: Sequence[Row], page: Path = DOCS) -> None:
        """Put these rows into the page."""
        text = page.read_text()
        rows = self.rows(text) | {self.name(row): row for row in new}
        ordered = [rows[name] for name in self.names if name in rows]
        page.write_text(written(text, self.mark, table(self.heads, ordered)))


def table(heads: Row, rows: Sequence[Row]) -> list[str]:
    return [line(heads), "|---" * len(heads) + "|", *map(line, rows)]


def line(row: Row) -> str:
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split())[-LONGEST:] for cell in row)} |"


def lines(text: str, mark: str) -> list[str]:
    """The lines between the two marks."""
    return text.partition(f"<!-- {mark} -->\n")[2].partition(f"<!-- end of {mark} -->\n")[0].splitlines()


def written(text: str, mark: str, new: Sequence[str]) -> str:
    """`text` with these lines between the two marks."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return "".join([head, begin, *(f"{one}\n" for one in new), end, tail])


def facts() -> list[str]:
    heads = ("harness", "from", "known good", "speaks (base-url, proxy)", "first prompt", "session ids", "takes")
    return table(heads, list(_facts()))


def _facts() -> Iterator[Row]:
    for name, harness in HARNESSES.items():
        known = harness.FACTS
        source = f"{type(known.source).__name__.lower()} `{known.source.package}`" if known.source else "-"
        ids = sorted({word for words in known.session_ids.values() for word in words})
        yield (
            f"`{name}`",
            source,
            ", ".join(known.known_good) or "-",
            ", ".join(dict.fromkeys(known.providers.values())),
            f"{known.first_prompt:,}" if known.first_prompt else "-",
            ", ".join(f"`{word}`" for word in ids) or "-",
            ", ".join(f"`{word}`" for word in sorted(known.takes)) or "-",
        )


def side_requests() -> list[str]:
    heads = ("harness", "side requests, and what they get")
    rows = [(f"`{name}`", "; ".join(one.FACTS.side_requests) or "none") for name, one in HARNESSES.items()]
    return table(heads, rows)


def with_facts(text: str) -> str:
    """The page with what the modules say now."""
    return written(written(text, "facts", facts()), "side requests", side_requests())


if __name__ == "__main__":
    DOCS.write_text(with_facts(DOCS.read_text()))
