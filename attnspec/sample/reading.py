"""Finding and reading a distribution of document lengths: a shipped one by name, or the user's own file."""

from __future__ import annotations

from pathlib import Path

from attnspec.errors import InputError, nearest
from attnspec.resources import shipped
from attnspec.sample.csv_histogram import read_csv
from attnspec.sample.json_histogram import read_json
from attnspec.sample.lengths import Lengths

CSV_SUFFIXES = (".csv", ".tsv")
COLUMN_SUFFIXES = (".parquet", ".arrow", ".arrows", ".feather")
SUFFIXES = (*CSV_SUFFIXES, ".json", *COLUMN_SUFFIXES)


def shipped_names() -> tuple[str, ...]:
    """Sorted names of the distributions that come with attnspec."""
    return tuple(sorted(path.stem for path in (shipped("data") / "lengths").glob("*.csv")))


def read_lengths(source: str | Path) -> Lengths:
    """The distribution with this name, or in this file (CSV, JSON, Parquet, Arrow, Feather; told by the suffix).

    Its `name` is the source as given. Raises InputError with the file, the line or row, and what is allowed.

    >>> read_lengths("page").num_documents
    13463214
    """
    name = str(source)
    if name in shipped_names():
        return read_csv(shipped("data") / "lengths" / f"{name}.csv", name)
    path = Path(source)
    suffix = path.suffix.lower()
    allowed = f"{', '.join(shipped_names())}, or a file ending in {', '.join(SUFFIXES)}"
    if suffix not in SUFFIXES:
        raise InputError(f"unknown lengths {name!r}{nearest(name, shipped_names())}; allowed: {allowed}")
    if not path.is_file():
        raise InputError(f"{path}: no such file; allowed: {allowed}")
    try:
        if suffix in CSV_SUFFIXES:
            return read_csv(path, name)
        if suffix == ".json":
            return read_json(path, name)
        from attnspec.sample.length_column import read_column

        return read_column(path, name)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
