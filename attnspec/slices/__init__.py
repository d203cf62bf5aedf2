"""The algebra of AttnSlices: table, checks, area, rows as intervals, clipping, dense picture."""

from attnspec.slices.table import AttnSlices, SliceType

__all__ = ["AttnSlices", "SliceType"]
