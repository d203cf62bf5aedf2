"""Why cases of one implementation did not end ok, each kind of reason once. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_ALLOCATION = re.compile(r"(?P<what>.*?out of memory\. Tried to allocate) (?P<size>[\d.]+) (?P<unit>[KMGT]?i?B)\b")
"""How torch's message begins; what follows (what is free, what is in use) differs from case to case."""


def reasons_told(reasons: Iterable[str | None]) -> str:
    """Each kind of reason once, by its first line, the most frequent first; with counts where there are several.

    Allocations that failed are one kind, with their sizes.

    >>> reasons_told(["no mask\\nmore", "no mask"]), reasons_told(["no mask", "no dropout", "no mask", None])
    ('no mask', 'no mask (2 x); no dropout (1 x); no reason given (1 x)')
    >>> message = "CUDA out of memory. Tried to allocate {} GiB. GPU 0 has {} GiB free."
    >>> reasons_told([message.format("16.00", 7), message.format("0.50", 2), message.format("16.00", 6)])
    'CUDA out of memory. Tried to allocate 16 GiB (2 x), 0.5 GiB (1 x)'
    """
    kinds: dict[str, Counter[str]] = {}
    for reason in reasons:
        what, size = kind_of(reason)
        kinds.setdefault(what, Counter())[size] += 1
    several = sum(map(len, kinds.values())) > 1
    order = sorted(kinds.items(), key=lambda item: -item[1].total())
    return "; ".join(f"{what} {_sizes(sizes, several)}".rstrip() for what, sizes in order)


def first_line(reason: str | None) -> str:
    """Of a reason that may have several, or none.

    >>> first_line(" out of memory\\nat 0x0"), first_line(None)
    ('out of memory', '')
    """
    return next(iter((reason or "").strip().splitlines()), "")


def kind_of(reason: str | None) -> tuple[str, str]:
    """What happened, and the size that was asked for where it is an allocation."""
    first = first_line(reason)
    found = _ALLOCATION.match(first)
    if found is None:
        return first or "no reason given", ""
    return found["what"], f"{float(found['size']):g} {found['unit']}"


def _sizes(sizes: Counter[str], counted: bool) -> str:
    return ", ".join(f"{size} ({count} x)".lstrip() if counted else size for size, count in sizes.most_common())
