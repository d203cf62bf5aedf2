"""Figures and the page: every case is on them, whatever its status."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import pytest

from attnspec import plugins
from attnspec.drawing.look import STATUS_MARKS, implementation, looks, ordered
from attnspec.figures.throughput_by_seqlen import drawings
from attnspec.record.schema import Cell, to_table
from attnspec.record.status import REASON_CODES, Status
from attnspec.report.page import save


def cells(**changes):
    rows = []
    statuses = itertools.cycle(Status)
    for kernel, backend, seqlen in itertools.product(
        ("sdpa", "flex", "flex", "fa4"), (None, "TRITON"), (1024, 2048, 1000)
    ):
        status = next(statuses)
        ok = status is Status.OK
        rows.append(
            Cell(
                **{
                    "case_id": f"{kernel}{seqlen}", "level": "kernel", "kernel": kernel, "backend": backend, "mask": "causal",
                    "mask_params": "{}", "seqlen": seqlen, "cp_size": 1, "seqlen_per_rank": seqlen, "env": "{}", "pass_": "fwd",
                    "batch": 1, "num_heads_q": 8, "num_heads_kv": 2, "head_dim": 64, "dtype": "bfloat16", "num_packs": 1,
                    "status": str(status), "reason_code": None if ok else REASON_CODES[status][0], "reason": None if ok else "<why> & why",
                    "tflops": 1.5 if ok else None, "tflops_ci_low": 1.4 if ok else None, "tflops_ci_high": 1.6 if ok else None,
                    "time_ms_median": 1.0 if ok else None, "source": "measured", "device": "NVIDIA <H200>", **changes,
                }
            )
        )  # fmt: skip
    return to_table(Cell, rows)


def test_every_status_has_a_mark():
    assert set(STATUS_MARKS) == {str(status) for status in Status} - {"ok"}


def test_an_svg_shows_every_implementation_and_mark(tmp_path):
    (drawing,) = drawings(cells())
    save(drawing, tmp_path)
    text = "".join(ET.fromstring((tmp_path / f"{drawing.stem}.svg").read_bytes()).itertext())
    for word in ("flex TRITON", "fa4", "sdpa", "1K", "2K", "1000", "Causal, forward", "NVIDIA <H200>", "heads 8:2"):
        assert word in text
    assert all(mark in text for mark in STATUS_MARKS.values())
    assert (tmp_path / f"{drawing.stem}.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_cells_give_the_same_svg(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        save(drawings(cells())[0], tmp_path / folder)
    one, other = (next((tmp_path / folder).glob("*.svg")).read_bytes() for folder in ("a", "b"))
    assert one == other


def test_masks_passes_and_devices_are_apart():
    assert len(drawings(cells())) == 1
    table = to_table(Cell, [])
    assert drawings(table) == []
    import pyarrow as pa

    mixed = pa.concat_tables([cells(), cells(pass_="bwd"), cells(mask="full"), cells(device="NVIDIA B200")])
    stems = [drawing.stem for drawing in drawings(mixed)]
    assert len(stems) == len(set(stems)) == 4


def test_bars_of_height_zero_have_an_axis():
    """An empty mask takes time and computes nothing."""
    (drawing,) = drawings(cells(tflops=0.0, tflops_ci_low=0.0, tflops_ci_high=0.0, status="ok", reason_code=None))
    assert drawing.draw().axes[0].get_ylim() == (0, pytest.approx(1.12))


def test_cases_that_no_worker_saw_stand_beside_the_others():
    import pyarrow as pa

    mixed = pa.concat_tables([cells(), cells(device=None, status="skipped", reason_code="not_run", tflops=None)])
    assert len(drawings(mixed)) == 1


def test_a_family_keeps_its_colour_and_members_differ():
    alone, crowd = looks(["flex TRITON"]), looks(ordered(["fa4", "flex FLASH", "flex TRITON", "new_kernel"]))
    assert alone["flex TRITON"].colour == crowd["flex TRITON"].colour == crowd["flex FLASH"].colour
    assert (crowd["flex TRITON"].hatch, crowd["flex TRITON"].marker) != (
        crowd["flex FLASH"].hatch,
        crowd["flex FLASH"].marker,
    )
    assert len({look.colour for look in looks(plugins.names("kernels")).values()}) >= 9


@pytest.mark.parametrize(
    ("row", "label"),
    [
        ({"strategy": None, "kernel": "fa4", "backend": None}, "fa4"),
        ({"strategy": "usp", "kernel": "sdpa", "backend": "cudnn"}, "usp (sdpa cudnn)"),
    ],
)
def test_labels(row, label):
    assert implementation(row) == label


def test_what_was_left_out_of_a_run_is_not_drawn(tmp_path):
    import pyarrow as pa

    left_out = cells(kernel="left_out", status="skipped", reason_code="not_run", tflops=None, seqlen=4096)
    (drawing,) = drawings(pa.concat_tables([cells(), left_out]))
    save(drawing, tmp_path)
    text = "".join(ET.fromstring((tmp_path / f"{drawing.stem}.svg").read_bytes()).itertext())
    assert "sdpa" in text
    assert "left_out" not in text
    assert "4K" not in text
