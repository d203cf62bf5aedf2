"""One colour, hatch and marker per implementation, the same in every figure and on the page.

Kernels and strategies never stand in one picture, so each level has a set of its own; `cases_of` gives out the looks of
all labels of a report at once. Colours come from the palettes of
Okabe and Ito (2008) and Tol (2021) for colour-blind readers; a hatch and a marker of its own tell each name apart in
greyscale. Hatches are lines only, since a pattern of dots makes an SVG ten times as large. Variants of one
implementation (backend, provider, a strategy's kernel) are shades of its colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How one implementation appears. hatch, marker: as matplotlib names them."""

    colour: str
    hatch: str
    marker: str


_KERNELS = {
    "ffa": Look(colour="#D55E00", hatch="", marker="o"),
    "ffa_fa4": Look(colour="#C8B400", hatch="xx--", marker="8"),
    "fa2": Look(colour="#56B4E9", hatch="///", marker="s"),
    "fa3": Look(colour="#0072B2", hatch="--//", marker="D"),
    "fa4": Look(colour="#4B3FA7", hatch="\\\\\\", marker="^"),
    "cudnn": Look(colour="#009E73", hatch="xxx", marker="v"),
    "sdpa": Look(colour="#E69F00", hatch="---", marker="P"),
    "flex": Look(colour="#CC79A7", hatch="|||", marker="X"),
    "flash_mask": Look(colour="#882255", hatch="+++", marker="h"),
    "reference": Look(colour="#8A8A8A", hatch="||\\\\", marker="p"),
}
_STRATEGIES = {
    "magi_attn_a2av": Look(colour="#D55E00", hatch="", marker="o"),
    "magi_attn_native": Look(colour="#E69F00", hatch="---", marker="8"),
    "ulysses": Look(colour="#0072B2", hatch="--//", marker="D"),
    "ring_p2p": Look(colour="#009E73", hatch="xxx", marker="v"),
    "ring_allgather": Look(colour="#56B4E9", hatch="///", marker="s"),
    "usp": Look(colour="#CC79A7", hatch="|||", marker="X"),
    "loongtrain": Look(colour="#4B3FA7", hatch="\\\\\\", marker="^"),
    "hybrid_dcp": Look(colour="#882255", hatch="+++", marker="h"),
    "te_p2p": Look(colour="#117733", hatch="xx||", marker="<"),
    "te_all_gather": Look(colour="#C8B400", hatch="++//", marker=">"),
    "te_a2a": Look(colour="#44AA99", hatch="||//", marker="p"),
    "te_a2a_p2p": Look(colour="#999933", hatch="\\\\--", marker="*"),
    "ring_flash_attn_zigzag": Look(colour="#6699CC", hatch="//++", marker="P"),
    "ring_flash_attn_llama3": Look(colour="#AA4499", hatch="\\\\++", marker="d"),
    "yunchang_usp": Look(colour="#7A4B1E", hatch="////", marker="H"),
}
_NAMED = _KERNELS | _STRATEGIES
_ORDER = tuple(_NAMED)
# Names from other people's plug-ins: the colours that the level's own names use least.
_OTHERS = tuple(
    Look(colour=colour, hatch=hatch, marker=marker)
    for colour, hatch, marker in (
        ("#6699CC", "//++", "*"),
        ("#AA4499", "\\\\++", "h"),
        ("#117733", "--xx", "<"),
        ("#999933", "||xx", ">"),
        ("#7A4B1E", "////", "8"),
    )
)
_VARIANTS = {
    "": 0,
    "TRITON": 0,
    "FLASH": 1,
    "cudnn": 0,
    "flash": 1,
    "efficient": 2,
    "math": 3,
    "varlen": 0,
    "block_sparse": 1,
    "(torch)": 0,
    "(flash-attn)": 1,
    "(xformers)": 0,
    "(flash-attn-3)": 1,
    "(nvidia-cudnn-frontend)": 0,
    "(transformer-engine)": 1,
    "(fa3)": 0,
    "(cudnn)": 1,
    "(fa4)": 2,
    "(fa4 varlen)": 2,
    "(fa2)": 3,
    "(ffa)": 0,
    "(ffa_fa4)": 1,
    "(sdpa)": 0,
    "(sdpa cudnn)": 4,
    "(sdpa flash)": 5,
}
_SHADES = (0.0, 0.5, -0.4, 0.75, 0.25, -0.6)
"""How far each variant goes towards white, or (below zero) towards black."""
_MARKERS = "osD^vPX8hp<>*dH"


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """A look per label, in the order of the labels. It depends on the label alone, unless one before it has the same.

    Then it takes the next free shade: names of runs, of providers that nobody has listed, can say nothing of a colour.

    >>> [looks([label])[label].colour for label in ("fa3", "fa3 (xformers)")]
    ['#0072B2', '#0072B2']
    >>> both = looks(["fa3 (before)", "fa3 (after)"])
    >>> both["fa3 (before)"].colour == both["fa3 (after)"].colour
    False
    """
    held = list(labels)
    chosen: dict[str, Look] = {}
    taken: set[Look] = set()
    for label in sorted(set(held), key=lambda label: (_rest(label) not in _VARIANTS, label)):
        start = _variant(label)
        shades = [_shade(family_of(label), (start + step) % len(_SHADES)) for step in range(len(_SHADES))]
        chosen[label] = next((look for look in shades if look not in taken), shades[0])
        taken.add(chosen[label])
    return {label: chosen[label] for label in held}


def _rest(label: str) -> str:
    return label[len(family_of(label)) :].strip(" ,")


def _variant(label: str) -> int:
    rest = _rest(label)
    return _VARIANTS[rest] if rest in _VARIANTS else sum(map(ord, rest)) % len(_SHADES)


def _shade(family: str, variant: int) -> Look:
    base = _NAMED.get(family) or _OTHERS[sum(map(ord, family)) % len(_OTHERS)]
    if variant == 0:
        return base
    return Look(
        colour=_shaded(base.colour, _SHADES[variant]),
        hatch=base.hatch + base.hatch[:variant] if base.hatch else "/" * variant,
        marker=_MARKERS[(_MARKERS.index(base.marker) + 7 * variant) % len(_MARKERS)],
    )


def family_of(label: str) -> str:
    """The implementation's own name at the head of a label.

    >>> family_of("ulysses (fa3)"), family_of("fa2 (torch)")
    ('ulysses', 'fa2')
    """
    return label.split(" ")[0].rstrip(",")


def ordered(labels: Iterable[str]) -> list[str]:
    """Distinct labels: known names in their fixed order, then the others, each by its text.

    >>> ordered(["zeta", "sdpa", "fa3", "sdpa"])
    ['fa3', 'sdpa', 'zeta']
    """

    def key(label: str) -> tuple[int, str]:
        family = family_of(label)
        return (_ORDER.index(family) if family in _ORDER else len(_ORDER), label)

    return sorted(set(labels), key=key)


def legible(colour: str) -> str:
    """A colour dark enough for text on white.

    >>> legible("#0072B2"), legible("#F5D798")
    ('#0072B2', '#7A6C4C')
    """
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return _shaded(colour, -0.5) if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.6 else colour


def _shaded(colour: str, towards: float) -> str:
    goal = 255 if towards > 0 else 0
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(part + (goal - part) * abs(towards)):02X}" for part in parts)
