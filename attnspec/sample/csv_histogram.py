"""Length histograms in CSV: one line a bin, or one line a length."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from attnspec.errors import InputError
from attnspec.sample.fields import parse_range, parse_share, parse_whole
from attnspec.sample.lengths import MAX_LENGTH, Bin, Lengths, from_counts, from_shares, from_tally

RANGES = ("range", "bin", "interval", "length_range")
HALF_OPEN = (("lo", "hi"), ("start", "end"), ("left", "right"))
CLOSED = (("min", "max"),)
SINGLE = ("length", "doc_length", "seqlen")
COUNTS = ("count", "counts", "number", "num", "documents", "num_documents")
SHARES = ("share", "shares", "probability", "prob", "percentage", "percent", "pct", "weight", "fraction")
_ALLOWED = (
    "a column range ('[0, 10]', '[0, 11)'), or lo and hi (hi excluded), or min and max (max included), or length; "
    "beside it count or number, or share, probability or percentage"
)


def read_csv(path: Path, name: str) -> Lengths:
    """A population from a CSV file with a header line, separated by commas, semicolons or tabs.

    Bins are a column `range`, or `lo` and `hi` (hi excluded), or `min` and `max` (max included), or a single `length`.
    Amounts are counts or shares; counts win where both stand. `length` alone means one document a line. Other columns
    are ignored. Raises InputError with file and line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8 text; allowed: a CSV file in UTF-8") from error
    lines = text.splitlines()
    if not any(line.strip() for line in lines):
        raise InputError(f"{path}: empty file; allowed: {_ALLOWED}")
    delimiter = max(",;\t", key=next(line for line in lines if line.strip()).count)
    rows = _rows(lines, delimiter, path)
    line, header = next(rows)
    return _read(path, name, _columns(header, f"{path}:{line}"), rows, len(header))


def _rows(lines: Sequence[str], delimiter: str, path: Path) -> Iterator[tuple[int, Sequence[str]]]:
    """Rows that are not blank, with their line numbers."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield reader.line_num, fields
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: not CSV: {error}") from error


def _columns(header: Sequence[str], place: str) -> Mapping[str, int]:
    """The header's known columns: position of each kind (range, lo, hi, min, max, length, count, share)."""
    names = [re.sub(r"[^a-z0-9]+", "_", field.lower()).strip("_") for field in header]
    kinds = {**dict.fromkeys(RANGES, "range"), **dict.fromkeys(SINGLE, "length")}
    kinds |= {**dict.fromkeys(COUNTS, "count"), **dict.fromkeys(SHARES, "share")}
    kinds |= {low: "lo" for low, _ in HALF_OPEN} | {high: "hi" for _, high in HALF_OPEN}
    kinds |= {low: "min" for low, _ in CLOSED} | {high: "max" for _, high in CLOSED}
    found: dict[str, int] = {}
    for position, name in enumerate(names):
        kind = kinds.get(name)
        if kind in found:
            raise InputError(f"{place}: columns {header[found[kind]]!r} and {header[position]!r} mean the same")
        if kind is not None:
            found[kind] = position
    ways = [
        way for way in (("range",), ("lo", "hi"), ("min", "max"), ("length",)) if all(kind in found for kind in way)
    ]
    if len(ways) != 1 or not ("count" in found or "share" in found or ways == [("length",)]):
        raise InputError(f"{place}: got the columns {', '.join(map(repr, header))}; allowed: {_ALLOWED}")
    amount = ("count",) if "count" in found else ("share",) if "share" in found else ()
    return {kind: found[kind] for kind in (*ways[0], *amount)}


def _read(
    path: Path, name: str, columns: Mapping[str, int], rows: Iterable[tuple[int, Sequence[str]]], num_columns: int
) -> Lengths:
    bins: list[Bin] = []
    tally: Counter[int] = Counter()
    signs: set[bool] = set()
    for line, fields in rows:
        place = f"{path}:{line}"
        if len(fields) != num_columns:
            raise InputError(f"{place}: {len(fields)} fields; allowed: {num_columns}, as in the header")
        try:
            lo, hi = _bounds(columns, fields)
            if "count" in columns:
                bins.append(
                    Bin(lo=lo, hi=hi, amount=Fraction(parse_whole(fields[columns["count"]], "a count")), place=place)
                )
            elif "share" in columns:
                share, percent = parse_share(fields[columns["share"]])
                signs.add(percent)
                bins.append(Bin(lo=lo, hi=hi, amount=share, place=place))
            elif 0 <= lo <= MAX_LENGTH:
                tally[lo] += 1
            else:
                raise InputError(f"got the length {lo}; allowed: 0 to 2**40")
        except InputError as error:
            raise error if str(error).startswith(place) else InputError(f"{place}: {error}") from error
        if len(signs) > 1:
            raise InputError(f"{place}: some shares have a percent sign and some have none; allowed: one way for all")
    if "count" in columns:
        return from_counts(name, bins)
    if "share" in columns:
        return from_shares(name, bins)
    lengths = np.array(list(tally.keys()), dtype=np.int64)
    return from_tally(name, lengths, np.array(list(tally.values()), dtype=np.int64))


def _bounds(columns: Mapping[str, int], fields: Sequence[str]) -> tuple[int, int]:
    if "range" in columns:
        return parse_range(fields[columns["range"]])
    if "length" in columns:
        length = parse_whole(fields[columns["length"]], "a length")
        return length, length + 1
    first, last = ("lo", "hi") if "lo" in columns else ("min", "max")
    low = parse_whole(fields[columns[first]], f"a bin's {first}")
    return low, parse_whole(fields[columns[last]], f"a bin's {last}") + (last == "max")
