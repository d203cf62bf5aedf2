"""Shipped data: every file is in the manifest with source, licence and checksum, and holds what is said of it."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
import yaml

from attnspec.resources import shipped
from attnspec.sample import read_lengths, shipped_names

DATA = shipped("data")
FILES = json.loads((DATA / "manifest.json").read_text())["files"]


@pytest.mark.parametrize("entry", FILES, ids=lambda entry: entry["path"])
def test_checksums_and_sources(entry):
    assert hashlib.sha256((DATA / entry["path"]).read_bytes()).hexdigest() == entry["sha256"]
    assert all(entry[key] for key in ("title", "source", "source_path", "licence", "changes"))


def test_nothing_is_unlisted():
    listed = {entry["path"] for entry in FILES}
    for folder in ("lengths", "published", "measured"):
        held = {path.relative_to(DATA).as_posix() for path in (DATA / folder).rglob("*") if path.is_file()}
        assert held
        assert held <= listed


def test_shipped_distributions():
    assert shipped_names() == ("page", "pile", "prolong512k", "prolong64k")
    page = read_lengths("page")
    assert page.num_documents == 13_463_214 and not page.nominal and page.num_empty == 0
    assert page.lo.tolist()[:3] == [1, 11, 51] and page.hi.tolist()[-1] == 196_609
    assert (page.hi[:-1] == page.lo[1:]).all()
    for name, num_bins in (("pile", 41), ("prolong64k", 44), ("prolong512k", 42)):
        assert read_lengths(name).nominal
        assert len(read_lengths(name).counts) == num_bins
        assert f"`{name}` |" in (DATA / "README.md").read_text()


def test_devices():
    devices = yaml.safe_load((DATA / "devices.yaml").read_text())
    assert {"a100_sxm_80gb", "h100", "h200", "b200", "b300"} <= set(devices)
    drivers = [name for device in devices.values() for name in device["driver_names"]]
    assert len(drivers) == len(set(drivers)) >= len(devices)
    keys = {"title", "driver_names", "capability", "bf16_dense_tflops", "memory_gb", "bandwidth_gb_s", "source"}
    for device in devices.values():
        assert set(device) == keys
        assert re.fullmatch(r"\d+\.\d", device["capability"])
        assert device["source"].startswith("https://")
        assert 100 < device["bf16_dense_tflops"] < 5000 and 1000 < device["bandwidth_gb_s"] < 10_000
    assert devices["h200"]["bf16_dense_tflops"] == devices["h100"]["bf16_dense_tflops"] == 989.4
