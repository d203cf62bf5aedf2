"""The clock, the oracle and verification on a real device."""

import pytest
import torch
from clock_against_do_bench import NoHold, attention, compare
from torch.nn.attention import SDPBackend

from attnspec.execute.cuda_clock import CudaClock
from attnspec.execute.device_kernels import check_kernels, device_kernels
from attnspec.execute.memory import out_of_memory, peak_bytes, release
from attnspec.execute.nvml import Nvml
from attnspec.execute.oracle import truth
from attnspec.execute.prepared import Step, prepare_kernel
from attnspec.execute.rounds import Timed, interleave
from attnspec.execute.tensors import make, make_tensors
from attnspec.execute.verify import Checks, verify
from attnspec.record.status import Status
from attnspec.shape import Shape
from attnspec.slices import AttnSlices
from attnspec.stats import median
from attnspec.support import Device, Problem
from attnspec.wire import Implementation, Measure

# Libraries and compilers warn of their own affairs, which the suite would turn into failures.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
SHAPE = Shape(batch=1, num_heads_q=64, num_heads_kv=8, head_dim=128, dtype="bfloat16")
MS = 1e6


@pytest.fixture(scope="module")
def device():
    return torch.device("cuda", 0)


@pytest.fixture(scope="module")
def clock(device):
    return CudaClock(device)


def causal(seqlen, docs=1):
    size = seqlen // docs
    rows = [(start, start + size, start, start + size, 1) for start in range(0, seqlen, size)]
    return AttnSlices.from_rows(rows, seqlen_q=seqlen, seqlen_k=seqlen)


def support_device(device):
    found = torch.cuda.get_device_properties(device)
    return Device(type="cuda", capability=(found.major, found.minor), model=found.name)


def times(clock, run, rounds=20):
    return clock.timer(Step(run=run)).round(rounds)


class TestClock:
    def test_a_known_spin_takes_its_time_and_the_clock_is_plausible(self, clock):
        samples = times(clock, lambda: torch.cuda._sleep(2_000_000))
        clocks = [sample.sm_clock_mhz for sample in samples]
        assert 500 < median(clocks) < 3000
        expected_ns = 2_000_000 / median(clocks) * 1e3
        assert median([sample.elapsed_ns for sample in samples]) == pytest.approx(expected_ns, rel=0.03)

    def test_a_slow_launch_is_not_device_time(self, clock, device):
        import time

        small = torch.ones(1024, device=device)

        def run():
            time.sleep(0.0005)
            small.mul_(1.0)

        timer = clock.timer(Step(run=run))
        timer.round(5)
        samples = timer.round(10)
        assert timer.held
        assert median([sample.elapsed_ns for sample in samples]) < 20_000
        assert median([sample.host_ns for sample in samples]) > 400_000

    def test_many_launches_take_device_time_only(self, clock, device):
        big = torch.ones(2**20, device=device)
        one = median([sample.elapsed_ns for sample in times(clock, lambda: big.mul_(1.0))])
        many = median([sample.elapsed_ns for sample in times(clock, lambda: [big.mul_(1.0) for _ in range(40)])])
        assert many < 45 * max(one, 3_000)

    def test_the_flush_is_outside_and_works(self, clock, device):
        half = torch.ones(torch.cuda.get_device_properties(device).L2_cache_size // 16, device=device)
        cold = median([sample.elapsed_ns for sample in times(clock, lambda: half.sum())])
        warm = median([sample.elapsed_ns for sample in times(clock, lambda: (half.sum(), half.sum()))])
        assert warm < 2 * cold

    def test_a_step_that_waits_for_the_device_ends_and_is_told(self, clock, device):
        value = torch.ones(1, device=device)
        timer = clock.timer(Step(run=lambda: value.add_(1).item()))
        assert len(timer.round(5)) == 5
        assert not timer.held

    def test_management_library_agrees_on_the_clock(self, clock, device):
        nvml = Nvml.of(device)
        if nvml is None:
            pytest.skip("no management library for this device here")
        assert nvml.driver_version()
        assert nvml.throttled() in (True, False)
        most = nvml.clocks_mhz()["sm_max"]
        sample = times(clock, lambda: torch.cuda._sleep(2_000_000))[-1]
        assert sample.sm_clock_mhz < 1.05 * most

    def test_agrees_with_do_bench(self, clock, device):
        pytest.importorskip("triton.testing")
        run = attention(8192, causal=True, backend=SDPBackend.CUDNN_ATTENTION)
        found = compare(run, clock, NoHold(device))
        assert found["ours_over_clocked_do_bench_in_cycles"] == pytest.approx(1, abs=0.01), found
        assert found["ours_over_do_bench"] == pytest.approx(1, abs=0.03), found  # the chip's clock wanders as far


class TestTensors:
    sizes = dict(seqlen=5000, batch=1, num_heads=8, head_dim=128, dtype=torch.bfloat16)  # noqa: C408, RUF012

    def test_same_values_each_time_and_for_any_rows(self, device):
        import numpy as np

        whole = make("w", "k", device=device, **self.sizes)
        rows = np.array([4999, 3, 1024, 2047])
        assert torch.equal(make("w", "k", device=device, rows=rows, **self.sizes), whole[:, rows.tolist()])
        assert abs(float(whole.float().std()) - 1) < 0.01

    def test_a_million_tokens_are_made_in_seconds(self, device):
        import time

        torch.cuda.synchronize()
        started = time.perf_counter()
        make("w", "k", **{**self.sizes, "seqlen": 2**20}, device=device)
        torch.cuda.synchronize()
        assert time.perf_counter() - started < 5


@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_oracle_on_the_device_is_that_of_the_cpu(device, precision):
    import numpy as np

    shape = Shape(batch=1, num_heads_q=4, num_heads_kv=2, head_dim=64, dtype="bfloat16")
    slices, rows = causal(600, docs=3), np.arange(0, 600, 7)
    made = make_tensors("w", shape, seqlen_q=600, seqlen_k=600, needs_backward=True, device=torch.device("cpu"))

    def run(where, wanted):
        return truth(
            shape,
            slices,
            rows,
            q_BRND=made.q_BTND[:, rows].to(where),
            k_BSGD=made.k_BSGD.to(where),
            v_BSGD=made.v_BSGD.to(where),
            dout_BRND=made.dout_BTND[:, rows].to(where),
            precision=wanted,
        )

    here, there = run(torch.device("cpu"), torch.float64), run(device, precision)
    tolerance = 1e-10 if precision is torch.float64 else 1e-5
    torch.testing.assert_close(there.out_BRND.double().cpu(), here.out_BRND, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(there.grads.dk_BSGD.double().cpu(), here.grads.dk_BSGD.double(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(there.out_unit_R.double().cpu(), here.out_unit_R, rtol=0.05, atol=0)


@pytest.mark.parametrize(("seqlen", "docs"), [(4096, 1), (8192, 8)])
@pytest.mark.parametrize(("kernel", "backend"), [("sdpa", None), ("sdpa", "cudnn"), ("sdpa", "flash"), ("flex", None)])
def test_kernels_verify_run_and_are_the_intended_ones(device, clock, kernel, backend, seqlen, docs):
    from attnspec.errors import UnsupportedError

    slices = causal(seqlen, docs)
    tensors = make_tensors("w", SHAPE, seqlen_q=seqlen, seqlen_k=seqlen, needs_backward=True, device=device)
    problem = Problem(shape=SHAPE, slices=slices, needs_backward=True, device=support_device(device))
    try:
        prepared = prepare_kernel(Implementation(kernel=kernel, backend=backend), problem, "torch")
    except UnsupportedError as error:
        pytest.skip(f"{error.reason_code}: {error}")
    found = verify(prepared, Checks.of("w", SHAPE, slices, tensors), tensors, synchronize=clock.synchronize)
    assert found.status is Status.OK, found.reason
    step = prepared.step("bwd")
    names = device_kernels(step, device)
    assert names
    check_kernels(names, prepared.bound.expected_kernels, "bwd")
    check_kernels(device_kernels(prepared.step("fwd_bwd"), device), prepared.bound.expected_kernels, "fwd_bwd")
    assert peak_bytes(step, device, tensors.num_bytes) > tensors.num_bytes
    case = Timed(case_id="a", timer=clock.timer(step))
    interleave(
        [case], Measure(min_iters=20, max_seconds=1.0), on_turn=lambda _: None, on_round=lambda case, samples: None
    )
    assert case.error is None
    assert len([one for held in case.samples_ns for one in held]) >= 20


def test_oracle_at_64k_is_bounded_in_time_and_memory(device):
    import time

    slices = causal(65536)
    tensors = make_tensors("w", SHAPE, seqlen_q=65536, seqlen_k=65536, needs_backward=True, device=device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    Checks.of("w", SHAPE, slices, tensors).ready(1)
    torch.cuda.synchronize()
    assert time.perf_counter() - started < 30
    assert torch.cuda.max_memory_allocated(device) - before < 12 * 2**30


def test_out_of_device_memory_is_known_and_survived(device):
    def too_much():
        return torch.empty(2**43, dtype=torch.uint8, device=device)

    with pytest.raises(torch.OutOfMemoryError) as caught:
        too_much()
    assert out_of_memory(caught.value) == "device_memory"
    release(device)
    assert float(torch.ones(4, device=device).sum()) == 4
