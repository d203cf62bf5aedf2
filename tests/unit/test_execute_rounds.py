"""The timing loop, with clocks that tests make up."""

import dataclasses
import itertools
import random

import pytest

from attnspec.execute.clock import InvalidTimeError, NoSamplesError, Sample
from attnspec.execute.rounds import Timed, interleave
from attnspec.stats import median
from attnspec.wire import Measure

MS = 1_000_000


class FakeTimer:
    """Gives times from an iterator and moves a shared clock by them."""

    settle_ns, held = 0, True

    def __init__(self, world, times_ns):
        self.world, self.times = world, iter(times_ns)

    def round(self, iterations, *, ahead=0):
        taken = []
        for _ in range(ahead + iterations):
            elapsed = next(self.times)
            if isinstance(elapsed, Exception):
                raise elapsed
            self.world.now_s += max(elapsed, 0) / 1e9
            taken.append(Sample(started_ns=0, elapsed_ns=elapsed, host_ns=elapsed))
        return taken[ahead:]


class HotChip(FakeTimer):
    """The chip slows down by up to the heat of what it runs; it takes some 10 ms to get there from what ran before."""

    heat_now = 0.0

    def __init__(self, world, heat, settle_ns):
        super().__init__(world, ())
        self.heat, self.settle_ns = heat, settle_ns

    def round(self, iterations, *, ahead=0):
        def times():
            while True:
                HotChip.heat_now += (self.heat - HotChip.heat_now) * 0.2
                yield int(2 * MS * (1 + HotChip.heat_now))

        self.times = times()
        return super().round(iterations, ahead=ahead)


class World:
    def __init__(self):
        self.now_s, self.turns, self.rounds, self.failures = 0.0, [], [], []

    def timed(self, name, times_ns, **more):
        return Timed(case_id=name, timer=FakeTimer(self, times_ns), **more)

    def run(self, cases, **measure):
        interleave(
            cases,
            Measure(**{"min_iters": 10, "max_seconds": 1.0, "ci": 0.02, **measure}),
            on_turn=lambda case: self.turns.append(case.case_id),
            on_round=lambda case, samples: self.rounds.append((case.case_id, case.next_round, len(samples))),
            on_failure=lambda case: self.failures.append(case.case_id),
            now_s=lambda: self.now_s,
        )

    @staticmethod
    def samples(case):
        return [one for held in case.samples_ns for one in held]


@pytest.fixture
def world():
    return World()


def test_compile_time_of_a_first_call_is_no_sample(world):
    case = world.timed("jit", itertools.chain([8000 * MS], itertools.repeat(MS)))
    world.run([case])
    assert set(world.samples(case)) == {MS}
    assert case.warm_s >= 8


def test_warm_up_goes_on_until_two_turns_agree(world):
    case = world.timed("clocks", itertools.chain([9 * MS, 5 * MS, 3 * MS, 3 * MS, 3 * MS], itertools.repeat(2 * MS)))
    world.run([case], min_iters=5)
    assert max(world.samples(case)) <= 3 * MS


def test_warm_up_of_noise_ends_with_its_share_of_the_budget(world):
    noise = itertools.cycle([10 * MS, 30 * MS])
    case = world.timed("noise", noise)
    world.run([case], max_seconds=1.0)
    assert case.warm_s <= 0.2


def test_rounds_are_interleaved_in_changing_order(world):
    cases = [world.timed(name, itertools.repeat(20 * MS)) for name in "abc"]
    world.run(cases, min_iters=10, ci=1.0)
    order = [name for name, *_ in world.rounds]
    turns = [order[at : at + 3] for at in range(0, 15, 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(map(tuple, turns))) > 1
    assert all(len(world.samples(case)) == 10 and len(case.samples_ns) == 5 for case in cases)
    assert [number for name, number, _ in world.rounds if name == "a"] == [0, 1, 2, 3, 4]


def test_a_drifting_clock_hits_all_cases_alike(world):
    class Drifting(FakeTimer):
        def round(self, iterations, *, ahead=0):
            slow = 1 + self.world.now_s
            self.times = itertools.repeat(int(10 * MS * slow))
            return super().round(iterations, ahead=ahead)

    cases = [Timed(case_id=name, timer=Drifting(world, ())) for name in "ab"]
    world.run(cases, max_seconds=2.0, ci=0.0001)
    first, second = (median(world.samples(case)) for case in cases)
    assert first == pytest.approx(second, rel=0.02)


@pytest.mark.parametrize(("settle_ns", "alike"), [(0, False), (25 * MS, True)])
def test_a_case_is_measured_at_the_clock_of_its_own_load(world, settle_ns, alike):
    heats = {"same, first": 0.0, "hot": 0.3, "same, second": 0.0}
    cases = [Timed(case_id=name, timer=HotChip(world, heat, settle_ns)) for name, heat in heats.items()]
    world.run(cases, min_iters=5, max_seconds=0.2, ci=0.0001)
    slowest = max(max(world.samples(case)) for case in cases if case.case_id != "hot")
    assert (slowest < 2 * MS * 1.03) is alike


def test_what_settles_the_device_is_no_sample_and_costs_no_budget(world):
    wild = [5 * MS, 10 * MS, 23 * MS, 4 * MS, 17 * MS, 31 * MS, 8 * MS, 12 * MS]
    case = world.timed("one", itertools.chain([5 * MS] * 3, itertools.cycle(wild)))
    case.timer.settle_ns = 25 * MS
    world.run([case], min_iters=5, max_seconds=2.0, ci=0.001)
    assert 1 <= case.ahead <= 6
    assert sum(world.samples(case)) / 1e9 == pytest.approx(2.0, rel=0.5)
    assert case.spent_s > 3.5


@pytest.mark.parametrize("clocks", [(1980.0, 1980.0), (1980.0, 1700.0), (None, None)])
def test_a_chip_that_is_left_at_the_clock_of_the_next_case_settles_sooner(world, clocks):
    class Clocked(FakeTimer):
        settle_ns = 75 * MS

        def __init__(self, world, clock):
            super().__init__(world, itertools.repeat(MS))
            self.clock = clock

        def round(self, iterations, *, ahead=0):
            aheads.append(ahead)
            taken = super().round(iterations, ahead=ahead)
            return [dataclasses.replace(one, sm_clock_mhz=self.clock) for one in taken]

    aheads = []
    world.run([Timed(case_id=str(at), timer=Clocked(world, clock)) for at, clock in enumerate(clocks)], min_iters=5)
    at_clock = [clocks[int(name)] for name, *_ in world.rounds]
    expected = [75, *(75 if None in pair or pair[0] != pair[1] else 15 for pair in itertools.pairwise(at_clock))]
    for name in "01":  # at which clock a case runs is not known before its first round
        expected[[name for name, *_ in world.rounds].index(name)] = 75
    assert aheads[-10:] == expected


def test_a_slow_first_call_does_not_keep_the_device_from_settling(world):
    case = world.timed("compiled", itertools.chain([300 * MS], itertools.repeat(MS)))
    case.timer.settle_ns = 25 * MS
    world.run([case], min_iters=20, ci=0.0)
    assert case.ahead in (25, 26)
    assert len(case.samples_ns[-1]) in (39, 40)


def test_a_long_iteration_settles_by_itself(world):
    case = world.timed("long", itertools.repeat(300 * MS))
    case.timer.settle_ns = 25 * MS
    world.run([case], min_iters=5)
    assert case.ahead == 0


def test_at_least_min_iters_even_over_the_budget(world):
    case = world.timed("slow", itertools.repeat(1000 * MS))
    world.run([case], min_iters=7, max_seconds=0.5)
    assert len(world.samples(case)) >= 7


def test_two_rounds_at_least_whatever_is_asked(world):
    case = world.timed("slow", itertools.repeat(1000 * MS))
    world.run([case], min_iters=1, max_seconds=0.001)
    assert len(case.samples_ns) == 2


def test_goes_on_until_the_interval_is_narrow_or_the_budget_spent(world):
    steady = world.timed("steady", itertools.repeat(20 * MS))
    draw = random.Random(0)
    wild = world.timed("wild", (draw.randint(4 * MS, 31 * MS) for _ in itertools.count()))
    world.run([steady, wild], max_seconds=3.0, ci=0.02)
    assert len(world.samples(steady)) == 10
    assert 3.0 <= sum(world.samples(wild)) / 1e9 < 3.2


@pytest.mark.parametrize("elapsed", [0, -5])
def test_a_time_that_cannot_be_is_an_error_and_no_sample(world, elapsed):
    case = world.timed("zero", [MS, MS, MS, elapsed])
    other = world.timed("other", itertools.repeat(50 * MS))
    world.run([case, other])
    assert isinstance(case.error, InvalidTimeError)
    assert str(case.error) == f"an iteration took {elapsed} ns by the device's own clock"
    assert len(world.samples(other)) >= 10
    assert elapsed not in world.samples(case)


def test_a_clock_without_samples_is_an_error(world):
    case = world.timed("none", ())
    case.timer.round = lambda iterations, *, ahead: []
    world.run([case])
    assert isinstance(case.error, NoSamplesError)
    assert world.rounds == []


def test_a_failure_leaves_the_others_in_the_loop(world):
    failing = world.timed("bad", itertools.chain([20 * MS] * 5, [RuntimeError("device side assert")]))
    good = world.timed("good", itertools.repeat(20 * MS))
    world.run([failing, good], ci=1.0)
    assert world.failures == ["bad"]
    assert str(failing.error) == "device side assert"
    assert len(world.samples(good)) == 10
    assert failing.samples_ns  # whole rounds before the failure were handed on


def test_on_failure_may_end_the_loop(world):
    def lost(case):
        raise ConnectionError

    with pytest.raises(ConnectionError):
        interleave(
            [world.timed("bad", [ValueError()]), world.timed("good", itertools.repeat(MS))],
            Measure(),
            on_turn=lambda case: None,
            on_round=lambda case, samples: None,
            on_failure=lost,
        )


def test_interrupted_case_goes_on_at_the_next_round(world):
    fresh = world.timed("fresh", itertools.repeat(20 * MS))
    resumed = world.timed("resumed", itertools.repeat(20 * MS), rounds_done=3)
    world.run([fresh, resumed], ci=1.0)
    assert [number for name, number, _ in world.rounds if name == "resumed"] == [3, 4]
    assert len(world.samples(fresh)) == 10


def test_turns_are_told_before_they_happen(world):
    world.run([world.timed("bad", [ValueError()])])
    assert world.turns == ["bad"]


def test_short_cases_take_more_iterations_a_round(world):
    case = world.timed("short", itertools.repeat(100_000))
    world.run([case], min_iters=10)
    assert {size for *_, size in world.rounds} == {50}


def test_ranks_decide_together(world):
    """A rank whose own times are narrow goes on while another's are not, and both see the slowest's time."""
    wild = itertools.cycle([50.0 * MS, 10.0 * MS, 23.0 * MS, 4.0 * MS, 17.0 * MS, 31.0 * MS, 8.0 * MS])
    case = world.timed("steady", itertools.repeat(MS))

    def slowest(values):
        *times, _, warm_s, slowness = values
        return [*(next(wild) for _ in times), 0.1, warm_s, slowness]

    interleave(
        [case],
        Measure(min_iters=5, max_seconds=2.0, ci=0.001),
        on_turn=lambda case: None,
        on_round=lambda case, samples: None,
        agree=slowest,
        now_s=lambda: world.now_s,
    )
    assert min(world.samples(case)) >= 4 * MS
    assert len(case.samples_ns) >= 19
