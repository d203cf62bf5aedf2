"""A comparison for people: in a terminal, and as Markdown for a pull request."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnspec.report.comparison import Change, Comparison, Pair, Verdict
from attnspec.report.drift_notes import percent

_STYLES = {Verdict.SLOWER: "bold red", Verdict.FASTER: "bold green", Verdict.AMBIGUOUS: "yellow", Verdict.SAME: ""}
_HEADINGS = {
    Verdict.SLOWER: "slower",
    Verdict.FASTER: "faster",
    Verdict.AMBIGUOUS: "ambiguous: the interval reaches over the threshold or over no change",
}
_ORDER = (Verdict.SLOWER, Verdict.FASTER, Verdict.AMBIGUOUS, Verdict.SAME)
_WIDE = 72
"""Columns that the table needs."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0e-\x1f\x7f]")
"""Colours and other control codes of whatever wrote a message."""
_MOST_LINES = 40
"""Of ambiguous cases, environment differences: what is more stands in --json."""


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The contract's object, and what else there is to know. An interval without an end has null there."""
    return {
        "pairs": [
            {
                "case_id": pair.case_id,
                "ratio": pair.ratio.ratio,
                "ci_low": pair.ratio.low,
                "ci_high": None if pair.ratio.high == float("inf") else pair.ratio.high,
                "verdict": str(pair.verdict),
            }
            for pair in comparison.pairs
        ],
        "regressions": comparison.regressions,
        "threshold": comparison.threshold,
        "titles": {pair.case_id: pair.title for pair in comparison.pairs},
        "broken": [_change(one) for one in comparison.broken],
        "mended": [_change(one) for one in comparison.mended],
        "not_run": comparison.not_run,
        "untimed": comparison.untimed,
        "only_base": comparison.only_base,
        "only_new": comparison.only_new,
        "environment": list(comparison.environment),
        "notes": list(comparison.notes),
        "drift": {
            "low": math.exp(comparison.drift.low),
            "high": math.exp(comparison.drift.high),
            "spread": comparison.drift.spread,
            "most": comparison.drift.most(len(comparison.pairs)),
            "case_ids": [pair.case_id for pair in comparison.drowned],
        },
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "case_id": change.case_id,
        "title": change.title,
        "status": change.status,
        "reason": change.reason,
    }


def headline(comparison: Comparison) -> str:
    """How many cases came out how, on one line."""
    counts = Counter(pair.verdict for pair in comparison.pairs)
    words = {verdict: f"{counts[verdict]} {verdict}" for verdict in _ORDER if counts[verdict]}
    if comparison.drowned:
        words[Verdict.AMBIGUOUS] += f" ({len(comparison.drowned)} for the machine's drift)"
    told = list(words.values())
    told += [f"{len(comparison.broken)} no longer ok"] if comparison.broken else []
    told += [f"{len(comparison.mended)} ok now"] if comparison.mended else []
    told += [f"{comparison.untimed} ok in both"] if comparison.untimed else []
    pairs = len(comparison.pairs) + comparison.untimed
    return f"{pairs} {'case' if pairs == 1 else 'cases'} measured in both: {', '.join(told) or 'nothing to compare'}"


def rest(comparison: Comparison) -> list[str]:
    """What was left out, and what else moved the times, in sentences."""
    lines = []
    if comparison.not_run:
        lines.append(f"{_cases(comparison.not_run)} ok in one run and not run in the other")
    if comparison.only_base:
        lines.append(f"{_cases(comparison.only_base)} only in BASE")
    if comparison.only_new:
        lines.append(f"{_cases(comparison.only_new)} only in NEW")
    if comparison.drowned:
        most = 100 * comparison.drift.most(len(comparison.pairs))
        lines.append(
            f"{_cases(len(comparison.drowned))} ambiguous only because the machine itself drifted: that alone may have "
            f"changed times by up to {most:.{1 if most < 10 else 0}f} %, so slower or faster cannot be told"
        )
    return [*lines, *comparison.notes]


def terminal(comparison: Comparison, *, width: int = 160) -> Iterator[RenderableType]:
    """Tables and lines for a rich console of that many columns."""
    for verdict, heading in _HEADINGS.items():
        pairs = _sorted(comparison.pairs, verdict)
        if pairs:
            yield Text(f"\n{heading}", style=_STYLES[verdict])
            shown = pairs[:_MOST_LINES]
            yield _table(shown) if width >= _WIDE else Group(*_pair_lines(shown))
            if len(pairs) > _MOST_LINES:
                yield Text(f"  ... and {len(pairs) - _MOST_LINES} more; --json lists all", style="dim")
    for heading, style, changes in (
        ("no longer ok", "red", comparison.broken),
        ("ok now", "green", comparison.mended),
    ):
        if changes:
            yield Text(f"\n{heading}", style="bold")
            yield from (_indented(_change_line(one), style=style) for one in changes)
    if comparison.environment:
        yield Text("\nenvironment, BASE -> NEW", style="bold")
        yield from (_indented(line) for line in _cut(comparison.environment))
    yield Text("")
    yield from (Text(f"note: {line}", style="yellow") for line in rest(comparison))
    yield Text(headline(comparison), style="bold red" if comparison.regressions else "bold")


def markdown(comparison: Comparison) -> str:
    """For a pull request: the verdict, the cases that changed, the rest folded away."""
    mark = f"{comparison.regressions} regressed" if comparison.regressions else "no regression"
    lines = [f"### attnspec compare: {mark}", "", f"{headline(comparison)}. Threshold {comparison.threshold:.3g}.", ""]
    told = [pair for verdict in _ORDER[:2] for pair in _sorted(comparison.pairs, verdict)]
    if told:
        lines += [*_markdown_table(told), ""]
    for heading, changes in (("No longer ok", comparison.broken), ("Ok now", comparison.mended)):
        if changes:
            lines += [f"{heading}:", "", *(f"- {_plain(_change_line(one))}" for one in changes), ""]
    lines += [*(f"> {_plain(line)}" for line in rest(comparison)), ""] if rest(comparison) else []
    doubtful = _sorted(comparison.pairs, Verdict.AMBIGUOUS)
    if doubtful:
        lines += _folded(f"{len(doubtful)} ambiguous", _markdown_table(doubtful[:_MOST_LINES]))
    if comparison.environment:
        differing = [f"- {_plain(line)}" for line in _cut(comparison.environment)]
        count = len(comparison.environment)
        lines += _folded(f"{count} difference{'s' if count > 1 else ''} of environment, BASE -> NEW", differing)
    return "\n".join(lines).rstrip() + "\n"


def _sorted(pairs: Iterable[Pair], verdict: Verdict) -> list[Pair]:
    """The largest change first."""
    chosen = [pair for pair in pairs if pair.verdict is verdict]
    return sorted(chosen, key=lambda pair: max(pair.ratio.ratio, 1 / pair.ratio.ratio), reverse=True)


def _table(pairs: Sequence[Pair]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 0, 0, 2), header_style="dim")
    table.add_column("case", overflow="fold", ratio=1)
    for name in ("BASE ms", "NEW ms", "change of time"):
        table.add_column(name, justify="right", no_wrap=True)
    for pair in pairs:
        table.add_row(pair.title, *_times(pair), _signed(pair))
    return table


def _pair_lines(pairs: Iterable[Pair]) -> Iterator[RenderableType]:
    """For terminals too narrow for the table."""
    for pair in pairs:
        yield _indented(pair.title)
        yield _indented(_signed(pair), by=4, style="bold")


def _indented(text: str, *, by: int = 2, style: str = "") -> Padding:
    return Padding(Text(_CONTROL.sub("", text), style=style), (0, 0, 0, by), expand=False)


def _signed(pair: Pair) -> str:
    """The change with its interval, in percent."""
    middle, low, high = (f"{100 * (one - 1):+.1f}" if one < 11 else f"{100 * (one - 1):+.0f}" for one in pair.ratio)
    return f"{middle} % (no interval)" if pair.ratio.high == float("inf") else f"{middle} % ({low} to {high})"


def _markdown_table(pairs: Sequence[Pair]) -> list[str]:
    lines = ["| case | BASE ms | NEW ms | change | NEW / BASE | verdict |", "| --- | --: | --: | --: | --- | --- |"]
    for pair in pairs:
        cells = (_plain(pair.title), *_times(pair), _change_of(pair), _interval(pair), f"**{pair.verdict}**")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _folded(summary: str, lines: Sequence[str]) -> list[str]:
    return ["<details>", f"<summary>{summary}</summary>", "", *lines, "", "</details>", ""]


def _times(pair: Pair) -> tuple[str, str]:
    return f"{pair.base_ms:.4g}", f"{pair.new_ms:.4g}"


def _change_of(pair: Pair) -> str:
    return percent(pair.ratio.ratio)


def _interval(pair: Pair) -> str:
    if pair.ratio.high == float("inf"):
        return f"{pair.ratio.ratio:.3f} (one round: no interval)"
    return f"{pair.ratio.ratio:.3f} ({pair.ratio.low:.3f} to {pair.ratio.high:.3f})"


def _change_line(change: Change) -> str:
    reason = (change.reason or "").strip().splitlines()
    return f"{change.title}: {change.status}" + (f": {reason[0]}" if reason else "")


def _plain(text: str) -> str:
    """Text that Markdown shows as it stands, without a mention of a person or a link to an issue."""
    text = _CONTROL.sub("", text.replace("&", "&amp;"))
    text = re.sub(r"[\\|*_`<>\[\]~$]", r"\\\g<0>", text)
    return " ".join(re.sub(r"[@#](?=\w)", r"\g<0>&#8203;", text).split())


def _cut(lines: Sequence[str]) -> list[str]:
    left = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], f"and {left} more"] if left > 0 else list(lines)


def _cases(count: int) -> str:
    return "1 case is" if count == 1 else f"{count} cases are"
