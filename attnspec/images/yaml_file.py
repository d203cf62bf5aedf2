"""A YAML file as a checked model, with all that is wrong in it by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from attnspec.catalog.findings import Finding, Section, dotted, findings_of
from attnspec.errors import Problem, SpecError
from attnspec.spec.yaml_text import parse_yaml

Model = TypeVar("Model", bound=Section)


def read_section(
    model: type[Model], path: Path, check: Callable[[Model], Iterable[Finding]] = lambda read: ()
) -> Model:
    """The content of a file. check: what is wrong with it beside the model. Raises SpecError with everything wrong."""
    file = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError([Problem(message=f"cannot be read: {reason}", file=file)]) from None
    document = parse_yaml(text, file)
    problems = list(document.problems)
    if not problems:
        try:
            read = model.model_validate(document.value)
            findings = list(check(read))
            if not findings:
                return read
        except ValidationError as error:
            findings = findings_of(error)
        for finding in findings:
            place = document.place(finding.loc)
            problems.append(
                Problem(
                    message=finding.message,
                    file=file,
                    line=place.line if place else None,
                    column=place.column if place else None,
                    path=dotted(finding.loc),
                )
            )
    raise SpecError(problems)
