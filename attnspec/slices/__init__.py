"""The algebra of AttnSlices: table, checks, area, rows as intervals, clipping, dense picture."""

from attnspec.slices.arrow import from_arrow, read_areas, to_arrow
from attnspec.slices.checks import check
from attnspec.slices.clipping import clip, take
from attnspec.slices.dense import dense
from attnspec.slices.edges import Edges, edges
from attnspec.slices.grid import grid_counts
from attnspec.slices.intervals import RowIntervals, joined_bands, row_intervals
from attnspec.slices.measure import area, column_counts, row_counts
from attnspec.slices.merging import merge
from attnspec.slices.ranges import from_ranges
from attnspec.slices.table import AttnSlices, SliceType

__all__ = [
    "AttnSlices",
    "Edges",
    "RowIntervals",
    "SliceType",
    "area",
    "check",
    "clip",
    "column_counts",
    "dense",
    "edges",
    "from_arrow",
    "from_ranges",
    "grid_counts",
    "joined_bands",
    "merge",
    "read_areas",
    "row_counts",
    "row_intervals",
    "take",
    "to_arrow",
]
