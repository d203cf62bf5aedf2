"""The samples of a run's cases by pack and round, refused where they are not whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from attnspec.errors import InputError
from attnspec.record.rounds import packs_of
from attnspec.report.run import OpenedRun

Packs = list[list[NDArray[np.int64]]]


def samples_by_case(
    run: OpenedRun, case_ids: Iterable[str], *, columns: Sequence[str] = ()
) -> Iterator[tuple[str, pa.Table]]:
    """case_id -> its rows, ordered by pack, round, rank and iteration; `columns` beside those that say when.

    Raises InputError where a case has none.
    """
    names = ("pack", "round", "rank", "iteration")
    timings = run.timings.sort_by([(name, "ascending") for name in ("case_id", *names)])
    timings = timings.select(["case_id", *names, "started_ns", "elapsed_ns", *columns]).combine_chunks()
    cases = timings["case_id"].to_numpy(zero_copy_only=False)
    edges = [*np.flatnonzero(np.concatenate([[True], cases[1:] != cases[:-1]])[: len(cases)]), len(cases)]
    spans = {cases[start]: (int(start), int(end - start)) for start, end in pairwise(edges)}
    for case_id in case_ids:
        if case_id not in spans:
            raise InputError(f"{run.place}: case {case_id} is ok and has no samples in timings.parquet")
        yield case_id, timings.slice(*spans[case_id])


def whole_packs(run: OpenedRun, row: Mapping[str, Any], samples: pa.Table) -> Packs:
    """Per pack, per round: what each iteration took in ns, on the slowest rank.

    samples: of one case, as `samples_by_case` gives them. Raises InputError where ranks, packs or iterations are
    missing or stand twice, or took no time.
    """
    case_id, num_ranks, num_packs = row["case_id"], row["cp_size"], row["num_packs"]
    if not _whole(samples, num_ranks, num_packs):
        ranks = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
        where = "1 pack" if num_packs == 1 else f"each of {num_packs} packs"
        raise InputError(
            f"{run.place}: the samples of case {case_id} in timings.parquet are not whole rounds of {ranks} in {where}"
        )
    packs = [list(rounds) for rounds in packs_of(samples, "elapsed_ns", num_ranks)]
    if any(int(one.min()) <= 0 for rounds in packs for one in rounds):
        raise InputError(f"{run.place}: case {case_id} has samples in timings.parquet that took no time")
    return packs


def _whole(samples: pa.Table, num_ranks: int, num_packs: int) -> bool:
    """Whether all packs are there, and of every iteration each rank's sample, once."""
    pack, number, rank, iteration = (samples[name].to_numpy() for name in ("pack", "round", "rank", "iteration"))
    if not np.array_equal(np.unique(pack), np.arange(num_packs)):
        return False
    order = np.lexsort((rank, iteration, number, pack))
    count, left = divmod(len(order), num_ranks)
    if left or not np.array_equal(rank[order], np.tile(np.arange(num_ranks), count)):
        return False
    told = np.stack([pack, number, iteration])[:, order]
    iterations = told[:, ::num_ranks]
    repeated = np.all(iterations[:, 1:] == iterations[:, :-1], axis=0).any()
    return bool(np.array_equal(told, np.repeat(iterations, num_ranks, axis=1)) and not repeated)
