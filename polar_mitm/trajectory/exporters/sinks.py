"""The three kinds of output: JSON lines, Parquet, a folder of JSON documents. Each holds few rows in memory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from polar_mitm.trajectory.exporters.base import ExportRefused, PackageMissing, Row
from polar_mitm.trajectory.exporters.text import line

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]  # it has no types

_GROUP_TOKENS: Final = 1 << 20
"""A row group is written when its rows hold so many ids: 9 bytes each on average, before compression."""
_GROUP_ROWS: Final = 1024


class JsonLines:
    """One row a line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")

    def write(self, row: Row) -> None:
        self._file.write(line(row))

    def close(self) -> None:
        self._file.close()


class Documents:
    """One file a row, `<name>.json`: the row's `name` is the file's, its `document` what the file holds."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self._folder = path

    def write(self, row: Row) -> None:
        name = f"{row['name']}.json"
        if Path(name).name != name:
            raise ExportRefused(f"session {row['name']} would be a file elsewhere: its id in session.json was edited")
        with (self._folder / name).open("xb") as file:
            file.write(line(row["document"]))

    def close(self) -> None:
        pass


class Parquet:
    """Row groups of about a million token ids, compressed with zstd. `columns` gives each column's Arrow type."""

    def __init__(self, path: Path, columns: "pyarrow.Schema", id_columns: tuple[str, ...]) -> None:
        from pyarrow.parquet import ParquetWriter  # type: ignore[import-untyped]  # it has no types

        self._columns = columns
        self._id_columns = id_columns
        self._rows: list[Row] = []
        self._tokens = 0
        self._file = ParquetWriter(path, columns, compression="zstd")

    def write(self, row: Row) -> None:
        self._rows.append(row)
        self._tokens += sum(len(row[name]) for name in self._id_columns)
        if self._tokens >= _GROUP_TOKENS or len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._file.close()

    def _flush(self) -> None:
        import pyarrow

        self._file.write_table(pyarrow.Table.from_pylist(self._rows, self._columns))
        self._rows, self._tokens = [], 0


def arrow() -> Any:
    """The module pyarrow. Raises PackageMissing."""
    try:
        import pyarrow
    except ImportError as error:
        raise PackageMissing(
            "Parquet needs the package pyarrow: `pip install '.[parquet]'` in polar's folder, or export to jsonl"
        ) from error
    return pyarrow
