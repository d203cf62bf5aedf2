"""Quantities: every spelling is the right value or an error that says what is allowed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnspec.errors import InputError
from attnspec.units import MAX_COUNT, format_bytes, format_count, parse_count, parse_fraction


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("64K", 65536),
        ("128K", 131072),
        ("1M", 1048576),
        ("1.5K", 1536),
        ("0.5K", 512),
        ("7", 7),
        ("0.125K", 128),
        (7, 7),
        ("1.5M", 1572864),
    ],
)
def test_counts(text, tokens):
    assert parse_count(text) == tokens


@pytest.mark.parametrize("value", [0, "0", "0K", "0.0M"])
def test_a_count_may_be_none_where_that_is_allowed(value):
    assert parse_count(value, least=0) == 0
    for least, allowed in ((1, "a positive integer"), (8, "an integer of 8 or more, or one with the suffix K")):
        with pytest.raises(InputError, match=rf"got {value!r}; allowed: {allowed}"):
            parse_count(value, least=least)


@pytest.mark.parametrize(
    "text",
    [
        "64KB",
        "K",
        "-1K",
        "1,024",
        "1_024",
        "",
        " 8K",
        "8K ",
        "1e3",
        "0",
        0,
        -1,
        "0x10",
        "1.0001K",
        "8G",
        True,
        False,
        None,
        8.0,
    ]
    + ["٣", "³", "8Κ", "nan", "inf", str(2**63), "9999999999999M", "9" * 5000],  # other scripts' digits, a Greek Kappa
)
def test_refused_counts_say_what_is_allowed(text):
    with pytest.raises(InputError, match="allowed: a positive integer"):
        parse_count(text)


def test_lower_case_suffix_is_refused_with_the_right_spelling():
    with pytest.raises(InputError, match="unknown suffix 'k'; write 64K"):
        parse_count("64k")


@given(st.integers(1, MAX_COUNT))
def test_counts_survive_formatting(count):
    assert parse_count(format_count(count)) == count


@pytest.mark.parametrize("text", ["024", "00", "000", "01K", "00.5K"])
def test_counts_have_no_leading_zeros(text):
    with pytest.raises(InputError, match=rf"got '{text}'; allowed: no leading zeros .* write 1024 or 1K, not 1,024"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("1/4", Fraction(1, 4)),
        ("25%", Fraction(1, 4)),
        ("0.25", Fraction(1, 4)),
        ("1", Fraction(1)),
        (1, Fraction(1)),
        (0.1, Fraction(1, 10)),
    ],
)
def test_fractions(text, share):
    assert parse_fraction(text) == share


@pytest.mark.parametrize(
    "text",
    [
        "0/4",
        "5/4",
        "1/0",
        "-1/4",
        "x",
        "5",
        "0.0",
        "1e-1",
        "1/" + "9" * 5000,
        0,
        1.5,
        float("nan"),
        float("inf"),
        True,
        None,
        "101%",
    ],
)
def test_refused_fractions(text):
    with pytest.raises(InputError, match="allowed: a share over 0"):
        parse_fraction(text)


def test_bytes():
    assert [format_bytes(1023), format_bytes(1536), format_bytes(3 * 1024**4)] == ["1023 B", "1.5 KiB", "3.0 TiB"]
