"""A mask as a command line names it: what `mask` and `flops` share. Not a command (its name starts with `_`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click
import numpy as np

from attnspec import catalog, plugins
from attnspec.errors import InputError, SpecError
from attnspec.masks import make_slices
from attnspec.slices import AttnSlices
from attnspec.slices.documents import document_lengths
from attnspec.slices.edges import IntArray
from attnspec.units import parse_count

C = TypeVar("C", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedMask:
    """A mask with its parameters (defaults filled) over documents (int64 lengths), as slices."""

    name: str
    params: Mapping[str, Any]
    docs: IntArray
    slices: AttnSlices

    @property
    def title(self) -> str:
        """Name and parameters on one line; of a list only how long it is."""
        given = ", ".join(f"{name}={_short(value)}" for name, value in self.params.items() if value is not None)
        return f"{self.name}({given})" if given else self.name


def _short(value: Any) -> str:
    return f"[{len(value)} rows]" if isinstance(value, list) else json.dumps(value)


def mask_options(command: C) -> C:
    """Add `--seqlen`, `--docs` and `--param` to a command."""
    for option in (
        click.option(
            "--param", "params", multiple=True, metavar="K=V", help="A parameter of the mask; may be repeated."
        ),
        click.option(
            "--docs", metavar="A,B,C", help="Document lengths, such as 3K,5K [default: one document of --seqlen]."
        ),
        click.option("--seqlen", metavar="S", help="Queries, such as 4096 or 64K [default: the sum of --docs]."),
    ):
        command = option(command)
    return command


def named_mask(name: str, seqlen: str | None, docs: str | None, params: Sequence[str]) -> NamedMask:
    """The mask that options name. Raises InputError saying what is wrong with which option."""
    module = catalog.load("masks", name)
    values = _checked_params(name, params)
    if docs is None and seqlen is None:
        raise InputError("give --seqlen, --docs or both")
    lengths = None if docs is None else _parse_documents(docs)
    total = sum(lengths or []) if seqlen is None else _count("--seqlen", seqlen)
    held = [total] if lengths is None else lengths
    document_lengths(held, total)  # before anything is said about them
    if not module.USES_DOCUMENTS and sum(length > 0 for length in held) > 1:
        users = [other for other in catalog.names("masks") if catalog.load("masks", other).USES_DOCUMENTS]
        # A pack always has documents; said aloud, since a packed batch counted as one sequence is a common slip.
        click.echo(
            f"note: mask {name} is over the whole sequence, whatever the documents; masks of documents: "
            f"{', '.join(users)}",
            err=True,
        )
    over = held if module.USES_DOCUMENTS else [total]
    slices = make_slices(module, plugins.make_params(module, values), over, total)
    return NamedMask(name=name, params=values, docs=np.asarray(held, dtype=np.int64), slices=slices)


def _checked_params(mask: str, items: Sequence[str]) -> dict[str, Any]:
    """The parameters with defaults filled. Problems name the option, since there is no file that they stand in."""
    given = _parse_params(items)
    try:
        return catalog.validate_params("masks", mask, given)
    except SpecError as error:
        raise SpecError(replace(one, file=f"--param of {mask}") for one in error.problems) from None


def _parse_params(items: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in items:
        name, sign, text = item.partition("=")
        if not sign or not name:
            raise InputError(f"--param: got {item!r}; allowed: name=value, such as window=1024")
        if name in values:
            raise InputError(f"--param: {name} is given twice")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
        except RecursionError:
            raise InputError(f"--param {name}: is nested too deeply") from None
    return values


def _parse_documents(text: str) -> list[int]:
    return [_count("--docs", item.strip(), least=0) for item in text.split(",")]


def _count(option: str, text: str, *, least: int = 1) -> int:
    try:
        return parse_count(text, least=least)
    except InputError as error:
        raise InputError(f"{option}: {error}") from None
