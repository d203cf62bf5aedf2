"""Reading a spec file: the thin shell around the pure models that knows files, lines and overrides."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnspec.catalog.findings import Finding, collect, dotted, shown
from attnspec.errors import Problem, SpecError, nearest
from attnspec.sample.reading import SUFFIXES, shipped_names
from attnspec.spec.models import Spec
from attnspec.spec.overrides import apply_override
from attnspec.spec.yaml_text import Document, line_and_column, parse_yaml

Check = Callable[[Any], Iterable[Finding]]

MAX_FILE_BYTES = 16 * 1024**2
_OTHER_ENCODINGS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """A spec with the text that it was read from, so that what is found wrong later can name its line."""

    spec: Spec
    file: str
    text: str
    document: Document

    def problem(self, message: str, *loc: str | int) -> Problem:
        """A problem at a part of the spec, such as `("sweeps", 0, "masks", 1)`."""
        return _problem(Finding(message=message, loc=loc), self.document, self.file)


def load_spec(path: str | Path, overrides: Sequence[str] = ()) -> Spec:
    """The spec in a YAML file, with overrides such as `shape.head_dim=64` applied.

    A relative `data.lengths` path is made absolute from the spec file's folder. Raises SpecError with everything wrong,
    each with file, line and path.
    """
    return read_spec(path, overrides).spec


def read_spec(
    path: str | Path, overrides: Sequence[str] = (), checks: Sequence[Check] = (), *, text: str | None = None
) -> SpecFile:
    """As `load_spec`, with the places of all parts.

    checks: further checks, each given what the file holds before it is known to be a spec, so that their findings come
    together with all others. text: what the file held when it was read before; a pipe gives it once.
    """
    file = str(path)
    text = _read(path, file) if text is None else text
    document = parse_yaml(text, file)
    if not document.complete:
        raise SpecError(document.problems)
    if document.value is None and not document.broken:
        raise SpecError([*document.problems, Problem(message="is empty; a spec starts with `attnspec: 1`", file=file)])
    for override in overrides:
        apply_override(document, override)
    folder = Path(path).resolve().parent
    findings: list[Finding] = [
        *(finding for check in checks for finding in check(document.value)),
        *_lengths_findings(document.value, folder),
    ]
    spec = collect(findings, (), Spec.model_validate, document.value)
    found = [finding for finding in findings if not document.is_broken(finding.loc)]
    document.problems.extend(_problem(finding, document, file) for finding in found)
    if spec is None or document.problems:
        raise SpecError(sorted(document.problems, key=lambda one: (one.line or 0, one.column or 0)))
    return SpecFile(spec=_with_lengths_beside(spec, folder), file=file, text=text, document=document)


def _read(path: str | Path, file: str) -> str:
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError([Problem(message=f"cannot be read: {reason}", file=file)]) from None
    if len(raw) > MAX_FILE_BYTES:
        raise SpecError([Problem(message=f"is over {MAX_FILE_BYTES // 1024**2} MiB; that is no spec", file=file)])
    for mark, encoding in _OTHER_ENCODINGS.items():
        if raw.startswith(mark):
            raise SpecError([Problem(message=f"is {encoding}; save it as UTF-8", file=file, line=1, column=1)])
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode()
        line, column = line_and_column(before, len(before))
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise SpecError([Problem(message=message, file=file, line=line, column=column)]) from None


def _problem(finding: Finding, document: Document, file: str) -> Problem:
    place, exact = document.place(finding.loc), document.places.get(finding.loc)
    message = finding.message
    if exact is not None and exact.text and message.startswith("got ") and exact.text not in message:
        message = f"{message} (written {exact.text})"
    return Problem(
        message=message,
        file=place.file if place else file,
        line=place.line if place else None,
        column=place.column if place else None,
        path=dotted(finding.loc),
    )


def _lengths_findings(value: Any, folder: Path) -> list[Finding]:
    """What is wrong with `data.lengths`, without reading the distribution."""
    lengths = text_at(value, "data", "lengths")
    fault = None if lengths is None else _lengths_fault(lengths, folder)
    return [] if fault is None else [Finding(message=fault, loc=("data", "lengths"))]


def text_at(value: Any, *keys: str) -> str | None:
    """The text under nested keys of what a file holds, None where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) and value else None


def _lengths_fault(lengths: str, folder: Path) -> str | None:
    if lengths in shipped_names():
        return None
    allowed = f"{', '.join(shipped_names())}, or a file ending in {', '.join(SUFFIXES)}"
    if not _is_path(lengths):
        return f"got {shown(lengths)}{nearest(lengths, shipped_names())}; allowed: {allowed}"
    file = Path(lengths)
    if file.suffix.lower() not in SUFFIXES:
        return f"got a file ending in {shown(file.suffix)}; allowed: {allowed}"
    try:
        return None if (folder / file).is_file() else f"no such file: {(folder / file).resolve()}"
    except OSError as error:
        return f"got {shown(lengths)}: {error.strerror}"


def _is_path(lengths: str) -> bool:
    """Names of shipped distributions have neither a slash nor a suffix."""
    return "/" in lengths or Path(lengths).suffix != ""


def _with_lengths_beside(spec: Spec, folder: Path) -> Spec:
    if not _is_path(spec.data.lengths):
        return spec
    lengths = str((folder / spec.data.lengths).resolve())
    return spec.model_copy(update={"data": spec.data.model_copy(update={"lengths": lengths})})
