"""Hints at the name that was meant."""

from __future__ import annotations

import pytest

from attnspec import plugins
from attnspec.errors import nearest, worded
from attnspec.shape import DTYPES

KERNELS = plugins.names("kernels")


@pytest.mark.parametrize(
    ("name", "allowed", "meant"),
    [
        *((name, KERNELS, "fa3") for name in ("flash_attn_3", "flash-attn-3", "FlashAttention3", "fa-3", "FA3")),
        *((name, KERNELS, "fa2") for name in ("flash_attn_2", "flash-attn", "flash_attention")),
        *((name, KERNELS, "fa4") for name in ("flash_attn_4", "flash_attention_4", "fa_4")),
        ("flex_attention", KERNELS, "flex"),
        ("flash_mas", KERNELS, "flash_mask"),
        ("flash-attn", ("torch", "flash-attn-3"), "flash-attn-3"),  # fa2 is none of these
        ("bf16", DTYPES, "bfloat16"),
        *((name, DTYPES, "float16") for name in ("fp16", "half", "Half", "f16")),
        *((name, DTYPES, "float32") for name in ("fp32", "float", "single")),
        ("double", DTYPES, "float64"),
        ("bfloat15", DTYPES, "bfloat16"),
    ],
)
def test_other_names_and_misspelt_ones(name, allowed, meant):
    assert nearest(name, allowed) == f" (did you mean '{meant}'?)"


def test_no_hint_where_nothing_is_near():
    assert nearest("magi", KERNELS) == nearest("", KERNELS) == ""


def chained(words, *, cause=None, context=None, hidden=False):
    """An exception as `raise ... from cause`, or inside the handler of another one, leaves it."""
    error = ImportError(words)
    error.__cause__, error.__context__, error.__suppress_context__ = cause, context, hidden
    return error


def test_what_an_error_came_from_is_told_where_it_says_more():
    lacks = OSError("no   such\nlibrary")
    assert worded(lacks) == "OSError: no such library"
    assert worded(chained("a", context=lacks)) == "ImportError: a, after OSError: no such library"
    assert worded(chained("a", context=lacks, hidden=True)) == "ImportError: a"
    assert worded(chained("a", cause=KeyError("b"), context=lacks)) == "ImportError: a, from KeyError: 'b'"
    assert worded(chained("a: no such library", cause=lacks)) == "ImportError: a: no such library"
    assert worded(chained("a", cause=ValueError())) == "ImportError: a"
    assert worded(chained("a", cause=chained("a", cause=lacks))) == "ImportError: a, from OSError: no such library"
