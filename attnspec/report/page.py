"""The report of one or more runs: figures as PNG and SVG, and one HTML file that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attnspec import plugins
from attnspec.drawing.cases import Cases, cases_of
from attnspec.drawing.look import Drawing
from attnspec.drawing.saving import save
from attnspec.launch.rehearsal import is_rehearsal
from attnspec.record.whole_file import replacing
from attnspec.report import sections
from attnspec.report.beside_published import pairs
from attnspec.report.clock_spread import clock_spread_by_case
from attnspec.report.packs_of_run import packs_of_run
from attnspec.report.payload import payload, script_json
from attnspec.report.published import published
from attnspec.report.run import open_run
from attnspec.report.run_facts import RunFacts, run_facts
from attnspec.report.samples import Series, series_by_case, thinned
from attnspec.report.skew import Skew, skew_by_case
from attnspec.report.verdicts import verdicts

_HERE = Path(__file__).parent
_SCRIPTS = ("data", "theme", "looks", "tooltip", "bars", "spread", "matrix", "filters", "table", "details", "main")
_LIBRARY = _HERE / "vendor" / "echarts" / "echarts.min.js"


def write_report(run_dirs: Sequence[Path], out_dir: Path, *, with_published: bool = False) -> Path:
    """Write `index.html` and draw every figure of the runs' cases beside it; returns the page's path.

    Of rehearsals there are cases and packs, but neither times nor what is drawn or told from these.
    with_published: set the published page's points beside those that match. Raises InputError for a folder that is no
    run folder, OSError where something cannot be written.
    """
    runs = [(name, open_run(run_dir)) for name, run_dir in _named(run_dirs)]
    packs = {name: packs_of_run(name, run) for name, run in runs}
    cases = cases_of(
        [(name, run.cells) for name, run in runs],
        published=published().to_pylist() if with_published else (),
        packs=[one for held, _ in packs.values() for one in held],
        clock_spreads={
            (name, case_id): spread
            for name, run in runs
            for case_id, spread in clock_spread_by_case(run.timings).items()
        },
        rehearsed={name for name, run in runs if is_rehearsal(run.provenance)},
    )
    drawings = drawings_of(cases.timed)
    figures = out_dir / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    samples: dict[tuple[str, str], Series] = {}
    skews: dict[tuple[str, str], Skew] = {}
    for name, run in runs:
        samples |= {(name, case_id): series for case_id, series in series_by_case(run.timings).items()}
        skews |= {(name, case_id): skew for case_id, skew in skew_by_case(run.timings).items()}
    facts = [run_facts(name, run.place, out_dir, run.provenance, packs[name][1]) for name, run in runs]
    page = out_dir / "index.html"
    with replacing(page) as file:
        for part in page_text(cases, drawings, samples, skews, facts):
            file.write(part.encode())
    for drawing in drawings:
        save(drawing, figures)
    return page


def drawings_of(cases: Cases) -> list[Drawing]:
    """What all figure plug-ins draw of these cases, each under a file name of its own."""
    found = [one for name in plugins.names("figures") for one in plugins.load("figures", name).drawings(cases)]
    taken: dict[str, int] = {}
    made = []
    for one in found:
        taken[one.stem] = taken.get(one.stem, 0) + 1
        stem = one.stem if taken[one.stem] == 1 else f"{one.stem}_{taken[one.stem]}"
        made.append(Drawing(stem=stem, title=one.title, caption=one.caption, draw=one.draw))
    return made


def page_text(
    cases: Cases,
    drawings: Sequence[Drawing],
    samples: Mapping[tuple[str, str], Series],
    skews: Mapping[tuple[str, str], Skew],
    facts: Sequence[RunFacts],
) -> Iterator[str]:
    """The page in parts: what stands without scripts first, so that a browser shows it before it has read the rest."""
    rows, timed = cases.measured, cases.timed
    said = verdicts(timed.measured)
    beside = pairs(timed) if cases.published else []
    charts = bool(timed.measured) or not rows
    title = sections.text(", ".join(run.name for run in facts))
    yield (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title} - attnspec</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<link rel="icon" href="data:,">'
        f"<style>{_asset('page.css')}</style></head>\n<body>\n"
    )
    yield _asset("head.html").replace("{charts}", "Charts" if charts else "Filters").replace("{title}", title)
    yield sections.rehearsals(facts)
    yield sections.overview(rows)
    yield _asset("filters.html").replace("{heading}", "Who wins where" if charts else "Which cases to show")
    if charts:
        yield _asset("throughput.html")
    yield sections.groups(said)
    yield _asset("charts.html")
    if cases.published:
        yield sections.beside_published(beside)
    of_ranks = [(row, skews.get((row["run"], row["case_id"]))) for row in timed.measured if row["status"] == "ok"]
    yield sections.skews([(row, skew) for row, skew in of_ranks if skew is not None])
    yield _asset("cases.html")
    yield sections.provenance(facts, rows)
    yield sections.pictures(drawings)
    yield _asset("foot.html")
    held = thinned(None if row["rehearsed"] else samples.get((row["run"], row["case_id"])) for row in rows)
    yield f'<script type="application/json" id="payload">{script_json(payload(rows, said, beside, held))}</script>\n'
    yield f"<script>{_LIBRARY.read_text(encoding='utf-8')}</script>\n"
    scripts = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    yield f'<script>"use strict";\n(() => {{\n{scripts}\n}})();\n</script>\n</body></html>\n'


def _asset(name: str) -> str:
    return (_HERE / "assets" / name).read_text(encoding="utf-8")


def _named(run_dirs: Sequence[Path]) -> list[tuple[str, Path]]:
    """Each run by its folder's name; folders of one name by as much of their path as tells them apart."""
    parts = [path.resolve().parts for path in run_dirs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(set(parts)):
            break
    return list(dict(zip(names, run_dirs, strict=True)).items())
