"""Sampling: from a distribution of document lengths to packs of exactly the wanted seqlen."""

from attnspec.sample.artifact import read_packs, write_packs
from attnspec.sample.lengths import Lengths
from attnspec.sample.packs import draw_packs
from attnspec.sample.reading import read_lengths, shipped_names

__all__ = ["Lengths", "draw_packs", "read_lengths", "read_packs", "shipped_names", "write_packs"]
