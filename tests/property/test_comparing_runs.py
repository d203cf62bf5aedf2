"""False alarms and power of comparisons, on recorded samples: a run's rounds are dealt into two halves, many times."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from attnspec.record.rounds import packs_of
from attnspec.report.comparison import Verdict, verdict_of
from attnspec.report.ratios import Pack, Ratio, pack_time, ratios
from attnspec.report.run import open_run
from attnspec.stats import seed_of

MEASURED = Path(__file__).parents[2] / "data" / "measured"
THRESHOLD = 0.03
Samples = dict[str, list[list[np.ndarray]]]


@functools.cache
def recorded(run: str) -> Samples:
    """case_id -> pack -> round -> samples in ns, of the cases that are ok."""
    opened = open_run(MEASURED / run)
    timings = opened.timings.to_pandas()
    ranks = dict(zip(opened.cells["case_id"].to_pylist(), opened.cells["cp_size"].to_pylist(), strict=True))
    found = {}
    for case_id, rows in timings.groupby("case_id", sort=False):
        table = pa.Table.from_pandas(rows, preserve_index=False)
        found[case_id] = [list(rounds) for rounds in packs_of(table, "elapsed_ns", ranks[case_id])]
    return found


@functools.cache
def part(run: str, case_id: str, pack: int, chosen: tuple[int, ...], factor: float = 1.0) -> Pack:
    rounds = [recorded(run)[case_id][pack][one] * factor for one in chosen]
    return pack_time(rounds, seed=seed_of(f"{case_id} {pack} {chosen}"))


def halves(run: str, rng: np.random.Generator) -> dict[str, tuple[list[Pack], list[Pack]]]:
    """Every pack's rounds, dealt at random to an older and a newer half."""
    dealt = {}
    for case_id, packs in recorded(run).items():
        sides: tuple[list[Pack], list[Pack]] = ([], [])
        for pack, rounds in enumerate(packs):
            order = rng.permutation(len(rounds)).tolist()
            larger = rng.integers(2)
            cut = (len(rounds) + int(larger)) // 2
            for side, chosen in zip(sides, (order[:cut], order[cut:]), strict=True):
                side.append(part(run, case_id, pack, tuple(sorted(chosen))))
        dealt[case_id] = sides
    return dealt


def slowed(ratio: Ratio, factor: float) -> Ratio:
    """What the same case would have shown, had NEW been slower by a factor: times scale, relative spreads stay."""
    return Ratio(*(one * factor for one in ratio))


def tries(run: str, count: int) -> tuple[int, float]:
    """How many tries raised any alarm, and the share of planted 5 percent slow-downs that were found."""
    rng = np.random.default_rng(2024)
    alarms, found = 0, []
    for _ in range(count):
        results = ratios(list(halves(run, rng).values()))
        verdicts = [verdict_of(one, THRESHOLD) for one in results]
        alarms += any(one in (Verdict.SLOWER, Verdict.FASTER) for one in verdicts)
        found += [verdict_of(slowed(one, 1.05), THRESHOLD) is Verdict.SLOWER for one in results]
    return alarms, float(np.mean(found))


def test_halves_of_a_run_raise_no_alarm_and_a_planted_slow_down_is_found() -> None:
    alarms, power = tries("h200_quickstart", 8)
    assert alarms == 0
    assert power > 0.7


@pytest.mark.parametrize("run", ["h200_quickstart", "h200_check"])
def test_older_rounds_against_newer_ones_raise_no_alarm(run: str) -> None:
    """What drifts in one direction while a run goes on."""
    dealt = []
    for case_id, packs in recorded(run).items():
        cuts = [(len(rounds) // 2, len(rounds)) for rounds in packs]
        old = [part(run, case_id, pack, tuple(range(cut))) for pack, (cut, _) in enumerate(cuts)]
        new = [part(run, case_id, pack, tuple(range(cut, end))) for pack, (cut, end) in enumerate(cuts)]
        dealt.append((old, new))
    verdicts = {verdict_of(one, THRESHOLD) for one in ratios(dealt)}
    assert verdicts <= {Verdict.SAME, Verdict.AMBIGUOUS}


@pytest.mark.slow
@pytest.mark.parametrize("run", ["h200_quickstart", "h200_check"])
def test_false_alarms_in_a_hundred_tries(run: str) -> None:
    alarms, power = tries(run, 100)
    print(f"{run}: {alarms} of 100 tries raised an alarm; 5 percent found in {power:.1%} of halves")
    assert alarms <= 5
    assert power > 0.7


@pytest.mark.parametrize(("run", "least"), [("h200_quickstart", 0.95), ("h200_check", 0.9)])
def test_five_percent_between_whole_runs_is_found(run: str, least: float) -> None:
    """Both sides with all rounds of a recorded run: what two runs of that length would tell."""
    pairs = []
    for case_id, packs in recorded(run).items():
        chosen = [tuple(range(len(rounds))) for rounds in packs]
        old = [part(run, case_id, pack, one) for pack, one in enumerate(chosen)]
        new = [part(run, case_id, pack, one, 1.05) for pack, one in enumerate(chosen)]
        pairs.append((old, new))
    verdicts = [verdict_of(one, THRESHOLD) for one in ratios(pairs)]
    share = sum(one is Verdict.SLOWER for one in verdicts) / len(verdicts)
    print(f"{run}: {share:.1%} of cases")
    assert share > least


def test_scaling_new_times_scales_the_ratio() -> None:
    """What `slowed` relies on."""
    case_id, packs = next(iter(recorded("h200_quickstart").items()))
    chosen = [tuple(range(len(rounds))) for rounds in packs]
    sides = [
        [part("h200_quickstart", case_id, pack, one, factor) for pack, one in enumerate(chosen)]
        for factor in (1.0, 1.0, 1.05)
    ]
    plain, scaled = (ratios([(sides[0], new)])[0] for new in sides[1:])
    assert scaled == pytest.approx(slowed(plain, 1.05), rel=1e-9)


def test_drift_within_a_run_widens_its_intervals() -> None:
    """Rounds that lie far apart say little, however many samples each holds."""
    rng = np.random.default_rng(1)
    steady = [[rng.normal(1e6, 2e3, 50) for _ in range(5)]]
    drifting = [[rng.normal(1e6 * (1 + 0.02 * number), 2e3, 50) for number in range(5)]]
    quiet, loud = (
        ratios([([pack_time(side[0], seed=1)], [pack_time(side[0], seed=2)])])[0] for side in (steady, drifting)
    )
    assert math.log(loud.high) > 20 * math.log(quiet.high)


def test_a_single_round_says_nothing_alone_and_borrows_from_others() -> None:
    one = [Pack(median_ns=100.0, variance_ns2=None, num_rounds=1)]
    assert ratios([(one, one)]) == [(1.0, 0.0, math.inf)]
    assert verdict_of(Ratio(2.0, 0.0, math.inf), THRESHOLD) is Verdict.AMBIGUOUS
    known = [
        ([Pack(median_ns=100.0, variance_ns2=0.1 * scale, num_rounds=5)],) * 2 for scale in (0.8, 0.9, 1.0, 1.1, 1.2)
    ]
    borrowed = ratios([*known, (one, one)])[-1]
    assert 0.9 < borrowed.low < 1 < borrowed.high < 1.1


@pytest.mark.slow
def test_intervals_hold_for_all_cases_at_once() -> None:
    """Simulated runs with rounds that differ, differently per case: some interval misses in at most 5 percent."""
    rng = np.random.default_rng(7)
    misses = 0
    for trial in range(100):
        pairs = []
        for _ in range(40):
            spread = 1e4 * math.exp(rng.normal(0, 0.7))
            sides = [
                [pack_time([rng.normal(1e6 + rng.normal(0, spread), 3e3, 6) for _ in range(5)], seed=trial)]
                for _ in range(2)
            ]
            pairs.append(tuple(sides))
        misses += any(one.low > 1 or one.high < 1 for one in ratios(pairs))
    assert misses <= 9
