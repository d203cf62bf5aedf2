"""YAML 1.2 text as plain values with the place of each: PyYAML's events, and the core schema's own rules.

PyYAML alone reads YAML 1.1, where `yes` is true, `010` is 8 and `1:30` is 90. Here plain scalars follow the core schema
of YAML 1.2.2 (section 10.3.2). Refused: duplicate keys, keys that are not text, aliases, tags, several documents,
numbers that are not finite, deep nesting. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from attnspec.catalog.findings import Loc, dotted, shown
from attnspec.errors import Problem

MAX_DEPTH = 64
_NULL = re.compile(r"null|Null|NULL|~|")
_BOOL = re.compile(r"(?P<true>true|True|TRUE)|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_DIGITS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a value stands (line and column from 1) and, for a plain scalar, how it is written."""

    line: int
    column: int
    text: str | None = None


@dataclass(slots=True, kw_only=True)
class Document:
    """A parsed text: its value, the place of every part, and what is wrong with its form.

    broken: parts whose value could not be known (an alias, a tag), so that nothing else is said about them.
    """

    value: Any = None
    places: dict[Loc, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: set[Loc] = field(default_factory=set)
    complete: bool = True

    def place(self, loc: Loc) -> Place | None:
        """The place of a part, else of the nearest part around it."""
        for length in range(len(loc), -1, -1):
            if loc[:length] in self.places:
                return self.places[loc[:length]]
        return None


def parse_yaml(text: str, file: str = "") -> Document:
    """The one document in `text`; problems name `file`. Never raises for bad text."""
    return _Reader(text, file).read()


def resolve_plain(text: str) -> Any:
    """The value of a plain scalar under the core schema. Raises ValueError for a number that is not finite.

    >>> [resolve_plain(text) for text in ("yes", "010", "0o10", "1e3", "1:30", "1_000", "~", "True")]
    ['yes', 10, 8, 1000.0, '1:30', '1_000', None, True]
    """
    if _NULL.fullmatch(text):
        return None
    if match := _BOOL.fullmatch(text):
        return match["true"] is not None
    if len(text) > _MAX_DIGITS and _FLOAT.fullmatch(text):
        raise ValueError(f"a number of {len(text)} characters; allowed: at most {_MAX_DIGITS}")
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"got {text}; allowed: a finite number")
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"got {text}, over the largest number; allowed: a finite number")
        return number
    return text


class _Stop(Exception):  # noqa: N818 (no error: the reader has said what it had to say)
    """Reading on makes no sense."""


class _Reader:
    """Events in, a Document out. An explicit stack, so that nesting cannot exhaust Python's own."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file, self.document = text, file, Document()
        self.stack: list[tuple[Any, Loc]] = []
        self.key: list[str | None] = []

    def read(self) -> Document:
        documents = 0
        try:
            for event in yaml.parse(self.text, Loader=yaml.SafeLoader):
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        self.problem("a second document starts here; allowed: one document a file", event.start_mark)
                        raise _Stop
                    if event.version not in (None, (1, 2)):
                        version = ".".join(map(str, event.version))
                        self.problem(f"got YAML {version}; allowed: YAML 1.2", event.start_mark)
                elif isinstance(event, yaml.NodeEvent):
                    self.node(event)
                elif isinstance(event, yaml.CollectionEndEvent):
                    self.stack.pop()
                    self.key.pop()
        except yaml.MarkedYAMLError as error:
            self.document.complete = False
            mark = error.problem_mark or error.context_mark
            self.problem(self.syntax(error, mark), mark)
        except yaml.reader.ReaderError as error:
            self.document.complete = False
            before = self.text[: error.position]
            line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
            code = ord(error.character) if isinstance(error.character, str) else error.character
            message = f"character U+{code:04X} is not allowed in YAML"
            self.document.problems.append(Problem(message=message, file=self.file, line=line, column=column))
        except _Stop:
            self.document.complete = False
        return self.document

    def syntax(self, error: yaml.MarkedYAMLError, mark: yaml.Mark | None) -> str:
        if mark is not None and self.text[mark.index : mark.index + 1] == "\t":
            return "a tab starts a line or a value; YAML takes spaces only"
        what = error.problem or "cannot be read"
        where = f" ({error.context})" if error.context else ""
        return f"not YAML: {what}{where}"

    def problem(self, message: str, mark: yaml.Mark | None, loc: Loc = ()) -> None:
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        self.document.problems.append(
            Problem(message=message, file=self.file, line=line, column=column, path=dotted(loc))
        )

    def node(self, event: yaml.NodeEvent) -> None:
        if self.stack and isinstance(self.stack[-1][0], Mapping) and self.key[-1] is None:
            self.read_key(event)
            return
        loc = self.place_value(event)
        if isinstance(event, yaml.AliasEvent):
            self.broken("aliases (*name) are not allowed: write the value out", event, loc)
            self.store(None)
            return
        if getattr(event, "anchor", None) is not None:
            self.problem("anchors (&name) are not allowed", event.start_mark, loc)
        tag = getattr(event, "tag", None)
        if tag is not None:
            self.broken(f"tags are not allowed, got {tag}: write a plain or a quoted value", event, loc)
        if isinstance(event, yaml.ScalarEvent):
            self.store(self.scalar(event, loc))
        else:
            self.open([] if isinstance(event, yaml.SequenceStartEvent) else {}, event, loc)

    def read_key(self, event: yaml.NodeEvent) -> None:
        held, loc = self.stack[-1]
        value: Any = None
        known = isinstance(event, yaml.ScalarEvent) and event.tag is None and event.anchor is None
        if known:
            assert isinstance(event, yaml.ScalarEvent)
            value = self.scalar(event, loc)
        if not isinstance(value, str):
            got = shown(value) if known else "a list, a mapping, an alias, an anchor or a tag"
            text = f' (write "{event.value}" in quotes)' if known and isinstance(event, yaml.ScalarEvent) else ""
            self.problem(f"got {got} as a key; allowed: text{text}", event.start_mark, loc)
            raise _Stop
        if value in held:
            first = self.document.places[(*loc, value)].line
            self.problem(f"key {value!r} is given twice (first in line {first})", event.start_mark, (*loc, value))
            value = f"{value}\0{event.start_mark.index}"
            self.document.broken.add((*loc, value))
        self.key[-1] = value
        self.document.places[(*loc, value)] = Place(line=event.start_mark.line + 1, column=event.start_mark.column + 1)

    def place_value(self, event: yaml.NodeEvent) -> Loc:
        if not self.stack:
            loc: Loc = ()
        else:
            held, around = self.stack[-1]
            loc = (*around, len(held) if isinstance(held, list) else str(self.key[-1]))
        text = event.value if isinstance(event, yaml.ScalarEvent) and event.style is None else None
        key = self.document.places.get(loc)
        mark = event.start_mark
        self.document.places[loc] = Place(
            line=key.line if key else mark.line + 1, column=key.column if key else mark.column + 1, text=text
        )
        return loc

    def broken(self, message: str, event: yaml.NodeEvent, loc: Loc) -> None:
        self.problem(message, event.start_mark, loc)
        self.document.broken.add(loc)

    def scalar(self, event: yaml.ScalarEvent, loc: Loc) -> Any:
        if event.style is not None or not event.implicit[0]:
            return event.value
        try:
            return resolve_plain(event.value)
        except ValueError as error:
            self.broken(str(error), event, loc)
            return event.value

    def open(self, held: Any, event: yaml.NodeEvent, loc: Loc) -> None:
        if len(self.stack) >= MAX_DEPTH:
            self.problem(f"nested over {MAX_DEPTH} levels deep", event.start_mark)
            raise _Stop
        self.store(held)
        self.stack.append((held, loc))
        self.key.append(None)

    def store(self, value: Any) -> None:
        if not self.stack:
            self.document.value = value
            return
        held, _ = self.stack[-1]
        if isinstance(held, list):
            held.append(value)
            return
        key = self.key[-1]
        assert key is not None
        if "\0" not in key:  # a duplicate's value is not kept
            held[key] = value
        self.key[-1] = None
