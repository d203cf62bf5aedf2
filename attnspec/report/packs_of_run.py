"""The packs that a run drew, read back from its artifacts, with the distribution that they came from."""

from __future__ import annotations

from collections.abc import Iterator

from attnspec.drawing.cases import Packs
from attnspec.errors import AttnspecError
from attnspec.plan.requests import packs_path
from attnspec.report.run import OpenedRun
from attnspec.sample.artifact import read_packs
from attnspec.sample.packs import max_piece
from attnspec.sample.reading import read_lengths


def packs_of_run(name: str, run: OpenedRun) -> tuple[list[Packs], str | None]:
    """The packs of every sample whose artifact is still there, and why there are none where they cannot be read.

    A run folder of tables alone has none. What was measured can be reported without packs: damage is told, not raised.
    """
    if not run.folder.spec.is_file():
        return [], None
    try:
        return list(_read(name, run)), None
    except AttnspecError as error:
        return [], str(error)


def _read(name: str, run: OpenedRun) -> Iterator[Packs]:
    for node in run.plan.samples.values():
        path = run.path / packs_path(node.sample_id)
        if node.lengths is not None and path.is_file():
            assert node.max_doc_fraction is not None and node.seed is not None
            yield Packs(
                run=name,
                lengths=read_lengths(node.lengths),
                seqlen=node.seqlen,
                max_length=max_piece(node.seqlen, node.max_doc_fraction),
                seed=node.seed,
                packs=read_packs(path),
            )
