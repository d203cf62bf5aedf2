"""YAML 1.2 text as plain values with the place of each, and everything wrong with its form at once. Pure.

PyYAML cuts the text into events; values are built here. Refused: duplicate keys, keys that are not text, anchors and
aliases (a few lines of them can mean terabytes), tags, several documents, numbers that are not finite, control
characters, nesting over 64 levels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from attnspec.catalog.findings import Loc, dotted, shown
from attnspec.errors import Problem
from attnspec.spec.scalars import Scalar, resolve_plain

MAX_DEPTH = 64
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a value stands: file or option, line and column from 1. text: a plain scalar as it is written."""

    file: str
    line: int | None = None
    column: int | None = None
    text: str | None = None


@dataclass(slots=True, kw_only=True)
class Document:
    """A text that was read.

    problems: what is wrong with its form. broken: parts whose value could not be known (an alias, a tag); nothing else
    is worth saying about them. complete: whether the text was read to its end.
    """

    value: Any = None
    places: dict[Loc, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: set[Loc] = field(default_factory=set)
    complete: bool = True

    def place(self, loc: Loc) -> Place | None:
        """The place of a part, else of the nearest part around it."""
        lengths = range(len(loc), -1, -1)
        return next((self.places[loc[:length]] for length in lengths if loc[:length] in self.places), None)

    def is_broken(self, loc: Loc) -> bool:
        """Whether a part, or one around it, could not be known."""
        return any(loc[:length] in self.broken for length in range(len(loc) + 1))


def parse_yaml(text: str, file: str = "") -> Document:
    """The one document in `text`. Bad text never raises: it gives problems that name `file`."""
    return _Reader(text, file).read()


class _Stop(Exception):  # noqa: N818 (not an error: the problem is recorded already)
    """Reading on makes no sense."""


@dataclass(slots=True, kw_only=True)
class _Frame:
    """An open list or mapping. `key` is set between a key and its value; a `lost` value is read and dropped."""

    held: list[Any] | dict[str, Any]
    loc: Loc
    lost: bool
    key: str | None = None
    key_lost: bool = False


class _Reader:
    """Events in, a Document out. The stack is explicit, so that nesting cannot exhaust Python's own."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.document = Document()
        self.stack: list[_Frame] = []

    def read(self) -> Document:
        """Consume the whole text."""
        try:
            documents = 0
            for event in yaml.parse(self.text, Loader=yaml.SafeLoader):
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    self.start_document(event, documents)
                elif isinstance(event, yaml.CollectionEndEvent):
                    self.stack.pop()
                elif isinstance(event, yaml.NodeEvent):
                    self.read_node(event)
        except yaml.MarkedYAMLError as error:
            self.document.complete = False
            self.add_problem(self.syntax(error), error.problem_mark)
        except yaml.reader.ReaderError as error:
            self.document.complete = False
            line, column = line_and_column(self.text, error.position)
            message = f"character U+{ord(self.text[error.position]):04X} is not allowed in YAML"
            self.document.problems.append(Problem(message=message, file=self.file, line=line, column=column))
        except _Stop:
            self.document.complete = False
        return self.document

    def start_document(self, event: yaml.DocumentStartEvent, number: int) -> None:
        if number > 1:
            self.add_problem("a second document starts here; allowed: one document a file", event.start_mark)
            raise _Stop
        if event.version not in (None, (1, 2)):
            version = ".".join(map(str, event.version))
            self.add_problem(f"got YAML {version}; allowed: YAML 1.2", event.start_mark)

    def syntax(self, error: yaml.MarkedYAMLError) -> str:
        mark: Any = error.problem_mark
        if mark is not None and self.text[mark.index : mark.index + 1] == "\t":
            return "got a tab; allowed: spaces"
        return ": ".join(part for part in ("is not YAML", error.context, error.problem) if part)

    def add_problem(self, message: str, mark: Any, loc: Loc = ()) -> None:
        line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
        self.document.problems.append(
            Problem(message=message, file=self.file, line=line, column=column, path=dotted(loc))
        )

    def read_node(self, event: yaml.NodeEvent) -> None:
        frame = self.stack[-1] if self.stack else None
        if frame is not None and isinstance(frame.held, dict) and frame.key is None:
            self.read_key(frame, event)
            return
        loc = self.next_loc(frame)
        lost = frame is not None and (frame.lost or frame.key_lost)
        if not lost:
            self.remember_place(loc, event)
        known = self.check_form(event, loc, lost)
        value: Any = None
        if isinstance(event, yaml.ScalarEvent):
            value = self.scalar(event, loc, lost) if known else None
        elif isinstance(event, yaml.CollectionStartEvent):
            value = [] if isinstance(event, yaml.SequenceStartEvent) else {}
        self.store(frame, value)
        if isinstance(value, list | dict):
            if len(self.stack) >= MAX_DEPTH:
                self.add_problem(f"is nested over {MAX_DEPTH} levels deep", event.start_mark)
                raise _Stop
            self.stack.append(_Frame(held=value, loc=loc, lost=lost))

    def read_key(self, frame: _Frame, event: yaml.NodeEvent) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            what = {yaml.AliasEvent: "an alias", yaml.SequenceStartEvent: "a list"}.get(type(event), "a mapping")
            self.add_problem(f"got {what} as a key; allowed: text", event.start_mark, frame.loc)
            raise _Stop
        value: Scalar = None
        if self.check_form(event, frame.loc, True):
            value = self.scalar(event, frame.loc, True)
            if not isinstance(value, str):
                message = f'got {shown(value)} as a key; allowed: text; write it in quotes: "{event.value}"'
                self.add_problem(message, event.start_mark, frame.loc)
        key = value if isinstance(value, str) else event.value
        loc = (*frame.loc, key)
        frame.key, frame.key_lost = key, not isinstance(value, str)
        if key in frame.held:
            first = self.document.places.get(loc)
            where = f" (first in line {first.line})" if first is not None else ""
            self.add_problem(f"is given twice{where}", event.start_mark, loc)
            frame.key_lost = True
        elif not frame.lost and not frame.key_lost:
            mark: Any = event.start_mark
            self.document.places[loc] = Place(file=self.file, line=mark.line + 1, column=mark.column + 1)

    def next_loc(self, frame: _Frame | None) -> Loc:
        if frame is None:
            return ()
        return (*frame.loc, len(frame.held) if frame.key is None else frame.key)

    def remember_place(self, loc: Loc, event: yaml.NodeEvent) -> None:
        """A value under a key stands where the key does; the key's place is there already."""
        text = event.value if isinstance(event, yaml.ScalarEvent) and event.style is None else None
        mark: Any = event.start_mark
        key = self.document.places.get(loc, Place(file=self.file, line=mark.line + 1, column=mark.column + 1))
        self.document.places[loc] = Place(file=key.file, line=key.line, column=key.column, text=text)

    def check_form(self, event: yaml.NodeEvent, loc: Loc, lost: bool) -> bool:
        """Whether the node's value can be known: no alias, no tag. An anchor is a problem and its value known."""
        if isinstance(event, yaml.AliasEvent):
            self.break_off("got an alias (*name); allowed: the value itself", event, loc, lost)
            return False
        if event.anchor is not None:
            self.add_problem(f"got an anchor (&{event.anchor}); allowed: the value alone", event.start_mark, loc)
        tag = getattr(event, "tag", None)
        if tag is not None:
            self.break_off(f"got the tag {tag}; allowed: the value alone", event, loc, lost)
        return tag is None

    def break_off(self, message: str, event: yaml.NodeEvent, loc: Loc, lost: bool) -> None:
        self.add_problem(message, event.start_mark, loc)
        if not lost:
            self.document.broken.add(loc)

    def scalar(self, event: yaml.ScalarEvent, loc: Loc, lost: bool) -> Scalar:
        text = event.value
        if _UNWANTED.search(text):
            self.break_off("holds a control character or half a surrogate pair; allowed: text", event, loc, lost)
            return ""
        if event.style is not None:
            return text
        try:
            return resolve_plain(text)
        except ValueError as error:
            self.break_off(str(error), event, loc, lost)
            return text

    def store(self, frame: _Frame | None, value: Any) -> None:
        if frame is None:
            self.document.value = value
        elif isinstance(frame.held, list):
            frame.held.append(value)
        else:
            assert frame.key is not None
            if not frame.key_lost:
                frame.held[frame.key] = value
            frame.key, frame.key_lost = None, False


def line_and_column(text: str, index: int) -> tuple[int, int]:
    """Line and column, both from 1, of a character.

    >>> line_and_column("ab\\ncd", 4)
    (2, 2)
    """
    before = text[:index]
    return before.count("\n") + 1, index - (before.rfind("\n") + 1) + 1
