"""The algebra of AttnSlices: table, checks, area, rows as intervals, clipping, dense picture."""

from attnspec.slices.arrow import from_arrow, to_arrow
from attnspec.slices.checks import check
from attnspec.slices.clipping import clip
from attnspec.slices.dense import dense
from attnspec.slices.edges import Edges, edges
from attnspec.slices.intervals import RowIntervals, row_intervals
from attnspec.slices.measure import area, row_counts
from attnspec.slices.merging import merge
from attnspec.slices.table import AttnSlices, SliceType

__all__ = [
    "AttnSlices",
    "Edges",
    "RowIntervals",
    "SliceType",
    "area",
    "check",
    "clip",
    "dense",
    "edges",
    "from_arrow",
    "merge",
    "row_counts",
    "row_intervals",
    "to_arrow",
]
