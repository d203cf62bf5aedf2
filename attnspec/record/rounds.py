"""Whole rounds of raw samples: what of a journal's timings counts. Pure.

A round is kept or lost whole: it counts when every rank journaled the same iterations of it in one attempt. A round
that several attempts hold (a kill came between the files of two ranks) counts once, from the first that has it whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from attnspec.record.entries import Outcome
from attnspec.record.status import Status

IntArray = NDArray[np.int64]


def sound_samples(timings: pa.Table, outcomes: Iterable[Outcome]) -> pa.Table:
    """Samples that no outcome voids: `wrong` and `error` do, for their case, result_key and attempts up to theirs."""
    void: dict[tuple[str, str | None], int] = {}
    for one in outcomes:
        if one.status in (Status.WRONG, Status.ERROR):
            key = (one.case_id, one.result_key)
            void[key] = max(one.attempt, void.get(key, 0))
    if not void:
        return timings
    columns = (timings[name].to_pylist() for name in ("case_id", "result_key", "attempt"))
    kept = (attempt > void.get((case_id, key), 0) for case_id, key, attempt in zip(*columns, strict=True))
    return timings.filter(pa.array(kept, type=pa.bool_()))


def whole_rounds(timings: pa.Table, num_ranks: Mapping[str, int]) -> pa.Table:
    """Rows of whole rounds, each once, ordered by case (as in `num_ranks`), result_key, pack, round, rank, iteration.

    timings: columns of Sample. num_ranks: case_id -> ranks that take part; rows of other cases are left out.
    """
    if timings.num_rows == 0:
        return timings
    case = _codes(timings["case_id"], num_ranks)
    key = _codes(timings["result_key"], sorted(set(timings["result_key"].to_pylist())))
    columns = [
        case,
        key,
        *(timings[name].to_numpy().astype(np.int64) for name in ("pack", "round", "attempt", "rank", "iteration")),
    ]
    rows = np.stack(columns, axis=1)
    order = np.lexsort(rows.T[::-1])
    order = order[case[order] >= 0]
    rows = rows[order]
    fresh = np.ones(len(rows), dtype=bool)
    fresh[1:] = np.any(rows[1:] != rows[:-1], axis=1)
    order, rows = order[fresh], rows[fresh]
    ranks = np.array(list(num_ranks.values()), dtype=np.int64)
    return timings.take(order[_counting(rows, ranks)])


def rounds_done(timings: pa.Table, num_ranks: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """result_key -> {pack index as text: whole rounds from round 0 on without a gap}, as a JobRequest carries it."""
    whole = whole_rounds(timings, num_ranks)
    held: dict[tuple[str, int], set[int]] = {}
    columns = (whole[name].to_pylist() for name in ("result_key", "pack", "round"))
    for key, pack, number in zip(*columns, strict=True):
        held.setdefault((key, pack), set()).add(number)
    done: dict[str, dict[str, int]] = {}
    for (key, pack), numbers in held.items():
        count = next(number for number in range(len(numbers) + 1) if number not in numbers)
        if count:
            done.setdefault(key, {})[str(pack)] = count
    return done


def packs_of(samples: pa.Table, name: str, num_ranks: int) -> Iterator[Iterator[IntArray]]:
    """Per pack, per round: the slowest rank's value of each iteration. Nothing where a value is null.

    samples: one case's whole rounds, as `whole_rounds` orders them. name: `elapsed_ns` or `host_ns`.
    """
    column = samples[name]
    if column.null_count:
        return
    values, packs, rounds = (samples[one].to_numpy() for one in (name, "pack", "round"))
    for pack in np.unique(packs):
        mine = packs == pack
        yield (
            values[mine & (rounds == number)].reshape(num_ranks, -1).max(axis=0) for number in np.unique(rounds[mine])
        )


def _codes(column: pa.ChunkedArray, names: Iterable[str]) -> IntArray:
    """Position of each value in `names`, -1 for others."""
    position = {name: index for index, name in enumerate(names)}
    encoded = column.combine_chunks().dictionary_encode()
    table = np.array([position.get(value, -1) for value in encoded.dictionary.to_pylist()], dtype=np.int64)
    codes: IntArray = table[encoded.indices.to_numpy(zero_copy_only=False)]
    return codes


def _counting(rows: IntArray, ranks: IntArray) -> NDArray[np.bool_]:
    """Which of the sorted, distinct rows (case, key, pack, round, attempt, rank, iteration) count."""
    if not len(rows):
        return np.zeros(0, dtype=bool)
    tries = _starts(rows[:, :5])
    sizes = np.diff(tries, append=len(rows))
    wanted = ranks[rows[tries, 0]]
    per_rank = np.maximum(sizes // wanted, 1)
    first = np.repeat(tries, sizes)
    place = np.arange(len(rows)) - first
    width = np.repeat(per_rank, sizes)
    fits = (rows[:, 5] == place // width) & (rows[:, 6] == rows[first + place % width, 6])
    whole = np.logical_and.reduceat(fits, tries) & (sizes == per_rank * wanted)
    rounds = _starts(rows[tries, :4])
    round_of_try = np.repeat(np.arange(len(rounds)), np.diff(rounds, append=len(tries)))
    chosen = np.zeros(len(tries), dtype=bool)
    winners, at = np.unique(round_of_try[whole], return_index=True)
    chosen[np.flatnonzero(whole)[at]] = winners >= 0
    return np.repeat(chosen, sizes)


def _starts(rows: IntArray) -> IntArray:
    """Indices at which a run of equal rows begins."""
    changed = np.ones(len(rows), dtype=bool)
    changed[1:] = np.any(rows[1:] != rows[:-1], axis=1)
    return np.flatnonzero(changed)
