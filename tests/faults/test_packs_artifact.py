"""The packs artifact: what was written is read; damage and full disks are reported and leave no half file."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest

from attnspec.errors import JournalError
from attnspec.sample import artifact, read_packs, write_packs

PACKS = [np.array([3, 4, 1]), np.array([8]), np.array([0, 8])]


def as_lists(packs):
    return [pack.tolist() for pack in packs]


@pytest.mark.parametrize("packs", [PACKS, PACKS[:1], []])
def test_what_is_written_is_read(tmp_path, packs):
    path = tmp_path / "packs-1.arrow"
    write_packs(path, packs)
    assert as_lists(read_packs(path)) == as_lists(packs)
    assert all(pack.dtype == np.int64 for pack in read_packs(path))
    assert [file.name for file in tmp_path.iterdir()] == ["packs-1.arrow"]


def test_same_packs_same_bytes(tmp_path):
    write_packs(tmp_path / "a", PACKS)
    write_packs(tmp_path / "b", PACKS)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_columns(tmp_path):
    write_packs(tmp_path / "a", PACKS)
    table = pa.ipc.open_file(tmp_path / "a").read_all()
    assert table.schema.names == ["pack", "doc", "length"]
    assert table.schema.types == [pa.int32(), pa.int32(), pa.int64()]
    assert table.column("pack").to_pylist() == [0, 0, 0, 1, 2, 2]
    assert table.column("doc").to_pylist() == [0, 1, 2, 0, 0, 1]


def test_missing_cut_and_foreign_files(tmp_path):
    path = tmp_path / "packs-1.arrow"
    with pytest.raises(JournalError, match=r"packs-1\.arrow: packs cannot be read: "):
        read_packs(path)
    write_packs(path, PACKS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(JournalError, match=r"packs-1\.arrow: packs cannot be read: "):
        read_packs(path)
    with pa.ipc.new_file(path, pa.schema([("x", pa.int64())])):
        pass
    with pytest.raises(JournalError, match=r"packs-1\.arrow: not a packs file: columns x"):
        read_packs(path)


@pytest.mark.parametrize(
    ("pack", "doc", "length"),
    [
        ([0, 2], [0, 0], [1, 1]),
        ([1, 1], [0, 1], [1, 1]),
        ([-1, 0], [0, 0], [1, 1]),
        ([0, 2**31 - 1], [0, 0], [1, 1]),
        ([1, 0], [0, 0], [1, 1]),
        ([0, 0], [1, 2], [1, 1]),
        ([0, 0], [0, 0], [1, 1]),
        ([0, 0], [0, 1], [1, -1]),
    ],
)
def test_rows_out_of_order_are_refused(tmp_path, pack, doc, length):
    path = tmp_path / "a"
    columns = [pa.array(pack, pa.int32()), pa.array(doc, pa.int32()), pa.array(length, pa.int64())]
    table = pa.Table.from_arrays(columns, schema=artifact.SCHEMA)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(
        JournalError,
        match="not a packs file: (rows are out of order or a length is negative|a pack's index is out of range)",
    ):
        read_packs(path)


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "packs-1.arrow"
    write_packs(path, PACKS[:1])

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JournalError, match=r"packs-1\.arrow: no space left \(No space left on device\)"):
        write_packs(path, PACKS)
    assert as_lists(read_packs(path)) == as_lists(PACKS[:1])
    assert [file.name for file in tmp_path.iterdir()] == ["packs-1.arrow"]


def test_a_missing_folder_is_reported(tmp_path):
    with pytest.raises(JournalError, match=r"packs-1\.arrow: cannot be written \(No such file or directory\)"):
        write_packs(tmp_path / "none" / "packs-1.arrow", PACKS)
