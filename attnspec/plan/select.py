"""`--only key=value,..`: which cases of a plan are meant. Pure.

Keys are columns of cells.parquet. Several values of one key (`kernel=sdpa|flex`, or the key again) mean any of them;
several keys mean all of them. `none` stands for null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnspec.errors import InputError, nearest
from attnspec.plan.model import Case
from attnspec.units import parse_count

_READ: Mapping[str, Callable[[Case], Any]] = {
    "level": lambda case: case.level,
    "kernel": lambda case: case.implementation.kernel,
    "strategy": lambda case: case.implementation.strategy,
    "backend": lambda case: case.implementation.backend,
    "provider": lambda case: case.implementation.provider,
    "mask": lambda case: case.workload.mask_node.mask,
    "seqlen": lambda case: case.workload.mask_node.seqlen_q,
    "cp_size": lambda case: case.cp_size,
    "seqlen_per_rank": lambda case: case.workload.mask_node.seqlen_q // case.cp_size,
    "pass": lambda case: case.pass_,
    "batch": lambda case: case.workload.shape.batch,
    "num_heads_q": lambda case: case.workload.shape.num_heads_q,
    "num_heads_kv": lambda case: case.workload.shape.num_heads_kv,
    "head_dim": lambda case: case.workload.shape.head_dim,
    "dtype": lambda case: case.workload.shape.dtype,
    "num_packs": lambda case: case.workload.mask_node.sample.num_packs,
    "case_id": lambda case: case.case_id,
}
KEYS = tuple(_READ)
_WITHOUT = {
    "strategy": "of level kernel, which have no strategy",
    "backend": "whose spec names no backend (where a kernel has several, it is chosen at run time)",
    "provider": "whose spec names no provider (it is chosen at run time)",
}
"""Keys that may be null -> which cases these are."""


def parse_only(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The options' texts as key -> values, not yet looked up. Raises InputError for text that is no key=value list.

    >>> parse_only(["mask=full|causal,kernel=sdpa", "kernel=flex"])
    {'mask': ('full', 'causal'), 'kernel': ('sdpa', 'flex')}
    """
    wanted: dict[str, tuple[str, ...]] = {}
    for text in texts:
        for part in text.split(","):
            key, equals, values = (piece.strip() for piece in part.partition("="))
            held = tuple(value.strip() for value in values.split("|"))
            if not equals or not key or not all(held):
                raise InputError(f"--only: got {part.strip()!r}; allowed: key=value[|value..][,key=value..]")
            if key not in _READ:
                raise InputError(f"--only: unknown key {key!r}{nearest(key, KEYS)}; allowed: {', '.join(KEYS)}")
            wanted[key] = tuple(dict.fromkeys((*wanted.get(key, ()), *held)))
    return wanted


def select(cases: Iterable[Case], wanted: Mapping[str, Iterable[str]]) -> tuple[Case, ...]:
    """The cases that `wanted` (as `parse_only` gives it) means, in their order; all of them when it is empty.

    Raises InputError for a value that no case has, with the nearest one, and when no case has the combination.
    """
    held = tuple(cases)
    chosen = held
    for key, texts in wanted.items():
        read = _READ[key]
        known = dict.fromkeys(map(read, held))
        values = {_value(key, text, known) for text in texts}
        chosen = tuple(case for case in chosen if read(case) in values)
    if wanted and not chosen:
        asked = ",".join(f"{key}={'|'.join(texts)}" for key, texts in wanted.items())
        raise InputError(f"--only {asked}: no case has all of this; each value is there alone")
    return chosen


def _value(key: str, text: str, known: Mapping[Any, None]) -> Any:
    spelled = {_spelling(value): value for value in known}
    if text in spelled:
        return spelled[text]
    if any(isinstance(value, int) for value in known):
        try:
            count = parse_count(text)
        except InputError as error:
            raise InputError(f"--only: {key}: {error}") from None
        if count in known:
            return count
    names = [name for name, value in spelled.items() if value is not None]
    allowed = [", ".join(names[:20]) + (", ..." if len(names) > 20 else "")] if names else []
    allowed += [f"{key}=none, which means cases {_WITHOUT[key]}"] if None in known else []
    raise InputError(f"--only: no case has {key}={text}{nearest(text, spelled)}; allowed: {'; or '.join(allowed)}")


def _spelling(value: Any) -> str:
    return "none" if value is None else str(value)
