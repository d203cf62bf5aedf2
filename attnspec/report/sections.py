"""The parts of the page that stand without any script: overview, verdicts, published results, provenance, pictures.

Every text that comes from a run, a spec or a library is escaped here; nothing else writes it into HTML.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Sequence

from attnspec.drawing.cases import plain
from attnspec.drawing.look import STATUS_MARKS, Drawing, Row
from attnspec.drawing.page_numbering import is_page_shape, page_figure
from attnspec.drawing.throughput import shape_text
from attnspec.launch.known_devices import known_device
from attnspec.report.beside_published import Pair, disagreements, place_text, ratio_text, shared_differences, summary
from attnspec.report.run_facts import RunFacts
from attnspec.report.skew import Skew
from attnspec.report.standings import Standing, clock_moved, doubts, standings
from attnspec.report.verdicts import Verdict, absences, shaky

_LEVEL_TITLES = {"kernel": "Kernels", "distributed": "Context parallelism"}
_REASON_CHARS = 400
_ABSENCES_SHOWN, _SHAKY_SHOWN, _WINNERS_SHOWN = 12, 8, 8
_PAIR_COLUMNS = ("implementation", "mask, pass, size", "figure", "measured", "published", "ratio", "in words")
_SKEW_COLUMNS = ("implementation", "mask, pass, size", "time, ms", "skew, ms", "share of the time")
_STATUS_WORDS = {
    "unsupported": "unsupported",
    "oom": "out of memory",
    "wrong": "wrong result",
    "timeout": "timed out",
    "crashed": "crashed",
    "error": "error",
    "skipped": "not run",
}


def text(value: object) -> str:
    """Anything as HTML text that is safe in elements and in attributes."""
    return html.escape(plain(str(value)))


def rehearsals(runs: Sequence[RunFacts]) -> str:
    """What the page says first where some of its runs are rehearsals; nothing where none is."""
    names = [run.name for run in runs if run.rehearsed]
    if not names:
        return ""
    if len(names) < len(runs):
        who = f"{', '.join(names)} {'is a rehearsal' if len(names) == 1 else 'are rehearsals'}"
        winners = "winners are named among the other runs alone"
    else:
        who = "This is a rehearsal" if len(names) == 1 else "These are rehearsals"
        winners = "no winners are named"
    what = "the spec was shrunk until all of it runs on the CPU, on 4 ranks at most, so the times say nothing"
    return f'<p class="note" id="rehearsal"><b>{text(who)}</b>: {what}. They are left out here, and {winners}.</p>'


def overview(rows: Sequence[Row]) -> str:
    """Counts, who wins most, what did not run and why, what is to be read with care. Rehearsals win nothing."""
    timed = [row for row in rows if not row["rehearsed"]]
    judged = bool(timed) or not rows
    counts = Counter(row["status"] for row in rows)
    ran = len(rows) - counts["skipped"]
    devices = list(dict.fromkeys(row["device"] for row in rows))
    labels = {row["label"] for row in rows if row["status"] != "skipped"}
    unstable = shaky(timed)
    left_out = f"; {counts['skipped']:,} more left out" if counts["skipped"] else ""
    tiles = [
        (f"{counts['ok']:,}", "cases ok", f"of {ran:,}{left_out}"),
        (f"{ran - counts['ok']:,}", "with a mark", _statuses(counts)),
        (f"{len(unstable):,}", "to read with care", "wide interval or none, or a clock that moved"),
        (f"{len(labels):,}", "implementations", ", ".join(devices[:3]) + (" ..." if len(devices) > 3 else "")),
    ]
    cards = "".join(
        f'<div class="tile"><b>{text(number)}</b><span>{text(name)}</span><small>{text(note)}</small></div>'
        for number, name, note in tiles
        if judged or name != "to read with care"
    )
    told = _unstable(unstable, sum(row["status"] == "ok" for row in timed)) if judged else ""
    return (
        f'<section id="overview" aria-labelledby="overview-title"><h2 id="overview-title">At a glance</h2>'
        f'<div class="tiles">{cards}</div>{_winners(timed) if judged else ""}'
        f'<div class="columns">{_absences(rows)}{told}</div></section>'
    )


def _statuses(counts: Counter[str]) -> str:
    marked = {status: word for status, word in _STATUS_WORDS.items() if counts[status] and status != "skipped"}
    told = [f"{counts[status]:,} {word}" for status, word in marked.items()]
    return ", ".join(told) or "none"


def _winners(rows: Sequence[Row]) -> str:
    """Wins by implementation for each device and level, as a sentence each."""
    places: dict[tuple[str, str, str], list[Standing]] = {}
    for place in standings(rows):
        first = place.rows[0]
        places.setdefault((first["device"], first["level"], shape_text(first)), []).append(place)
    several = len({shape for _, _, shape in places}) > 1
    lines = []
    for (device, level, shape), held in places.items():
        raced = [place for place in held if len(place.ranked) > 1]
        wins = Counter(place.ranked[0]["label"] for place in raced if not place.tied)
        ties = sum(place.tied for place in raced)
        if not raced:
            told = "no workload has two implementations that are ok, so nothing can be compared"
        else:
            parts = [f"{label} on {count}" for label, count in wins.most_common(_WINNERS_SHOWN)]
            parts[:1] = [f"{label} is fastest on {count}" for label, count in wins.most_common(1)]
            others = sum(count for _, count in wins.most_common()[_WINNERS_SHOWN:])
            parts += [f"others on {others}"] if others else []
            parts += [f"{ties} {'is' if ties == 1 else 'are'} too close to call"] if ties else []
            workloads = "1 workload" if len(raced) == 1 else f"{len(raced)} workloads"
            told = f"of {workloads} that can be compared, {', '.join(parts)}"
        where = [device, _LEVEL_TITLES.get(level, level).lower(), *([shape] if several else [])]
        lines.append(f"<li><b>{text(', '.join(where))}</b>: {text(told)}.</li>")
    return f'<div class="lead">{_folded(lines, 6)}</div>' if lines else "<p>No case of these runs was run.</p>"


def _absences(rows: Sequence[Row]) -> str:
    found = absences(rows)
    if not found:
        return '<div><h3>Marked X</h3><p class="quiet">None: every case that ran is ok.</p></div>'
    items = [
        f"<li>{_mark(one.status)} <b>{text(one.label)}</b>, {one.count} {'case' if one.count == 1 else 'cases'}, "
        f"{text(_STATUS_WORDS.get(one.status, one.status))}: {text(_cut(one.reason or one.code))}</li>"
        for one in found
    ]
    return f"<div><h3>Marked X, and why</h3>{_folded(items, _ABSENCES_SHOWN)}</div>"


def _cut(reason: str) -> str:
    return reason if len(reason) <= _REASON_CHARS else f"{reason[:_REASON_CHARS]} ... (whole in cells.parquet)"


def _only_clock_moved(row: Row) -> bool:
    return clock_moved(row) and len(doubts(row)) == 1


def _unstable(found: Sequence[tuple[Row, str]], num_ok: int) -> str:
    if not found:
        why = "Nothing: intervals are narrow, clocks were steady." if num_ok else "Nothing was timed."
        return f'<div><h3>To read with care</h3><p class="quiet">{why}</p></div>'
    spreads = [row["clock_spread"] for row, _ in found if _only_clock_moved(row)]
    items = []
    if spreads:
        cases = "1 case" if len(spreads) == 1 else f"{len(spreads)} cases"
        items.append(f"<li>{cases} whose SM clock moved, by up to {max(spreads):.0%}, and nothing else.</li>")
    items += [
        f"<li><b>{text(row['label'])}</b>, {text(place_text(row))}: {text(why)}.</li>"
        for row, why in found
        if not _only_clock_moved(row)
    ]
    return f"<div><h3>To read with care</h3>{_folded(items, _SHAKY_SHOWN)}</div>"


def _folded(items: Sequence[str], shown: int) -> str:
    more = f"<details><summary>{len(items) - shown} more</summary><ul>{''.join(items[shown:])}</ul></details>"
    return f"<ul>{''.join(items[:shown])}</ul>{more if len(items) > shown else ''}"


def _mark(status: str) -> str:
    return f'<span class="mark {text(status)}" aria-hidden="true">{text(STATUS_MARKS.get(status, "?"))}</span>'


def groups(found: Sequence[Verdict]) -> str:
    """One card a verdict; scripts put the chart in."""
    cards = []
    for index, verdict in enumerate(found):
        row = verdict.rows[0]
        number = page_figure(row["level"], known_device(row["device"]), row["mask"], row["mask_params"], row["pass"])
        like = f'<span class="badge quiet">published figure {number}</span>' if number and is_page_shape(row) else ""
        cards.append(
            f'<article class="card" data-group="{index}" aria-labelledby="group-{index}">'
            f'<h3 id="group-{index}">{text(verdict.heading)}</h3><p class="badges"><span class="badge">'
            f'{text(row["device"])}</span><span class="badge quiet">{text(shape_text(row))}</span>{like}</p>'
            f"<p>{text(verdict.text)}</p>"
            f'<div class="legend"></div><div class="chart" role="img" aria-label="{text(verdict.heading)}: '
            f'{text(verdict.text)}"></div><p class="tools"><button type="button" class="numbers" aria-expanded="false">'
            "Numbers</button></p></article>"
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def beside_published(pairs: Sequence[Pair]) -> str:
    """Measured over published: a sentence, where they differ and what is different, and a table of all pairs."""
    told = disagreements(pairs)
    shared = shared_differences(told)
    both = f"<p>Different in all of these: {text('; '.join(shared))}.</p>" if shared else ""
    items = []
    for one in told:
        own = [part for part in one.differs if part not in shared]
        nothing = "" if shared else ' <span class="quiet">Different: nothing that is known, beside the versions.</span>'
        what = f' <span class="quiet">Different: {text("; ".join(own))}.</span>' if own else nothing
        items.append(f"<li><b>{text(one.heading)}</b>: {text(one.text)}.{what}</li>")
    where = f"<h3>Where they differ by more than 10 percent</h3>{both}{_folded(items, 40)}" if items else ""
    lines = "".join(_pair(pair) for pair in pairs)
    head = "".join(f"<th scope=col>{name}</th>" for name in _PAIR_COLUMNS)
    table = (
        '<div class="scroll" tabindex="0" role="region" aria-label="Measured and published"><table class="published">'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )
    folded = f"<details><summary>All {len(pairs)} pairs</summary>{table}</details>" if pairs else ""
    return (
        '<section id="published" aria-labelledby="published-title"><h2 id="published-title">Beside the published page'
        f"</h2><p>{text(summary(pairs))} Published values are read off the page's figures, to about half a TFLOP/s.</p>"
        f"{where}{folded}</section>"
    )


def _pair(pair: Pair) -> str:
    row, point = pair.measured, pair.published
    amounts = ["" if value is None else f"{value:.4g}" for value in (row["tflops_per_gpu"], point["tflops_per_gpu"])]
    ratio = "" if pair.ratio is None else ratio_text(pair.ratio)
    return (
        f"<tr{' class=notable' if pair.notable else ''}><td>{text(row['label'])}<td>{text(place_text(row))}"
        f"<td class=n>{point['figure']}<td class=n>{amounts[0]}<td class=n>{amounts[1] or 'X'}<td class=n>{ratio}"
        f"<td>{text(pair.text)}</tr>"
    )


def skews(found: Sequence[tuple[Row, Skew]]) -> str:
    """How far apart the ranks of an iteration end, the widest share first; nothing where no case has several ranks."""
    if not found:
        return ""
    lines = "".join(
        f"<tr><td>{text(row['label'])}<td>{text(place_text(row))}<td class=n>{row['time_ms_median']:.4g}"
        f"<td class=n>{skew.skew_ms:.3g}<td class=n>{100 * skew.share:.2g}%</tr>"
        for row, skew in sorted(found, key=lambda one: -one[1].share)
    )
    head = "".join(f"<th scope=col>{name}</th>" for name in _SKEW_COLUMNS)
    return (
        '<section id="skew" aria-labelledby="skew-title"><h2 id="skew-title">Rank skew</h2><p>How far apart the ranks '
        "of an iteration end, which begin together: the slowest rank's time less the quickest's, the median over "
        "iterations, the mean over packs. A rank's time holds what it waits for others.</p>"
        f"<details><summary>{'1 case' if len(found) == 1 else f'{len(found):,} cases'} of several ranks</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Rank skew"><table class="published"><thead><tr>'
        f"{head}</tr></thead><tbody>{lines}</tbody></table></div></details></section>"
    )


def provenance(runs: Sequence[RunFacts], rows: Iterable[Row]) -> str:
    """What ran, with which code, where: the facts of each run, its whole record, and the peaks of its devices."""
    parts = []
    for run in runs:
        facts = "".join(f"<tr><th scope=row>{text(name)}</th><td>{text(value)}</td></tr>" for name, value in run.facts)
        links = "".join(f' <a href="{text(target)}">{text(name)}</a>' for name, target in run.links)
        parts.append(
            f'<article class="run"><h3>{text(run.name)}</h3><div class="scroll" tabindex="0" role="region" '
            f'aria-label="Facts of {text(run.name)}"><table class="facts"><tbody>{facts}</tbody></table></div>'
            f'<p class="quiet">Files, where the page lies beside its run:{links}</p><details>'
            f"<summary>Whole record</summary><pre>{html.escape(run.record)}</pre></details></article>"
        )
    return (
        '<section id="environment" aria-labelledby="environment-title"><h2 id="environment-title">Environment and '
        f"provenance</h2>{''.join(parts)}{peaks(rows)}</section>"
    )


def peaks(rows: Iterable[Row]) -> str:
    """Where the bf16 peak of each known device of some rows comes from."""
    known = {device.key: device for row in rows if (device := known_device(row["device"])) is not None}
    items = "".join(
        f"<li>{text(device.title)}: {device.bf16_dense_tflops:g} TFLOP/s in bfloat16 without sparsity, "
        f'{device.bandwidth_gb_s:g} GB/s of memory bandwidth (<a href="{text(device.source)}">source</a>)</li>'
        for device in known.values()
    )
    return f"<h3>Peaks</h3><ul>{items}</ul>" if items else ""


def pictures(drawings: Iterable[Drawing]) -> str:
    """The figures for papers, as links to the files beside the page."""
    items = "".join(
        f'<li><a href="figures/{text(one.stem)}.svg">SVG</a> <a href="figures/{text(one.stem)}.png">PNG</a> '
        f"{text(one.caption)}</li>"
        for one in drawings
    )
    listed = f"<ul class=pictures>{items}</ul>" if items else "<p>None of these runs has anything to draw.</p>"
    return (
        '<section id="pictures" aria-labelledby="pictures-title"><h2 id="pictures-title">Figures for papers</h2>'
        '<p class="quiet">In the folder <code>figures</code> beside this page; the page itself needs no other file.</p>'
        f"{listed}</section>"
    )
