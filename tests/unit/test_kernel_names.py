"""The names that are expected of device kernels, against all that were recorded on H200."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from attnspec.exchange.bound import BoundStrategy
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import SilentTransport
from attnspec.execute.device_kernels import FallbackError, check_kernels
from attnspec.kernels import flex, sdpa
from attnspec.support import KernelNames
from attnspec.support.kernel_names import CUDNN, FLASH_ATTENTION_2, FLASH_ATTENTION_3, FLASH_ATTENTION_4

MEASURED = Path(__file__).parents[2] / "data" / "measured"
EXPECTED = {
    "cudnn": CUDNN,
    "fa2": FLASH_ATTENTION_2,
    "fa3": FLASH_ATTENTION_3,
    "fa4": FLASH_ATTENTION_4,
    "ffa": FLASH_ATTENTION_3,
    "flash_mask": FLASH_ATTENTION_3,
    "reference": "",
}
OF_BACKENDS = {"sdpa": sdpa._CUDA_KERNELS, "flex": flex._CUDA_KERNELS}


def expected_of(row):
    return EXPECTED[row["kernel"]] if row["kernel"] in EXPECTED else OF_BACKENDS[row["kernel"]][row["backend"]]


def profiles(table):
    columns = ["kernel", "backend", "pass", "status", "kernel_names"]
    rows = pq.read_table(MEASURED / table / "cells.parquet", columns=columns).to_pylist()
    return [row for row in rows if row["status"] == "ok"]


@pytest.mark.parametrize("table", ["h200_kernel", "h200_check", "h200_distributed", "h200_quickstart"])
def test_every_recorded_profile_shows_the_intended_kernels_and_its_own_direction_only(table):
    held = profiles(table)
    assert len(held) >= 96
    for row in held:
        names, expected = tuple(row["kernel_names"]), expected_of(row)
        check_kernels(names, expected, row["pass"])
        if row["pass"] == "fwd_bwd" or not isinstance(expected, KernelNames):
            continue
        for other in {"fwd", "bwd", "fwd_bwd"} - {row["pass"]}:
            with pytest.raises(FallbackError):
                check_kernels(names, expected, other)


def test_a_fallback_in_one_half_is_one():
    ran = ("void flash::FlashAttnFwdSm90<...>", "softmax_backward", "ampere_sgemm")
    check_kernels(ran, FLASH_ATTENTION_3, "fwd")
    with pytest.raises(
        FallbackError, match="no device kernel of fwd_bwd matched 'FlashAttnBwdSm'; ran: void flash::Fl"
    ):
        check_kernels(ran, FLASH_ATTENTION_3, "fwd_bwd")


def test_what_prepares_and_converts_is_not_the_kernel():
    around = ("flash::FlashAttnBwdPreprocess<...>", "flash::FlashAttnBwdPostprocessConvertdQ<...>", "ampere_sgemm")
    with pytest.raises(FallbackError):
        check_kernels(around, FLASH_ATTENTION_3, "bwd")
    with pytest.raises(FallbackError):
        check_kernels(("flash_bwd_dot_do_o_kernel", "flash_bwd_convert_dq_kernel"), FLASH_ATTENTION_2, "bwd")


def test_a_strategy_over_several_kernels_expects_each():
    bound = [
        SimpleNamespace(expected_kernels=one, backend=None, frees_graph=False) for one in ("", CUDNN, "triton", CUDNN)
    ]
    work, slots = SimpleNamespace(), Slots(np.arange(0), 0, "cpu")
    strategy = BoundStrategy(work, bound, slots, slots, SilentTransport())
    check_kernels(("cudnn_sm90_fprop", "triton_tem"), strategy.expected_kernels, "fwd")
    with pytest.raises(FallbackError, match="no device kernel of fwd matched 'triton'"):
        check_kernels(("cudnn_sm90_fprop",), strategy.expected_kernels, "fwd")
