"""What clocks time: the device and not the launch, without the flush, the hold or the compiler."""

import random

import pytest
from simulated_cuda import Device

from attnspec.execute import cuda_clock
from attnspec.execute.clock import CpuClock
from attnspec.execute.cuda_clock import CudaClock
from attnspec.execute.prepared import Step


@pytest.fixture
def device(monkeypatch):
    made = Device()
    made.install(monkeypatch, cuda_clock)
    return made


@pytest.mark.parametrize(("kernel_ns", "launch_ns"), [(250_000, 5_000), (5_000, 5_000), (60_000, 110_000)])
def test_event_time_is_the_kernel_whatever_the_launch_costs(device, kernel_ns, launch_ns):
    timer = CudaClock(None).timer(Step(run=device.kernel(kernel_ns, launch_ns)))
    samples = timer.round(20)
    assert len(samples) == 20
    assert {sample.elapsed_ns for sample in samples} == {kernel_ns}
    assert {sample.host_ns for sample in samples} == {launch_ns}
    assert timer.held


def test_time_of_many_launches_is_device_time_only(device):
    def run():
        for _ in range(40):
            device.enqueue("kernel", 2_000, launch_ns=8_000)

    timer = CudaClock(None).timer(Step(run=run))
    assert {sample.elapsed_ns for sample in timer.round(5)} == {80_000}
    assert timer.held


@pytest.mark.parametrize("launches", [20, 100, 250])
def test_a_full_queue_is_no_host_time(device, launches):
    def run():
        for _ in range(launches):
            device.enqueue("kernel", 20_000)

    timer = CudaClock(None).timer(Step(run=run))
    timer.round(2)
    samples = timer.round(20, ahead=150)
    assert {sample.host_ns for sample in samples} == {5_000 * launches}
    assert {sample.elapsed_ns for sample in samples} == {20_000 * launches}


def test_a_slow_first_call_makes_no_long_hold(device):
    launches = iter([40_000_000])
    timer = CudaClock(None).timer(Step(run=lambda: device.enqueue("kernel", 100_000, next(launches, 50_000))))
    timer.round(1)
    before_ns = device.host_ns
    assert [sample.host_ns for sample in timer.round(1)] == [50_000]
    device.synchronize()
    assert device.host_ns - before_ns < 1_000_000


@pytest.mark.parametrize("seed", range(40))
def test_whatever_changes_between_rounds_no_time_holds_a_launch(device, seed):
    draw = random.Random(seed)
    timer = CudaClock(None).timer(
        Step(
            run=lambda: device.enqueue("kernel", kernel_ns, launch()),
            before=lambda: device.enqueue("before", before_ns),
        )
    )
    for _ in range(12):
        kernel_ns, launch_ns = (int(10 ** draw.uniform(*bounds)) for bounds in ((4, 7), (3.5, 6)))
        before_ns = draw.choice([0, 0, kernel_ns, 3 * kernel_ns])
        launch = lambda: draw.choice([launch_ns] * 19 + [10 * launch_ns])  # noqa: B023
        samples = timer.round(draw.randint(1, 30), ahead=draw.choice([0, 3, 60]))
        assert {sample.elapsed_ns for sample in samples} == {kernel_ns}
        assert {sample.host_ns for sample in samples} <= {launch_ns, 10 * launch_ns}
    assert timer.held


def test_flush_hold_and_alignment_lie_before_the_start_event_and_untimed_work_first(device):
    clock = CudaClock(None, align=lambda: device.log.append("all-reduce"))
    assert clock.flush_bytes == 100 * 2**20
    device.log.clear()
    clock.timer(Step(run=device.kernel(5_000), before=lambda: device.enqueue("forward", 9_000))).round(1)
    assert device.log == [*("forward", "flush", "spin", "all-reduce", "event", "kernel", "event", "spin", "event")]


@pytest.mark.parametrize(
    ("kernel_ns", "launch_ns", "held"),
    [(5_000_000, 15_000, 1), (400_000, 300_000, 2), (20_000, 15_000, 3), (20_000, 300_000, 10)],
)
def test_the_chip_rests_only_where_the_host_might_be_late(device, kernel_ns, launch_ns, held):
    """Until enough iterations are ahead, or always where the host is slower than the device."""
    timer = CudaClock(None).timer(Step(run=device.kernel(kernel_ns, launch_ns)))
    timer.round(3)
    device.log.clear()
    samples = timer.round(7, ahead=3)
    assert {sample.elapsed_ns for sample in samples} == {kernel_ns}
    assert device.log.count("spin") - 10 == held  # one spin an iteration measures the SM clock


def test_iterations_ahead_run_like_the_others_and_are_no_samples(device):
    clock = CudaClock(None)
    device.log.clear()
    timer = clock.timer(Step(run=device.kernel(5_000)))
    assert len(timer.round(2, ahead=3)) == 2
    assert device.log.count("kernel") == device.log.count("flush") == 5
    assert timer.settle_ns == 75_000_000


def test_sm_clock_is_cycles_over_device_time(device):
    (sample,) = CudaClock(None).timer(Step(run=device.kernel(5_000))).round(1)
    assert sample.sm_clock_mhz == pytest.approx(2000, rel=1e-3)
    assert sample.throttled is False


def test_a_step_that_waits_for_the_device_is_timed_and_said_so(device):
    def run():
        device.enqueue("kernel", 10_000)
        device.synchronize()
        device.enqueue("kernel", 10_000)

    timer = CudaClock(None).timer(Step(run=run))
    before = device.host_ns
    samples = timer.round(5)
    assert len(samples) == 5
    assert not timer.held
    assert all(sample.elapsed_ns >= 20_000 for sample in samples)
    assert device.host_ns - before < 1e9  # the hold does not grow for ever


def test_one_late_iteration_is_taken_again(device):
    launches = iter([5_000, 5_000, 9_000_000, *[5_000] * 20])
    timer = CudaClock(None).timer(Step(run=lambda: device.enqueue("kernel", 50_000, launch_ns=next(launches))))
    samples = timer.round(8)
    assert {sample.elapsed_ns for sample in samples} == {50_000}
    assert {sample.host_ns for sample in samples} == {5_000}
    assert timer.held


def test_cpu_clock_times_the_call_alone():
    now = [0]

    def take(duration_ns):
        now[0] += duration_ns

    clock = CpuClock(now_ns=lambda: now[0], unix_ns=lambda: 7)
    samples = clock.timer(Step(run=lambda: take(250_000), before=lambda: take(9_000_000))).round(3)
    assert [(one.started_ns, one.elapsed_ns, one.host_ns) for one in samples] == [(7, 250_000, 250_000)] * 3
    assert clock.flush_bytes == 0
