"""How much the SM clock moved while a case was measured. Pure.

Whether a sample was `throttled` says little: kernels that fill a chip run at its power limit, and samples do not keep
whether it was that, heat or a slowdown of the hardware.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def clock_spread_by_case(timings: pa.Table) -> dict[str, float]:
    """(p80 - p20) / median of a pack's clocks, of the rank where it is largest, the mean over packs; cases with clocks.

    >>> clocks = [1500.0, 1500.0, 1600.0, 1800.0, 1800.0, 1800.0]
    >>> held = {"case_id": ["c"] * 6, "pack": [0] * 6, "rank": [0] * 3 + [1] * 3, "sm_clock_mhz": clocks}
    >>> {case_id: round(share, 3) for case_id, share in clock_spread_by_case(pa.table(held)).items()}
    {'c': 0.04}
    """
    held = timings.select(["case_id", "pack", "rank", "sm_clock_mhz"])
    held = held.filter(held["sm_clock_mhz"].is_valid()).combine_chunks()
    if held.num_rows == 0:
        return {}
    coded = held["case_id"].combine_chunks().dictionary_encode()
    case, pack, rank = (np.asarray(one) for one in (coded.indices, held["pack"], held["rank"]))
    clock = np.asarray(held["sm_clock_mhz"])
    order = np.lexsort((rank, pack, case))
    keys = np.stack([case, pack, rank])[:, order]
    edges = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
    starts = [0, *edges]
    largest: dict[str, dict[int, float]] = {}
    for start, clocks in zip(starts, np.split(clock[order], edges), strict=True):
        low, middle, high = np.quantile(clocks, [0.2, 0.5, 0.8])
        packs = largest.setdefault(coded.dictionary[int(keys[0, start])].as_py(), {})
        packs[int(keys[1, start])] = max(packs.get(int(keys[1, start]), 0.0), float((high - low) / middle))
    return {case_id: sum(packs.values()) / len(packs) for case_id, packs in largest.items()}
