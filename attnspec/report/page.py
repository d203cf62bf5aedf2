"""The page of one or more runs: figures as PNG and SVG, and one plain HTML file that shows them beside the cases."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from attnspec import plugins
from attnspec.drawing.look import PASS_TITLES, Drawing, Row, implementation, mask_title
from attnspec.report.run import open_run
from attnspec.units import format_count

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
figure { margin: 2rem 0; } figure img { max-width: 100%; height: auto; background: white; border-radius: 4px; }
figcaption, .quiet { color: GrayText; font-size: 0.9rem; }
table { border-collapse: collapse; font-size: 0.85rem; display: block; overflow-x: auto; }
th, td { padding: 0.25rem 0.6rem; text-align: left; }
tr { border-bottom: 1px solid color-mix(in srgb, GrayText 30%, transparent); }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
"""


def write_report(run_dirs: Sequence[Path], out_dir: Path) -> Path:
    """Draw every figure that applies to the runs' cells and write `index.html`; returns its path.

    Raises InputError for a folder that is not a run folder.
    """
    cells = pa.concat_tables([open_run(run_dir).cells for run_dir in run_dirs])
    figures = out_dir / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    drawings = [one for name in plugins.names("figures") for one in plugins.load("figures", name).drawings(cells)]
    for drawing in drawings:
        save(drawing, figures)
    page = out_dir / "index.html"
    page.write_text(_page(cells.to_pylist(), drawings, [path.name for path in run_dirs]), encoding="utf-8")
    return page


def save(drawing: Drawing, folder: Path) -> None:
    """Write one drawing as PNG (200 dpi) and SVG; the SVG's text stays text and its ids are the same every time."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": drawing.stem, "hatch.linewidth": 0.6}):
        figure = drawing.draw()
        figure.savefig(folder / f"{drawing.stem}.png", dpi=200)
        figure.savefig(folder / f"{drawing.stem}.svg", metadata={"Date": None})


def _page(rows: Sequence[Row], drawings: Sequence[Drawing], names: Sequence[str]) -> str:
    title = html.escape(", ".join(names))
    counts = Counter(row["status"] for row in rows)
    verdict = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    body = [f"<h1>{title}</h1>", f"<p>{len(rows)} cases: {html.escape(verdict)}.</p>"]
    for drawing in drawings:
        stem, text = html.escape(drawing.stem), html.escape(drawing.caption)
        body.append(
            f'<figure><img src="figures/{stem}.svg" alt="{text}" loading="lazy"><figcaption>{text} '
            f'<a href="figures/{stem}.svg">SVG</a>, <a href="figures/{stem}.png">PNG</a></figcaption></figure>'
        )
    body.append(_table(rows))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>\n'
        "<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _table(rows: Sequence[Row]) -> str:
    head = (
        "implementation",
        "mask",
        "seqlen",
        "cp_size",
        "pass",
        "status",
        "ms",
        "TFLOP/s",
        "95 % interval",
        "error / bound",
        "reason",
    )
    lines = []
    for row in rows:
        ok = row["status"] == "ok"
        cells = (
            (implementation(row), False),
            (mask_title(row["mask"], row["mask_params"]), False),
            (format_count(row["seqlen"]), True),
            (str(row["cp_size"]), True),
            (PASS_TITLES[row["pass"]], False),
            (row["status"], False),
            (f"{row['time_ms_median']:.4g}" if ok else "", True),
            (f"{row['tflops']:.4g}" if ok else "", True),
            (f"{row['tflops_ci_low']:.4g} to {row['tflops_ci_high']:.4g}" if ok else "", True),
            (_verified(row), True),
            (row["reason"] or "", False),
        )
        filled = "".join(
            f'<td class="number">{html.escape(text)}</td>' if number else f"<td>{html.escape(text)}</td>"
            for text, number in cells
        )
        lines.append(f"<tr>{filled}</tr>")
    header = "".join(f'<th scope="col">{name}</th>' for name in head)
    return f"<h2>Cases</h2>\n<table><thead><tr>{header}</tr></thead><tbody>\n{chr(10).join(lines)}\n</tbody></table>"


def _verified(row: Row) -> str:
    if row["verified_error"] is None or row["verified_bound"] is None:
        return ""
    return f"{row['verified_error']:.3g} / {row['verified_bound']:.3g}"
