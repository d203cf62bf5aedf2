"""FLOPs: exact integers with known values, and what is refused."""

import pytest

from attnspec.errors import InputError
from attnspec.flops import attention_flops


@pytest.mark.parametrize(
    ("area", "batch", "num_heads_q", "head_dim", "fwd", "bwd", "fwd_bwd"),
    [
        (36, 1, 1, 64, 9216, 23040, 32256),
        (1024**2, 64, 16, 64, 274877906944, 687194767360, 962072674304),
        (160, 1, 2, 64, 81920, 204800, 286720),
        (88, 1, 2, 64, 45056, 112640, 157696),
        (64**2, 1, 8, 64, 8388608, 20971520, 29360128),
        (1024**2, 2, 16, 64, 8589934592, 21474836480, 30064771072),
        (64**2, 1, 12, 64, 12582912, 31457280, 44040192),
        (0, 1, 1, 1, 0, 0, 0),
        (1, 1, 1, 1, 4, 10, 14),
    ],
)
def test_known_values(area, batch, num_heads_q, head_dim, fwd, bwd, fwd_bwd):
    made = [attention_flops(area, batch, num_heads_q, head_dim, pass_) for pass_ in ("fwd", "bwd", "fwd_bwd")]
    assert made == [fwd, bwd, fwd_bwd]


def test_long_sequences_pass_int64_exactly():
    area = 2**24 * (2**24 + 1) // 2
    assert attention_flops(area, 1, 64, 128, "fwd_bwd") == 14 * area * 64 * 128 > 2**63


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("area", -1, 0),
        ("batch", 0, 1),
        ("num_heads_q", 0, 1),
        ("num_heads_q", -8, 1),
        ("head_dim", 0, 1),
        ("head_dim", 64.0, 1),
        ("batch", True, 1),
    ],
)
def test_nonsense_is_refused(name, value, least):
    sizes = {"area": 36, "batch": 1, "num_heads_q": 1, "head_dim": 64} | {name: value}
    with pytest.raises(InputError) as caught:
        attention_flops(**sizes, pass_="fwd")
    assert str(caught.value) == f"{name} is {value!r}; allowed: an integer of {least} or more"


def test_an_unknown_pass_is_refused():
    with pytest.raises(InputError, match=r"^pass is 'backward'; allowed: fwd, bwd, fwd_bwd$"):
        attention_flops(1, 1, 1, 1, "backward")
