"""sampled_packs: document lengths of the packs that a run used, against the distribution that they were drawn from.

Figure 19 of MagiAttention's "Long-Context Attention Benchmark" page is the source alone; here it is beside the packs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnspec.drawing.cases import Cases, Packs, plain, slug
from attnspec.drawing.look import Drawing
from attnspec.drawing.page_numbering import LENGTHS_FIGURE
from attnspec.units import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawings(cases: Cases) -> list[Drawing]:
    """One drawing per distribution, for the longest packs that were drawn from it."""
    longest: dict[str, Packs] = {}
    for packs in sorted(cases.packs, key=lambda packs: packs.seqlen):
        longest[packs.lengths.name] = packs
    return [_drawing(packs) for packs in longest.values()]


def _drawing(held: Packs) -> Drawing:
    count = "1 pack" if len(held.packs) == 1 else f"{len(held.packs)} packs"
    name = plain(held.lengths.name).rpartition("/")[2]
    title = f"{name}: document lengths, and {count} of {format_count(held.seqlen)} tokens"

    def draw() -> Figure:
        from attnspec.drawing.sampled_lengths import sampled_lengths
        from attnspec.sample.documents import draw_pieces
        from attnspec.sample.histogram import found, in_packs, in_population, octaves, standard_errors

        edges = octaves(int(held.lengths.hi.max()) - 1)
        pieces = draw_pieces(held.lengths, max_length=held.max_length, seed=held.seed)
        return sampled_lengths(
            in_population(held.lengths, edges),
            in_packs(pieces, held.seqlen, edges),
            found(held.packs, edges),
            errors=standard_errors(held.packs, edges) if len(held.packs) > 1 else None,
            max_length=held.max_length,
            title=title,
            note=f"{held.lengths.num_documents:,} documents; seed {held.seed}",
        )

    page = f" Its source is figure {LENGTHS_FIGURE} of the published page." if name == "page" else ""
    return Drawing(
        stem=slug("packs", name, format_count(held.seqlen)),
        title=title,
        caption=f"Lengths of the documents in {count} of {format_count(held.seqlen)} tokens, against the distribution "
        f"{name} that they were drawn from: shares of documents and of tokens.{page}",
        draw=draw,
    )
