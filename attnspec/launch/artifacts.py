"""The sample and mask stages: packs and slices as files of a run folder, made where they are not there yet.

A file that is there is used again when its SHA-256 stands in `artifacts/SHA256SUMS` (the format of `sha256sum -c`) and
is right; anything else is made anew. Files are written beside and renamed, and the sums after the files they name, so
that a kill at any moment costs work and never truth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from attnspec import plugins
from attnspec.errors import JournalError
from attnspec.masks import make_slices
from attnspec.plan import MaskNode, Plan, SampleNode
from attnspec.plan.requests import packs_path, slices_path
from attnspec.record.whole_file import refused, replacing
from attnspec.sample import draw_packs, read_packs, write_packs
from attnspec.slices import area, check, from_arrow, to_arrow

SUMS = "SHA256SUMS"
Packs = list[NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What became of one node. `reused`: its file was there and right."""

    stage: str
    node_id: str
    path: str
    reused: bool


def prepare_artifacts(
    plan: Plan, run_dir: Path, *, masks: Iterable[str] | None = None, on_node: Callable[[Made], None] | None = None
) -> dict[str, tuple[int, ...]]:
    """Make the packs and slices of mask nodes (mask_ids; None = all) in `run_dir`: mask_id -> allowed pairs per pack.

    Raises InputError for lengths that hold too few packs and for masks that are no mask (overlapping slices), and
    JournalError when a file cannot be written or what was written reads back differently.
    """
    wanted = [plan.masks[mask_id] for mask_id in (plan.masks if masks is None else masks)]
    by_sample: dict[str, list[MaskNode]] = {}
    for node in wanted:
        by_sample.setdefault(node.sample.sample_id, []).append(node)
    store = _Store(run_dir)
    areas: dict[str, tuple[int, ...]] = {}
    for sample_id, nodes in by_sample.items():
        path = packs_path(sample_id)
        reused = store.holds(path)
        packs = read_packs(run_dir / path) if reused else _draw(plan, plan.samples[sample_id])
        if not reused:
            write_packs(run_dir / path, packs)
            store.keep(path)
        if on_node is not None:
            on_node(Made(stage="sample", node_id=sample_id, path=path, reused=reused))
        try:
            for node in nodes:
                path = slices_path(node.mask_id)
                reused = store.holds(path)
                areas[node.mask_id] = _read_areas(run_dir / path) if reused else _write_slices(run_dir, node, packs)
                if not reused:
                    store.keep(path)
                if on_node is not None:
                    on_node(Made(stage="mask", node_id=node.mask_id, path=path, reused=reused))
        finally:  # what is made is made, also when told to stop
            store.save()
    return {node.mask_id: areas[node.mask_id] for node in wanted}


def _draw(plan: Plan, node: SampleNode) -> Packs:
    if node.data_sha256 is None:
        return [np.array([node.seqlen], dtype=np.int64)]
    assert plan.lengths is not None and node.max_doc_fraction is not None and node.seed is not None
    return draw_packs(
        plan.lengths,
        seqlen=node.seqlen,
        num_packs=node.num_packs,
        max_doc_fraction=node.max_doc_fraction,
        seed=node.seed,
    )


def _write_slices(run_dir: Path, node: MaskNode, packs: Packs) -> tuple[int, ...]:
    module = plugins.load("masks", node.mask)
    params = plugins.make_params(module, node.params)
    made = [make_slices(module, params, docs, node.seqlen_q) for docs in packs]
    for slices in made:
        check(slices)
    path = run_dir / slices_path(node.mask_id)
    _write_table(path, to_arrow(made))
    areas = _read_areas(path)
    if areas != tuple(map(area, made)):
        raise JournalError(f"{path}: what was written reads back differently; is the disk healthy?")
    return areas


def _read_areas(path: Path) -> tuple[int, ...]:
    try:
        with pa.OSFile(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
    except (pa.ArrowException, OSError) as error:
        raise JournalError(f"{path}: slices cannot be read: {error}") from error
    return tuple(map(area, from_arrow(table)))


def _write_table(path: Path, table: pa.Table) -> None:
    with replacing(path) as stream, pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)


class _Store:
    """The artifact files of a run folder and their checksums."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "artifacts"
        self._sums: dict[str, str] = {}
        self._changed = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if (self._folder / SUMS).is_file():
                # Damaged sums fit no file, so that it is made anew.
                for line in (self._folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines():
                    checksum, _, name = line.partition("  ")
                    self._sums[name] = checksum
        except OSError as error:
            raise refused(self._folder, error) from error

    def holds(self, path: str) -> bool:
        """Whether the file is there with the content that was written."""
        name = Path(path).name
        return name in self._sums and self._sums[name] == _sha256(self._folder / name)

    def keep(self, path: str) -> None:
        """Remember the checksum of a file that was just written."""
        name = Path(path).name
        checksum = _sha256(self._folder / name)
        assert checksum is not None, path
        self._sums[name] = checksum
        self._changed = True

    def save(self) -> None:
        """Write the checksums, whole or not at all."""
        if not self._changed:
            return
        with replacing(self._folder / SUMS) as stream:
            stream.writelines(f"{checksum}  {name}\n".encode() for name, checksum in sorted(self._sums.items()))
        self._changed = False


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
