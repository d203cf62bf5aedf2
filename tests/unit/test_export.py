"""A run as one file: the same bytes, read back as the run, damage and strangers refused."""

from __future__ import annotations

import gc
import os
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from attnspec.cli.main import exit_code
from attnspec.errors import InputError
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.run_lock import RunLock
from attnspec.report.archive import write_archive
from attnspec.report.comparison import compare_runs
from attnspec.report.run import open_run
from attnspec.report.run_facts import run_facts

RECORDED = Path(__file__).parents[2] / "data" / "measured" / "h200_quickstart"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with everything an export takes, and some that it leaves."""
    folder = tmp_path / "some run"
    (folder / "artifacts" / "logs").mkdir(parents=True)
    for file in RECORDED.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for name in ("spec.yaml", "plan.json", "artifacts/packs-0a.arrow", "artifacts/SHA256SUMS"):
        (folder / name).write_text(f"the content of {name}\n")
    for name in ("artifacts/logs/a-1.log", "notes.txt", "artifacts/other.arrow"):
        (folder / name).write_text("left behind")
    return folder


def export(run: Path, out: Path) -> Path:
    opened = open_run(run)
    write_archive(RunFolder(run), opened.cells, opened.timings, out)
    return out


def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    first = export(run, tmp_path / "a.zip").read_bytes()
    for file in run.rglob("*"):
        os.utime(file, (1, 1))
    assert export(run, tmp_path / "b.zip").read_bytes() == first
    (run / "spec.yaml").write_text("another")
    assert export(run, tmp_path / "c.zip").read_bytes() != first


def test_an_export_holds_what_belongs_to_the_run_and_reads_as_the_run(run: Path, tmp_path: Path) -> None:
    archive = export(run, tmp_path / "told.zip")
    assert zipfile.ZipFile(archive).namelist() == [
        "artifacts/SHA256SUMS",
        "artifacts/packs-0a.arrow",
        "cells.parquet",
        "plan.json",
        "provenance.json",
        "spec.yaml",
        "timings.parquet",
        "SHA256SUMS",
    ]
    opened, original = open_run(archive), open_run(run)
    assert opened.cells.equals(original.cells)
    assert opened.timings.equals(original.timings)
    assert opened.provenance == original.provenance
    assert opened.path.name == "told"
    assert (opened.path / "artifacts" / "packs-0a.arrow").read_bytes() == b"the content of artifacts/packs-0a.arrow\n"
    found = compare_runs(archive, run)
    assert (len(found.pairs), found.regressions) == (96, 0)
    unpacked = opened.path
    del opened
    gc.collect()
    assert not unpacked.exists()


def test_tables_that_a_journal_is_ahead_of_are_written_anew(run: Path, tmp_path: Path, monkeypatch) -> None:
    opened = open_run(run)
    half = opened.cells.slice(0, 3)
    monkeypatch.setattr(RunFolder, "tables_are_current", lambda self: False)
    write_archive(RunFolder(run), half, opened.timings, tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip").open("cells.parquet") as stream:
        assert pq.read_table(stream).num_rows == 3


def rewritten(archive: Path, changes: dict[str, bytes | None]) -> Path:
    """The archive with files replaced, added or (None) left out."""
    held = {name: zipfile.ZipFile(archive).read(name) for name in zipfile.ZipFile(archive).namelist()}
    with zipfile.ZipFile(archive, "w") as out:
        for name, content in (held | changes).items():
            if content is not None:
                out.writestr(name, content)
    return archive


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec.yaml": b"changed"}, r"spec.yaml is damaged: its SHA-256 is not the one in SHA256SUMS"),
        ({"../evil": b""}, r"is no export of a run: it holds '../evil'"),
        ({"artifacts/../../evil.arrow": b""}, r"is no export of a run: it holds 'artifacts/../../evil.arrow'"),
        ({"SHA256SUMS": None}, "it has no SHA256SUMS"),
        ({"SHA256SUMS": b"nonsense\n"}, "SHA256SUMS is damaged"),
        ({"plan.json": None}, "SHA256SUMS and the files do not agree about plan.json"),
    ],
)
def test_what_is_no_whole_export_is_refused_and_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch, changes: dict[str, bytes | None], message: str
) -> None:
    archive = rewritten(export(run, tmp_path / "a.zip"), changes)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with pytest.raises(InputError, match=message):
        open_run(archive)
    assert not list((tmp_path / "tmp").iterdir())


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_text("no zip at all")
    with pytest.raises(InputError, match="x.zip: is no export of a run: File is not a zip file; `attnspec export RUN`"):
        open_run(tmp_path / "x.zip")


def test_command(run: Path, tmp_path: Path, capfd) -> None:
    assert exit_code(["export", str(run)]) == 0
    archive = tmp_path / "some run.zip"
    assert capfd.readouterr().out == f"wrote {archive}\n"
    assert archive.read_bytes() == export(run, tmp_path / "b.zip").read_bytes()
    assert exit_code(["export", str(archive)]) == 2
    assert "is a file; give a run folder" in capfd.readouterr().err
    assert exit_code(["export", str(run), "--out", str(tmp_path / "no" / "x.zip")]) == 2
    assert "no such folder" in capfd.readouterr().err
    with RunLock(run):
        assert exit_code(["export", str(run)]) == 2
    assert "a run works here" in capfd.readouterr().err


def test_a_report_of_an_export_leads_to_the_export(run: Path, tmp_path: Path) -> None:
    archive = export(run, tmp_path / "told.zip")
    opened = open_run(archive)
    facts = run_facts("told", opened.place, tmp_path / "page", opened.provenance)
    assert facts.links == (("told.zip", "../told.zip"),)
    assert open_run(run).place == run


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_export_that_was_compressed_anew_reads_and_its_damage_is_told(
    run: Path, tmp_path: Path, compression: int
) -> None:
    source = zipfile.ZipFile(export(run, tmp_path / "a.zip"))
    other = tmp_path / "b.zip"
    with zipfile.ZipFile(other, "w", compression) as out:
        for name in source.namelist():
            out.writestr(name, source.read(name))
    assert open_run(other).cells.equals(open_run(run).cells)
    with zipfile.ZipFile(other) as held:
        entry = held.getinfo("timings.parquet")
    content = bytearray(other.read_bytes())
    start = entry.header_offset + 200
    content[start : start + 64] = bytes(255 - one for one in content[start : start + 64])
    other.write_bytes(content)
    with pytest.raises(InputError, match="timings.parquet"):
        open_run(other)


@pytest.mark.parametrize("name", ["...zip", "..zip", ".zip"])
def test_an_export_may_have_any_name(run: Path, tmp_path: Path, name: str) -> None:
    opened = open_run(export(run, tmp_path / "a.zip").rename(tmp_path / name))
    assert opened.cells.num_rows == 96


def test_an_export_without_tables_is_refused(run: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr("SHA256SUMS", "")
    with pytest.raises(InputError, match=r"a\.zip: is no export of a run: it has no cells.parquet"):
        open_run(tmp_path / "a.zip")


def test_an_export_takes_the_place_of_no_other_file(run: Path, tmp_path: Path, capsys) -> None:
    own = (run / "cells.parquet").read_bytes()
    assert exit_code(["export", str(run), "--out", str(run / "cells.parquet")]) == 2
    assert "lies in the run folder" in capsys.readouterr().err
    assert (run / "cells.parquet").read_bytes() == own
    (tmp_path / "spec.yaml").write_text("attnspec: 1")
    assert exit_code(["export", str(run), "--out", str(tmp_path / "spec.yaml")]) == 2
    assert "is there and is no export" in capsys.readouterr().err
    for _ in range(2):
        assert exit_code(["export", str(run), "--out", str(tmp_path / "a.zip")]) == 0
