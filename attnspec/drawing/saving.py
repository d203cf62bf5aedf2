"""Writing a drawing as PNG and SVG."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from attnspec.drawing.cases import plain
from attnspec.drawing.look import Drawing

_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text
    "hatch.linewidth": 0.5,
    "text.parse_math": False,  # a dollar sign in somebody's name is no formula
    "axes.unicode_minus": False,
}
_DPI = 200
_COMPRESSION = 3
"""Of PNG, 0 to 9: a tenth larger than matplotlib would make it, and several times quicker."""


def save(drawing: Drawing, folder: Path) -> None:
    """Write one drawing as PNG (200 dpi) and SVG, with its title and caption; the SVG's ids are the same every time."""
    import matplotlib as mpl

    settings: Any = {**_SETTINGS, "svg.hashsalt": drawing.stem}
    with mpl.rc_context(settings), warnings.catch_warnings():
        # A sign that the font lacks is drawn as a box in the PNG; the SVG's reader may have it.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure = drawing.draw()
        said: dict[str, Any] = {"Title": plain(drawing.title), "Description": plain(drawing.caption)}
        figure.savefig(
            folder / f"{drawing.stem}.png", dpi=_DPI, metadata=said, pil_kwargs={"compress_level": _COMPRESSION}
        )
        figure.savefig(folder / f"{drawing.stem}.svg", metadata={**said, "Date": None})
