"""Reading a spec file: the thin shell around the pure models that knows files, lines and overrides."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from attnspec.catalog.findings import Finding, dotted, findings_of
from attnspec.errors import Problem, SpecError
from attnspec.spec.models import Spec
from attnspec.spec.overrides import apply_override
from attnspec.spec.yaml_text import Document, line_and_column, parse_yaml

MAX_FILE_BYTES = 16 * 1024**2
_OTHER_ENCODINGS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def load_spec(path: str | Path, overrides: Sequence[str] = ()) -> Spec:
    """The spec in a YAML file, with overrides such as `shape.head_dim=64` applied.

    A relative `data.lengths` path is made absolute from the spec file's folder. Raises SpecError with everything wrong,
    each with file, line and path.
    """
    file = str(path)
    document = parse_yaml(_read(path, file), file)
    if not document.complete:
        raise SpecError(document.problems)
    if document.value is None and not document.broken:
        raise SpecError([*document.problems, Problem(message="is empty; a spec starts with `attnspec: 1`", file=file)])
    for override in overrides:
        apply_override(document, override)
    try:
        spec = Spec.model_validate(document.value)
    except ValidationError as error:
        spec = None
        for finding in findings_of(error):
            if not document.is_broken(finding.loc):
                document.problems.append(_problem(finding, document, file))
    if spec is None or document.problems:
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


def _with_lengths_beside(spec: Spec, file: Path) -> Spec:
    if not spec.data.lengths_are_a_file:
        return spec
    lengths = str((file.resolve().parent / spec.data.lengths).resolve())
    return spec.model_copy(update={"data": spec.data.model_copy(update={"lengths": lengths})})
