"""Reading a spec file: the thin shell around the pure models that knows files, lines and overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnspec.catalog.findings import Finding, dotted, findings_of
from attnspec.errors import Problem, SpecError
from attnspec.spec.models import Spec
from attnspec.spec.overrides import apply_override
from attnspec.spec.yaml_text import Document, parse_yaml

MAX_FILE_BYTES = 16 * 1024**2
_OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x00\x00\xfe\xff": "UTF-32"}
_LENGTH_SUFFIXES = (".csv", ".json", ".parquet", ".arrow", ".feather")


def load_spec(path: str | Path, overrides: Sequence[str] = ()) -> Spec:
    """The spec in a YAML file, with overrides such as `shape.head_dim=64` applied.

    A relative `data.lengths` path is made absolute from the file's folder. Raises SpecError with everything wrong.
    """
    file = str(path)
    text = _read(path, file)
    document = parse_yaml(text, file)
    if not document.complete:
        raise SpecError(document.problems)
    if document.value is None and not document.broken:
        raise SpecError([*document.problems, Problem(message="the spec is empty; start with `attnspec: 1`", file=file)])
    labels = [label for label in (apply_override(document, text) for text in overrides) if label is not None]
    del labels
    spec = None
    try:
        spec = Spec.model_validate(document.value)
    except ValidationError as error:
        found = [_problem(finding, document, file) for finding in findings_of(error) if not _hidden(finding, document)]
        document.problems.extend(found)
    if document.problems or spec is None:
        raise SpecError(sorted(document.problems, key=lambda one: (one.line or 0, one.column or 0)))
    return _with_lengths_beside(spec, Path(path))


def _read(path: str | Path, file: str) -> str:
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError([Problem(message=f"cannot be read: {reason}", file=file)]) from None
    if len(raw) > MAX_FILE_BYTES:
        raise SpecError([Problem(message=f"over {MAX_FILE_BYTES // 1024**2} MiB: not a spec", file=file)])
    for mark, encoding in _OTHER_ENCODINGS.items():
        if raw.startswith(mark):
            raise SpecError([Problem(message=f"is {encoding} text; save it as UTF-8", file=file, line=1, column=1)])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise SpecError([Problem(message=message, file=file, line=line, column=column)]) from None


def _hidden(finding: Finding, document: Document) -> bool:
    return any(finding.loc[: len(broken)] == broken for broken in document.broken)


def _problem(finding: Finding, document: Document, file: str) -> Problem:
    place = document.place(finding.loc)
    exact = document.places.get(finding.loc)
    message = finding.message
    if exact is not None and exact.text is not None and exact.text not in message:
        message = f"{message} (written {exact.text})"
    return Problem(
        message=message,
        file=file,
        line=place.line if place else None,
        column=place.column if place else None,
        path=dotted(finding.loc),
    )


def is_path(lengths: str) -> bool:
    """Whether `data.lengths` is a path and not the name of a shipped distribution."""
    return "/" in lengths or lengths.endswith(_LENGTH_SUFFIXES)


def _with_lengths_beside(spec: Spec, file: Path) -> Spec:
    if not is_path(spec.data.lengths):
        return spec
    absolute = str((file.resolve().parent / spec.data.lengths).resolve())
    changed: dict[str, Any] = {"data": spec.data.model_copy(update={"lengths": absolute})}
    return spec.model_copy(update=changed)
