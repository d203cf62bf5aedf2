"""Findings, failures, memory: small pieces that outcomes hang on."""

import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from attnspec.errors import UnsupportedError
from attnspec.execute.clock import InvalidTimeError, NoSamplesError
from attnspec.execute.device_kernels import FallbackError, check_kernels, device_kernels
from attnspec.execute.findings import Finding
from attnspec.execute.memory import allocated_bytes, available_host_bytes, out_of_memory, peak_bytes
from attnspec.execute.oracle import precision_for
from attnspec.execute.prepared import Step
from attnspec.record.status import Status, check_outcome
from attnspec.worker.failures import MAX_TEXT, failure_of

CPU = torch.device("cpu")


class TestFindings:
    @pytest.mark.parametrize("error", [math.nan, math.inf, 2.0000001])
    def test_what_is_not_within_the_bound_fails(self, error):
        assert Finding(error=error, bound=2.0).failed

    @pytest.mark.parametrize("error", [0.0, 1.0, 2.0])
    def test_what_is_within_passes(self, error):
        assert not Finding(error=error, bound=2.0).failed

    def test_nan_is_the_worst_of_a_tensor(self):
        ratio = torch.tensor([[0.5, 1e30], [math.nan, math.inf]])
        found = Finding.worst_of(ratio, bound=1.0)
        assert math.isnan(found.error)
        assert found.index == (1, 0)
        assert found.failed

    def test_nan_is_worse_than_any_other_finding(self):
        nan, large = Finding(error=math.nan, bound=1.0), Finding(error=1e30, bound=1.0)
        assert large.or_worse(nan) is nan
        assert nan.or_worse(large) is nan

    def test_worse_is_beside_its_bound(self):
        at_four, at_two = Finding(error=3.0, bound=4.0), Finding(error=1.9, bound=2.0)
        assert at_four.or_worse(at_two) is at_two

    def test_nothing_to_compare_is_no_error(self):
        assert not Finding.worst_of(torch.empty(0, 4), bound=1.0).failed


@pytest.mark.parametrize(
    ("error", "status", "code", "words"),
    [
        (MemoryError(), Status.OOM, "host_memory", "MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory."), Status.OOM, "device_memory", "CUDA out of memory"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors"), Status.OOM, "device_memory", "out of memory"),
        (UnsupportedError("head_dim", "head_dim 264 is over 256"), Status.UNSUPPORTED, "head_dim", "264 is over 256"),
        (FallbackError("no device kernel matched"), Status.ERROR, "fallback", "no device kernel"),
        (InvalidTimeError("an iteration took 0 ns"), Status.ERROR, "invalid_time", "0 ns"),
        (NoSamplesError("none"), Status.ERROR, "no_samples", "none"),
        (RuntimeError("size mismatch"), Status.ERROR, "exception", "RuntimeError: size mismatch"),
        (ImportError("libx.so: undefined symbol"), Status.ERROR, "exception", "undefined symbol"),
    ],
)
def test_outcome_of_what_a_case_raises(error, status, code, words):
    found = failure_of(error)
    assert (found.status, found.reason_code) == (status, code)
    assert words in found.reason
    check_outcome(found.status, found.reason_code)


def test_a_failed_allocation_on_the_host_is_out_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert out_of_memory(caught.value) == "host_memory"
    assert out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None


def test_long_messages_are_cut():
    assert len(failure_of(ValueError("x" * 10_000)).reason) <= MAX_TEXT + 3


@pytest.mark.slow
def test_a_limit_makes_allocations_fail_in_good_order():
    code = (
        "import torch, attnspec.execute.memory as memory\n"
        "memory.limit_host_memory(2**29)\n"
        "kept = torch.ones(2**20)\n"
        "try:\n    torch.ones(2**30)\n"
        "except RuntimeError as error:\n    print(memory.out_of_memory(error), float(kept.sum()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["host_memory", str(float(2**20))]


def test_nothing_about_devices_on_the_cpu():
    step = Step(run=lambda: pytest.fail("an iteration for nothing"))
    assert device_kernels(step, CPU) is None
    assert peak_bytes(step, CPU, 5) is None
    assert allocated_bytes(CPU) == 0
    assert (available_host_bytes() or 1) > 0
    assert precision_for(CPU, "bfloat16") is torch.float64


@pytest.mark.parametrize(
    ("capability", "dtype", "expected"),
    [
        ((9, 0), "bfloat16", torch.float64),
        ((8, 0), "float16", torch.float64),
        ((10, 0), "bfloat16", torch.float64),
        ((10, 3), "bfloat16", torch.float32),
        ((8, 9), "float16", torch.float32),
        ((12, 0), "bfloat16", torch.float32),
        ((12, 0), "float32", torch.float64),
    ],
)
def test_oracle_is_float64_where_that_is_fast_or_needed(monkeypatch, capability, dtype, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert precision_for(torch.device("cuda", 0), dtype) is expected


def test_the_intended_kernel_must_be_among_those_that_ran():
    ran = ("void at::native::elementwise_kernel", "flash_fwd_splitkv_kernel<...>")
    for pass_ in ("fwd", "bwd", "fwd_bwd"):  # a plain expression is for all of them
        check_kernels(ran, "flash_fwd", pass_)
        check_kernels(ran, "", pass_)
        for unseen in ((), None):  # no witness, no verdict
            check_kernels(unseen, "flash_fwd", pass_)
    with pytest.raises(FallbackError, match="no device kernel of bwd matched 'cudnn'; ran: void at::native"):
        check_kernels(ran, "cudnn", "bwd")


@pytest.mark.parametrize("seen", [None, (), ("Memset (Device)", "Memcpy DtoD (Device -> Device)")])
def test_a_profile_of_nothing_is_told_from_no_profile(monkeypatch, seen):
    class Profile:
        def __init__(self, activities):
            assert [one.name for one in activities] == ["CUDA"]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def events(self):
            at = SimpleNamespace(start=0)
            cuda = SimpleNamespace(name="CUDA")
            return seen and [SimpleNamespace(name=name, time_range=at, device_type=cuda) for name in seen]

    monkeypatch.setattr("attnspec.execute.device_kernels.profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    ran = []
    step = Step(run=lambda: ran.append("run"), before=lambda: ran.append("before"))
    assert device_kernels(step, torch.device("cuda", 0)) == ()
    assert ran == ["before", "run"]
