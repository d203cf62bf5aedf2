"""How far apart the ranks of an iteration end, which begin together. Pure.

An iteration begins on all ranks at once (an all-reduce ahead of it on CUDA, a barrier on the CPU), so what the ranks'
times differ by is how far apart they end. A rank's time holds what it waits for messages of others: ranks that wait for
each other end together, however unevenly they compute; `load_imbalance` tells of that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Of one case. skew_ms: mean over packs of the median over iterations of the slowest less the quickest rank.

    share: the same as a share of the time, the sum over packs of the slowest rank's medians.
    """

    skew_ms: float
    share: float


def skew_by_case(timings: pa.Table) -> dict[str, Skew]:
    """Of the cases of a `timings.parquet` that several ranks share.

    >>> names = ("case_id", "pack", "rank", "round", "iteration", "elapsed_ns")
    >>> rows = [("c", 0, rank, 0, place, 4_000_000 + 1_000_000 * rank) for place in range(3) for rank in range(2)]
    >>> skew_by_case(pa.table(dict(zip(names, zip(*rows)))))
    {'c': Skew(skew_ms=1.0, share=0.2)}
    """
    keys = ["case_id", "pack", "round", "iteration"]
    every = timings.select([*keys, "rank", "elapsed_ns"]).group_by(keys, use_threads=False)
    found = every.aggregate([("elapsed_ns", "max"), ("elapsed_ns", "min"), ("rank", "count_distinct")])
    found = found.filter(pc.greater(found["rank_count_distinct"], 1))
    slowest, quickest, packs = (found[name].to_numpy() for name in ("elapsed_ns_max", "elapsed_ns_min", "pack"))
    coded = found["case_id"].combine_chunks().dictionary_encode()
    places = coded.indices.to_numpy(zero_copy_only=False)
    made: dict[str, Skew] = {}
    for number, case_id in enumerate(coded.dictionary.to_pylist()):
        of_packs = [(places == number) & (packs == pack) for pack in np.unique(packs[places == number])]
        skews_ns = [float(np.median(slowest[mine] - quickest[mine])) for mine in of_packs]
        times_ns = [float(np.median(slowest[mine])) for mine in of_packs]
        made[case_id] = Skew(skew_ms=sum(skews_ns) / len(of_packs) / 1e6, share=sum(skews_ns) / sum(times_ns))
    return made
