"""The artifacts of a run folder: made once, used again only when right, never half written."""

from __future__ import annotations

import os
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from planning import planning_toys, small_spec

from attnspec import compile_plan
from attnspec.errors import InputError, JournalError
from attnspec.launch.artifacts import SUMS, prepare_artifacts
from attnspec.plan.requests import packs_path, slices_path
from attnspec.sample import draw_packs, read_packs
from attnspec.slices import dense, from_arrow
from attnspec.spec import Spec


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """The small spec over a small population, which is drawn quickly."""
    lengths = tmp_path_factory.mktemp("lengths") / "lengths.csv"
    lengths.write_text("lo,hi,count\n1,200,100\n200,900,50\n")
    content = small_spec()
    content["data"]["lengths"] = str(lengths)
    with planning_toys():
        yield compile_plan(Spec.model_validate(content))


def read_slices(path):
    with pa.OSFile(str(path)) as file:
        return from_arrow(pa.ipc.open_file(file).read_all())


def prepared(plan, folder, **given):
    """areas, and (stage, node, reused) of every node."""
    nodes = []
    areas = prepare_artifacts(plan, folder, on_node=nodes.append, **given)
    return areas, [(node.stage, node.node_id, node.reused) for node in nodes]


def test_every_node_gets_its_file_and_areas_are_those_of_the_dense_picture(plan, tmp_path):
    areas, nodes = prepared(plan, tmp_path)
    assert list(areas) == list(plan.masks)
    assert sorted(node for stage, node, _ in nodes if stage == "sample") == sorted(plan.samples)
    for mask_id, node in plan.masks.items():
        packs = read_packs(tmp_path / packs_path(node.sample.sample_id))
        assert [int(pack.sum()) for pack in packs] == [node.seqlen_q] * node.sample.num_packs
        slices = read_slices(tmp_path / slices_path(mask_id))
        assert [int(np.count_nonzero(dense(pack))) for pack in slices] == list(areas[mask_id])
    assert not list(tmp_path.rglob("*.partial"))


def test_the_sums_are_those_that_sha256sum_checks(plan, tmp_path):
    prepare_artifacts(plan, tmp_path)
    command = ["sha256sum", "--check", "--strict", SUMS]
    checked = subprocess.run(command, cwd=tmp_path / "artifacts", capture_output=True, text=True, check=True)
    assert checked.stdout.count(": OK") == len(plan.samples) + len(plan.masks)


def test_what_is_there_and_right_is_used_again(plan, tmp_path):
    first, _ = prepared(plan, tmp_path)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "artifacts").iterdir()}
    second, nodes = prepared(plan, tmp_path)
    assert second == first
    assert all(reused for *_, reused in nodes)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "artifacts").iterdir()} == before


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "unlisted"])
@pytest.mark.parametrize("stage", ["sample", "mask"])
def test_what_is_damaged_is_made_anew(plan, tmp_path, stage, damage):
    first, _ = prepared(plan, tmp_path)
    node_id = next(iter(plan.samples if stage == "sample" else plan.masks))
    path = tmp_path / (packs_path(node_id) if stage == "sample" else slices_path(node_id))
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[:-9])
    elif damage == "flip":
        path.write_bytes(content[:300] + bytes([content[300] ^ 1]) + content[301:])
    elif damage == "remove":
        path.unlink()
    else:
        sums = tmp_path / "artifacts" / SUMS
        sums.write_text("".join(line for line in sums.read_text().splitlines(keepends=True) if path.name not in line))
    second, nodes = prepared(plan, tmp_path)
    assert second == first
    assert [(kind, key) for kind, key, reused in nodes if not reused] == [(stage, node_id)]
    assert path.read_bytes() == content


def test_only_the_asked_masks_are_made(plan, tmp_path):
    wanted = [mask_id for mask_id, node in plan.masks.items() if node.mask == "full"]
    areas, nodes = prepared(plan, tmp_path, masks=wanted)
    assert list(areas) == wanted
    assert {stage for stage, *_ in nodes} == {"sample", "mask"}
    assert len(list((tmp_path / "artifacts").glob("*.arrow"))) == 2 * len(wanted)


def test_every_seed_draws_its_own_packs_and_zero_is_one_of_them(plan, tmp_path):
    drawn = {}
    for seed in (None, 0, 1):
        content = small_spec()
        content["data"]["lengths"] = plan.lengths.name
        del content["seed"]
        content |= {} if seed is None else {"seed": seed}
        with planning_toys():
            made = compile_plan(Spec.model_validate(content))
        (sample,) = [one for one in made.samples.values() if one.data_sha256 is not None and one.seqlen == 1024]
        wanted = [node.mask_id for node in made.masks.values() if node.sample == sample]
        for attempt in ("a", "b"):
            folder = tmp_path / f"{seed}{attempt}"
            prepare_artifacts(made, folder, masks=wanted)
            packs = [pack.tolist() for pack in read_packs(folder / packs_path(sample.sample_id))]
            assert drawn.setdefault(seed, packs) == packs
        directly = draw_packs(
            made.lengths, seqlen=1024, num_packs=3, max_doc_fraction=Fraction(1, 4), seed=42 if seed is None else seed
        )
        assert drawn[seed] == [pack.tolist() for pack in directly]
    assert len({str(packs) for packs in drawn.values()}) == 3


def test_too_few_documents_are_said_before_anything_is_measured(tmp_path):
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("lo,hi,count\n1,200,100\n")
    content = small_spec()
    content["data"] |= {"lengths": str(lengths), "num_packs": 12}
    with planning_toys():
        plan = compile_plan(Spec.model_validate(content))
    with pytest.raises(
        InputError, match=r"100 documents with \d+ tokens, which fill \d+ packs of 1024; got num_packs 12"
    ):
        prepare_artifacts(plan, tmp_path / "run")


def test_more_packs_than_documents_can_ever_fill_are_said_while_planning(tmp_path):
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("lo,hi,count\n1,200,100\n")
    content = small_spec()
    content["data"] |= {"lengths": str(lengths), "num_packs": 20}
    with (
        planning_toys(),
        pytest.raises(InputError, match=r"data\.num_packs: got 20; .*csv holds at most 19 packs of 1024 tokens"),
    ):
        compile_plan(Spec.model_validate(content))


def test_a_place_that_takes_no_files_is_reported(plan, tmp_path):
    (tmp_path / "artifacts").write_text("a file where the folder should be")
    with pytest.raises(JournalError, match=r"artifacts: cannot be written \(File exists\)"):
        prepare_artifacts(plan, tmp_path)


@pytest.mark.parametrize("what", ["packs", "slices", "checksums"])
def test_a_full_disk_is_reported_and_leaves_no_half_file(plan, tmp_path, monkeypatch, what):
    names = {"packs": "packs-", "slices": "slices-", "checksums": SUMS}
    real = os.fsync

    def full(descriptor):
        if names[what] in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    told = rf"{names[what]}\S*: no space left .* running again goes on from there once there is room"
    with pytest.raises(JournalError, match=told):
        prepare_artifacts(plan, tmp_path)
    assert not list(tmp_path.rglob("*.partial"))
    monkeypatch.undo()
    areas, nodes = prepared(plan, tmp_path)
    assert areas == prepare_artifacts(plan, tmp_path / "elsewhere")
    assert not all(reused for *_, reused in nodes)
