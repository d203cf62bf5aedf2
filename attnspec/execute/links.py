"""How fast the ranks of a job exchange data and how their devices are connected: once per job, for the record."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from attnspec.exchange.groups import Ranks
from attnspec.exchange.transport import Parcel
from attnspec.execute.nvml import Nvml
from attnspec.execute.topology import device_topology
from attnspec.sharding.routes import Channel
from attnspec.stats import median

MESSAGE_BYTES = {"cpu": (2**20,), "cuda": (2**26, 2**28)}
REPEATS = 5


def link_facts(ranks: Ranks, device: torch.device, synchronize: Callable[[], None]) -> dict[str, Any]:
    """Bytes per second that a rank sends to the next while it receives from the one before, and that it gathers.

    All ranks call this together; each message's time is that of the slowest rank, the median of a few.
    """
    rates = []
    for num_bytes in MESSAGE_BYTES[device.type]:
        part = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        share = part[: num_bytes // ranks.size]
        whole = torch.empty((ranks.size, len(share)), dtype=torch.uint8, device=device)
        swapped = _slowest_s(ranks, partial(_swap, ranks, part, torch.empty_like(part)), synchronize)
        gathered = _slowest_s(ranks, partial(ranks.transport.gather, share, whole), synchronize)
        rates.append(
            {
                "bytes": num_bytes,
                "send_receive_bytes_per_s": num_bytes / swapped,
                "all_gather_bytes_per_s": len(share) * (ranks.size - 1) / gathered,
            }
        )
    return {"num_ranks": ranks.size, "rates": rates, **_topology(ranks, device)}


def _swap(ranks: Ranks, part: torch.Tensor, got: torch.Tensor) -> None:
    sends = [Parcel(peer=(ranks.rank + 1) % ranks.size, tensor=part)]
    receives = [Parcel(peer=(ranks.rank - 1) % ranks.size, tensor=got)]
    ranks.transport.post(Channel.INNER, sends, receives).wait()


def _slowest_s(ranks: Ranks, call: Callable[[], None], synchronize: Callable[[], None]) -> float:
    """The median of a few calls, each as long as it took on the slowest rank; the first, which sets up, left out."""
    taken = []
    for _ in range(REPEATS + 1):
        synchronize()
        ranks.meet()
        started = time.perf_counter()
        call()
        synchronize()
        taken.append(time.perf_counter() - started)
    return median(ranks.largest(taken)[1:])


def _topology(ranks: Ranks, device: torch.device) -> dict[str, Any]:
    """Ranks per machine; of its CUDA devices which reach each other's memory, and how they are connected."""
    found: dict[str, Any] = {"ranks_per_machine": int(os.environ.get("LOCAL_WORLD_SIZE", ranks.size))}
    if device.type == "cuda":
        count = torch.cuda.device_count()
        found["peer_access"] = [
            [one == other or torch.cuda.can_device_access_peer(one, other) for other in range(count)]
            for one in range(count)
        ]
        found["devices"] = device_topology([Nvml.of(torch.device("cuda", index)) for index in range(count)])
    return found
