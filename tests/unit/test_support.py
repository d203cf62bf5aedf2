"""Support.check names the first limit that a problem breaks, and versions are compared as versions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from attnspec.errors import UnsupportedError
from attnspec.shape import Shape
from attnspec.slices import AttnSlices
from attnspec.support import Device, Problem, Support
from attnspec.support.version import satisfies, version_key

SOME_CUDA = Device(type="cuda")
FLASH = Support(
    devices=("cuda",),
    dtypes=("bfloat16", "float16"),
    max_head_dim=256,
    head_dim_multiple=8,
    capability_min=(8, 0),
    capability_max=(9, 0),
    backward={"cuda": False},
    backward_reason={"cuda": "these wheels are forward only"},
    gqa=False,
)


def problem(*, dtype="bfloat16", heads=(4, 4), head_dim=128, device=SOME_CUDA, needs_backward=False):
    return Problem(
        shape=Shape(batch=1, num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=head_dim, dtype=dtype),
        slices=AttnSlices.from_rows([(0, 8, 0, 8, 1)], seqlen_q=8, seqlen_k=8),
        needs_backward=needs_backward,
        device=device,
    )


def cuda(major, minor=0):
    return Device(type="cuda", capability=(major, minor))


@pytest.mark.parametrize(
    ("asked", "code", "reason"),
    [
        ({"dtype": "float32"}, "dtype", "float32 is not supported; allowed: bfloat16, float16"),
        ({"head_dim": 264}, "head_dim", "head_dim 264 is over 256"),
        ({"head_dim": 100}, "head_dim", "head_dim 100 is not a multiple of 8"),
        ({"heads": (8, 2)}, "heads", "grouped-query attention (8:2) is not supported"),
        ({"device": Device(type="cpu")}, "device", "runs on cuda, not on cpu"),
        ({"device": cuda(7, 5)}, "device", "needs compute capability 8.0, got 7.5"),
        ({"device": cuda(10)}, "device", "built up to compute capability 9.0, got 10.0"),
        ({"device": cuda(9), "needs_backward": True}, "direction", "these wheels are forward only"),
        # Several at once: the request's own limits come before the device's, the direction last.
        ({"dtype": "float64", "head_dim": 264, "device": cuda(7)}, "dtype", "float64 is not supported"),
        ({"head_dim": 264, "heads": (8, 2)}, "head_dim", "over 256"),
        ({"device": cuda(7), "needs_backward": True}, "device", "compute capability"),
    ],
)
def test_the_first_broken_limit_is_named(asked, code, reason):
    with pytest.raises(UnsupportedError) as caught:
        FLASH.check(problem(**asked))
    assert caught.value.reason_code == code
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"head_dim": 80},
        {"device": cuda(8)},
        {"device": cuda(9)},
        {"device": SOME_CUDA},
    ],
)
def test_what_is_within_all_limits_passes(asked):
    FLASH.check(problem(**asked))


RELEASES = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
VERSIONS = st.builds(
    lambda release, stage: release + stage, RELEASES, st.sampled_from(["", "a1", "b36", "rc2", ".dev3", "+cu130"])
)


@settings(max_examples=300, deadline=None)
@given(VERSIONS, st.sampled_from([">=", "<=", ">", "<", "==", "!="]), RELEASES)
def test_versions_compare_as_the_standard_says(version, operator, wanted):
    # Where a pre-release is compared with its own final release by < or >, the standard has rules of its own.
    if operator in "<>" and Version(Version(version).base_version) == Version(wanted):
        return
    expected = SpecifierSet(f"{operator}{wanted}").contains(version, prereleases=True)
    assert satisfies(version, f"{operator}{wanted}") == expected


def test_an_unknown_version_meets_nothing_but_no_requirement():
    assert version_key("unknown") is None
    assert satisfies("unknown", "")
    assert not satisfies("unknown", ">=0")


def test_several_clauses_must_all_be_met():
    assert satisfies("2.13.0+cpu", ">=2.11,<3")
    assert not satisfies("3.0", ">=2.11,<3")
