"""The graph of a plan drawn by stage as SVG: groups as cards, cases as ribbons between them. Pure text, no plotting.

The width of a ribbon is a number of cases. Ribbons take the colour of their mask; cases that cannot run are grey.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from attnspec.plan.graph import count_nodes
from attnspec.plan.model import Plan
from attnspec.plan.stages import STAGES, Group, Stages, collapse, span
from attnspec.units import counted

_FONT = "font-family=\"Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif\""
_INK, _SOFT, _GREY, _LINE = "#1c2430", "#5d6b7c", "#b4bcc6", "#d7dde5"
_PLAIN = "#7d8b9c"
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C6D1F", "#6A51A3")
_MARGIN, _TOP, _GAP, _CARD_MIN, _BETWEEN = 36, 118, 12, 46, 150
_STACK = 380
_LABEL_PX, _NOTE_PX = 7.2, 6.1
_EXPLAINED = {
    "sample": "documents into packs",
    "mask": "packs to slices",
    "run": "cases on the runner",
    "collect": "one row a case",
}


@dataclass(slots=True, kw_only=True)
class _Card:
    """A placed group. `left_used` and `right_used` are how far ribbons fill its sides, from the top of their stack."""

    group: Group
    x: float
    y: float
    width: float
    height: float
    colour: str
    note: str
    left_used: float = 0.0
    right_used: float = 0.0


def draw_stages(plan: Plan) -> str:
    """The whole picture of a plan as one SVG document."""
    stages = collapse(plan)
    columns, scale, bottom = _place(plan, stages)
    width = columns["collect"][0].x + columns["collect"][0].width + _MARGIN
    height = bottom + _MARGIN + 18
    parts = [
        _open(width, height),
        f"<title>{escape(plan.name)}: sample, mask, run, collect</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        *_heading(plan, columns),
        *_ribbons(stages, columns, scale),
        *(line for stage in STAGES for card in columns[stage] for line in _card(card, scale)),
        *_legend(plan, height),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _open(width: float, height: float) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {_FONT}>'


def _place(plan: Plan, stages: Stages) -> tuple[dict[str, list[_Card]], float, float]:
    """Cards by stage, pixels per case, and the lowest edge. The fullest column sets the height; others are centred."""
    scale = _STACK / max(len(plan.cases), 1)
    heights = {
        stage: [max(_CARD_MIN, group.cases * scale) for group in groups] for stage, groups in stages.groups.items()
    }
    tallest = max(sum(column) + _GAP * (len(column) - 1) for column in heights.values())
    columns: dict[str, list[_Card]] = {}
    x = float(_MARGIN)
    for stage in STAGES:
        notes = [_note(stage, group) for group in stages.groups[stage]]
        widest = max(
            max(len(group.label) * _LABEL_PX, len(note) * _NOTE_PX)
            for group, note in zip(stages.groups[stage], notes, strict=True)
        )
        width = max(widest + 34, len(_EXPLAINED[stage]) * _NOTE_PX + 10)
        y = _TOP + (tallest - sum(heights[stage]) - _GAP * (len(heights[stage]) - 1)) / 2
        columns[stage] = []
        for index, group in enumerate(stages.groups[stage]):
            columns[stage].append(
                _Card(
                    group=group,
                    x=x,
                    y=y,
                    width=width,
                    height=heights[stage][index],
                    colour=_COLOURS[index % len(_COLOURS)] if stage == "mask" else _PLAIN,
                    note=notes[index],
                )
            )
            y += heights[stage][index] + _GAP
        x += width + _BETWEEN
    return columns, scale, _TOP + tallest


def _note(stage: str, group: Group) -> str:
    if stage == "sample":
        return counted(len(group.nodes), "node")
    if stage == "mask":
        return " · ".join((*group.details, span(list(group.notes))))
    cases = counted(group.cases, "case" if stage == "run" else "row")
    if stage == "run":
        ranks = f" · cp {span(list(group.notes))}" if group.notes else ""
        refused = f" · {group.unsupported:,} unsupported" if group.unsupported else ""
        return cases + ranks + refused
    return cases


def _heading(plan: Plan, columns: dict[str, list[_Card]]) -> Iterator[str]:
    facts = [counted(len(plan.cases), "case"), counted(len(plan.jobs), "job"), f"runner {plan.runner}"]
    if plan.unsupported:
        facts.insert(1, f"{len(plan.unsupported):,} unsupported")
    yield _text(_MARGIN, 42, plan.name, size=20, weight=650)
    yield _text(_MARGIN, 63, " · ".join(facts), size=12.5, colour=_SOFT)
    counts = count_nodes(plan)
    for stage in STAGES:
        x = columns[stage][0].x
        yield _text(x, 94, stage, size=13, weight=650, beside=f"{counts[stage]:,}")
        yield _text(x, 108, _EXPLAINED[stage], size=10.5, colour=_SOFT)


def _ribbons(stages: Stages, columns: dict[str, list[_Card]], scale: float) -> Iterator[str]:
    for stage, following in pairwise(STAGES):
        flows = sorted((*ends, *counts) for (at, *ends), counts in stages.flows.items() if at == stage)
        tops: dict[tuple[int, int, bool], float] = {}
        for source, target, cases, refused in sorted(flows, key=lambda flow: (flow[1], flow[0])):
            for grey, count in _shares(stage, cases, refused):
                card = columns[following][target]
                tops[source, target, grey] = _stack_top(card, scale) + card.left_used
                card.left_used += count * scale
        for source, target, cases, refused in flows:
            for grey, count in _shares(stage, cases, refused):
                start, end = columns[stage][source], columns[following][target]
                top = _stack_top(start, scale) + start.right_used
                start.right_used += count * scale
                if count:
                    colour = _GREY if grey else _flow_colour(stage, start, end)
                    words = f"{start.group.label} to {end.group.label}: {counted(count, 'case')}"
                    title = f"{words}{', unsupported' if grey else ''}"
                    x = start.x + start.width
                    yield _ribbon(x, top, end.x, tops[source, target, grey], count * scale, colour, title)


def _shares(stage: str, cases: int, refused: int) -> tuple[tuple[bool, int], ...]:
    """(grey, cases) of a flow's two strands. Masks are made for all cases, so nothing is grey before them."""
    return ((False, cases),) if stage == "sample" else ((False, cases - refused), (True, refused))


def _flow_colour(stage: str, start: _Card, end: _Card) -> str:
    return {"sample": end.colour, "mask": start.colour, "run": _PLAIN}[stage]


def _stack_top(card: _Card, scale: float) -> float:
    return card.y + (card.height - card.group.cases * scale) / 2


def _ribbon(x0: float, y0: float, x1: float, y1: float, thickness: float, colour: str, title: str) -> str:
    middle = (x0 + x1) / 2
    low0, low1 = y0 + thickness, y1 + thickness
    path = (
        f"M{x0:.1f},{y0:.2f} C{middle:.1f},{y0:.2f} {middle:.1f},{y1:.2f} {x1:.1f},{y1:.2f} "
        f"L{x1:.1f},{low1:.2f} C{middle:.1f},{low1:.2f} {middle:.1f},{low0:.2f} {x0:.1f},{low0:.2f} Z"
    )
    return f'<path d="{path}" fill="{colour}" fill-opacity="0.34"><title>{escape(title)}</title></path>'


def _card(card: _Card, scale: float) -> Iterator[str]:
    x, y = card.x, card.y
    yield (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{card.width:.1f}" height="{card.height:.1f}" rx="7" '
        f'fill="#ffffff" stroke="{_LINE}"/>'
    )
    yield f'<rect x="{x:.1f}" y="{y + 7:.1f}" width="4" height="{card.height - 14:.1f}" fill="{card.colour}"/>'
    middle = y + card.height / 2
    yield _text(x + 17, middle - 3, card.group.label, size=12.5, weight=600)
    yield _text(x + 17, middle + 13, card.note, size=11, colour=_SOFT)


def _legend(plan: Plan, height: float) -> Iterator[str]:
    x, y = _MARGIN, height - 20
    if plan.unsupported:
        yield f'<rect x="{x}" y="{y - 9:.0f}" width="16" height="10" fill="{_GREY}" fill-opacity="0.5"/>'
        yield _text(x + 22, y, "unsupported", size=10.5, colour=_SOFT)
        x += 110
    yield _text(x, y, "Width: number of cases. Colour: mask.", size=10.5, colour=_SOFT)


def _text(
    x: float, y: float, text: str, *, size: float, weight: int = 400, colour: str = _INK, beside: str = ""
) -> str:
    """One line of text; `beside` follows it, softer."""
    more = f'<tspan dx="8" font-weight="400" fill="{_SOFT}">{escape(beside)}</tspan>' if beside else ""
    style = f'font-size="{size}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}{more}</text>'
