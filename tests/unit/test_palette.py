"""Looks: one per implementation whatever else is drawn, apart for colour-blind readers and without any colour."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attnspec import plugins
from attnspec.drawing.palette import looks, ordered

PAGE_H100 = ("ffa", "fa2", "fa3", "cudnn", "sdpa", "flex", "flash_mask")
# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
BLINDNESS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(colour: str, matrix=None) -> np.ndarray:
    """CIELAB of a colour, as a reader with this blindness sees it."""
    rgb = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    if matrix is not None:
        linear = np.clip(np.array(matrix) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    scaled = to_xyz @ linear / np.array([0.95047, 1, 1.08883])
    part = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * part[1] - 16, 500 * (part[0] - part[1]), 200 * (part[1] - part[2])])


def look_of(label):
    """Its look where nothing else is drawn."""
    return looks([label])[label]


@pytest.mark.parametrize("blindness", [None, *BLINDNESS])
def test_the_pages_kernels_are_apart_for_every_reader(blindness):
    matrix = BLINDNESS.get(blindness)
    seen = {name: lab(look.colour, matrix) for name, look in looks(PAGE_H100).items()}
    apart = {pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in itertools.combinations(seen, 2)}
    # 10 is far above what is just noticed side by side (about 2.3).
    assert min(apart.values()) > 10, min(apart, key=apart.get)


@pytest.mark.parametrize("kind", ["kernels", "strategies"])
def test_every_name_has_a_look_of_its_own_without_colour(kind):
    held = looks(plugins.names(kind))
    assert len({look.colour for look in held.values()}) == len(held)
    assert len({(look.hatch, look.marker) for look in held.values()}) == len(held)


def test_a_look_depends_on_the_label_alone():
    alone, crowd = looks(["flex TRITON"]), looks(ordered(["fa4", "flex FLASH", "flex TRITON", "new_kernel"]))
    assert alone["flex TRITON"] == crowd["flex TRITON"]
    assert look_of("fa3") == look_of("fa3 (xformers)")


@pytest.mark.parametrize(
    "variants",
    [
        ("sdpa cudnn", "sdpa flash", "sdpa efficient", "sdpa math"),
        ("flex TRITON", "flex FLASH"),
        ("fa2 (torch)", "fa2 (flash-attn)"),
        ("fa4 varlen", "fa4 block_sparse"),
        ("ulysses (fa3)", "ulysses (cudnn)", "ulysses (fa4)", "ulysses (fa2)"),
    ],
)
def test_variants_of_one_name_differ_in_shade_and_marker(variants):
    held = [look_of(label) for label in variants]
    assert len({look.colour for look in held}) == len({look.marker for look in held}) == len(variants)


@pytest.mark.parametrize(
    "names", [("fa3 (before)", "fa3 (after)", "fa3"), ("x (a)", "x (b)", "x (c)", "x (d)"), ("fa3, 1", "fa3, 7")]
)
def test_labels_that_nobody_listed_do_not_share_a_look(names):
    held = looks(names)
    assert len({look.colour for look in held.values()}) == len(names)
    assert looks(reversed(names)) == held


def test_more_shades_than_there_are_share_one():
    assert len(looks(f"fa3 (run {index})" for index in range(9))) == 9


def test_names_of_other_people_have_looks_too():
    for label in ("my_kernel", "zeta (fast)", "", "$x$"):
        look = look_of(label)
        assert look.colour.startswith("#") and look.hatch and look.marker
