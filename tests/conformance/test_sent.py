"""What is counted of the operators of torch.distributed, on ranks over gloo."""

from __future__ import annotations

import pytest
from ranks import RankPool

pytestmark = pytest.mark.slow

SIZE = 3
PART = 3 * 5 * 4
"""Bytes of a part."""


def count_each(ranks):
    """name -> (bytes that this rank sends, operators, operators that are not counted)."""
    import torch
    import torch.distributed as dist

    from attnspec.exchange.transport import _all_gather, _reduce_scatter
    from attnspec.execute.sent import Sent

    rank, size = ranks.rank, ranks.size

    def part():
        return torch.zeros(3, 5)

    def parts():
        return [part() for _ in range(size)]

    def send_receive():
        sent, got = part(), part()
        batch = [dist.P2POp(dist.isend, sent, (rank + 1) % size), dist.P2POp(dist.irecv, got, (rank - 1) % size)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()

    def uneven():
        splits = [1 + (rank + peer) % size for peer in range(size)]  # symmetric, so that received splits are the same
        whole = torch.zeros(sum(splits), 5, dtype=torch.bfloat16)
        dist.all_to_all_single(torch.empty_like(whole), whole, splits, splits)

    class InBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            send_receive()
            return grad

    acts = {
        "send": send_receive,
        "all_gather_single": lambda: _all_gather(torch.zeros(size * 15), torch.zeros(15)),
        "reduce_scatter_single": lambda: _reduce_scatter(torch.zeros(15), torch.zeros(size * 15)),
        "all_gather": lambda: dist.all_gather(parts(), part()),
        "reduce_scatter": lambda: dist.reduce_scatter(part(), parts()),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.zeros(size, 15), torch.zeros(size, 15)),
        "uneven": uneven,
        "all_reduce": lambda: dist.all_reduce(part()),
        "broadcast": lambda: dist.broadcast(part(), 0),
        "gather": lambda: dist.gather(part(), parts() if rank == 1 else None, dst=1),
        "scatter": lambda: dist.scatter(part(), parts() if rank == 1 else None, src=1),
        "barrier": dist.barrier,
        "backward": lambda: InBackward.apply(torch.zeros(7, requires_grad=True)).sum().backward(),
        "nothing": lambda: part() + 1,
    }
    found = {}
    for name, act in acts.items():
        ranks.meet()
        with Sent() as sent:
            act()
        found[name] = sent.num_bytes, dict(sent.calls), sorted(sent.unknown)
    return found


def test_each_operator_counts_what_a_rank_sends():
    others = SIZE - 1
    with RankPool(SIZE) as pool:
        of_ranks = pool.run(count_each)
    for rank, found in enumerate(of_ranks):
        sent = {name: num_bytes for name, (num_bytes, _, _) in found.items()}
        assert not any(unknown for _, _, unknown in found.values())
        assert sent == {
            "send": PART,
            "all_gather_single": others * PART,
            "reduce_scatter_single": others * PART,
            "all_gather": others * PART,
            "reduce_scatter": others * PART,
            "all_to_all_single": others * PART,
            "uneven": sum(1 + (rank + peer) % SIZE for peer in range(SIZE) if peer != rank) * 5 * 2,
            "all_reduce": 2 * others * PART // SIZE,
            "broadcast": PART,
            "gather": 0 if rank == 1 else PART,
            "scatter": others * PART if rank == 1 else 0,
            "barrier": 0,
            "backward": PART,
            "nothing": 0,
        }
        assert found["send"][1] == found["backward"][1] == {"send": 1}
        assert found["barrier"][1] == found["nothing"][1] == {}


def count_unknown(ranks):
    import torch
    import torch.distributed as dist

    from attnspec.execute.sent import Sent

    with Sent() as sent:
        waited = torch.ops._c10d_functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD.group_name)
        total = torch.ops._c10d_functional.wait_tensor(waited)
    return total.tolist(), sent.num_bytes, sorted(sent.unknown)


def test_an_operator_that_is_not_known_is_told_and_runs():
    with RankPool(2) as pool:
        assert pool.run(count_unknown) == [([2.0, 2.0], 0, ["_c10d_functional::all_reduce"])] * 2
