"""All-to-all between shards of the sequence and shares of the heads (DeepSpeed-Ulysses, Jacobs et al. 2023).

U ranks of a head group each hold L slots with all heads. `spread` gives each the slots of all for its own heads, stage
by stage, and `Collect` brings results back. Own shares are copied, never sent. What is copied is copied for as many
stages at once as can be: a launch costs the host as much for one. Suffixes: B batch, L a rank's slots, T all slots of
the group, N query heads, G key/value heads, H heads of a rank in one stage, S stages, U ranks, D head_dim, P parts (K
and V are two), W a row of a head in words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnspec.exchange.guard import Guard
from attnspec.exchange.lanes import use
from attnspec.exchange.transport import Parcel, Pending, Transport
from attnspec.sharding.heads import HeadSplit
from attnspec.sharding.routes import Channel

_WORD = torch.int64
_EVERY = slice(None)


@dataclass(slots=True)
class Spread:
    """One stage's queries (or their gradients), and keys and values, on their way to the ranks of their heads."""

    pending: Pending
    q_UBLHD: Tensor
    kv_PUBLHD: Tensor | None

    def wait(self, guard: Guard) -> tuple[Tensor, Tensor | None]:
        """(q_BTHD, kv (2, B, T, H, D)) as the current stream will see them; not copied where the batch is 1."""
        self.pending.wait()
        kv = self.kv_PUBLHD
        return _tokens(self.q_UBLHD[None], guard)[0], None if kv is None else _tokens(kv, guard)


class HeadExchange:
    """The all-to-alls of one rank. group: the ranks of its head group in order; member: its number among them."""

    def __init__(self, split: HeadSplit, group: Sequence[int], member: int) -> None:
        self.split, self.group, self.member = split, group, member
        self.others = [number for number in range(len(group)) if number != member]
        rest = [slice(0, member), slice(member + 1, len(group))]
        self.rest = [run for run in rest if run.start < run.stop]

    def spread(self, q_BLND: Tensor, kv_PBLGD: Tensor | None, transport: Transport, guard: Guard) -> deque[Spread]:
        """Start bringing all stages to where they are used; the first is on its way while the others are packed."""
        moves = [_Move(self, part, guard) for part in (q_BLND[None], kv_PBLGD) if part is not None]
        pendings = []
        for stages in (slice(0, 1), slice(1, self.split.stages)):
            for move in moves:
                guard.run(move.pack, stages)
            for stage in range(stages.start, stages.stop):
                sends = [parcel for move in moves for parcel in move.parcels(move.packed, stage)]
                receives = [parcel for move in moves for parcel in move.parcels(move.target, stage)]
                pendings.append(transport.post(Channel.HEADS, sends, receives))
        for move in moves:  # while that travels
            guard.run(move.keep)
        q_SUBLHD = moves[0].target.view(q_BLND.dtype)[:, 0]
        kv = None if kv_PBLGD is None else moves[1].target.view(kv_PBLGD.dtype)
        return deque(
            Spread(pending, q_SUBLHD[stage], None if kv is None else kv[stage])
            for stage, pending in enumerate(pendings)
        )

    def places(self, part_PBLND: Tensor) -> Tensor:
        """The heads of each stage, by member: a view (S, P, U, B, L, H, D), or a copy where members share heads."""
        copies = self.copies(part_PBLND.shape[3])
        if copies > 1:
            part_PBLND = part_PBLND.repeat_interleave(copies, dim=3)
        parts = torch.unflatten(part_PBLND, 3, (len(self.group), self.split.stages, -1))
        return parts.permute(4, 0, 3, 1, 2, 5, 6)

    def copies(self, num_heads: int) -> int:
        """On how many members each of a tensor's heads is: more than one where there are more ranks than heads."""
        return max(len(self.group) // num_heads, 1)

    def heads(self, num_heads: int) -> int:
        """How many of a tensor's heads a member has in one stage."""
        return num_heads * self.copies(num_heads) // (len(self.group) * self.split.stages)


class _Move:
    """Blocks (S, P, U, B, L, H, W) of one tensor: where they lie, where they are sent from, where they are used."""

    def __init__(self, exchange: HeadExchange, part_PBLND: Tensor, guard: Guard) -> None:
        self._exchange, part = exchange, words(part_PBLND)
        parts, batch, share, num_heads, width = part.shape
        size, stages = len(exchange.group), exchange.split.stages
        shape = (stages, parts, size, batch, share, exchange.heads(num_heads), width)
        self.packed, self.target = guard.room(part, shape), guard.room(part, shape)
        self._places = guard.run(exchange.places, part)

    def pack(self, stages: slice) -> None:
        """What others need, to where it is sent from."""
        self._copy(self.packed, stages, self._exchange.rest)

    def keep(self) -> None:
        """The own share, to where it is used."""
        self._copy(self.target, _EVERY, [slice(self._exchange.member, self._exchange.member + 1)])

    def parcels(self, blocks: Tensor, stage: int) -> list[Parcel]:
        """A stage's blocks for or from each other member."""
        ranks, others = self._exchange.group, self._exchange.others
        return [Parcel(peer=ranks[number], tensor=part[number]) for part in blocks[stage] for number in others]

    def _copy(self, blocks: Tensor, stages: slice, members: Sequence[slice]) -> None:
        assert self._places is not None
        for run in members if blocks[stages].shape[0] else ():
            blocks[stages, :, run].copy_(self._places[stages, :, run])


class Collect:
    """Results of all stages on their way back into targets (B, L, N or G, D)."""

    def __init__(self, exchange: HeadExchange, targets: Sequence[Tensor], guard: Guard) -> None:
        self._exchange, self._targets, self._guard = exchange, targets, guard
        self._words = [words(target[None]) for target in targets]
        self._got = []
        for target in self._words:
            _, batch, share, num_heads, width = target.shape
            shape = (len(exchange.group), batch, share, exchange.heads(num_heads), width)
            self._got.append(guard.room(target, (exchange.split.stages, *shape)))
        self._own: list[list[Tensor]] = []
        self._pendings: list[Pending] = []

    def add(self, results: Sequence[Tensor], transport: Transport) -> None:
        """Start bringing the next stage's results (B, T, H, D) back."""
        stage, exchange = len(self._own), self._exchange
        own, sends, receives = [], [], []
        for result, target, got in zip(results, self._targets, self._got, strict=True):
            held = words(result)
            if held.dtype != got.dtype:
                held = words(self._guard.copied(result, target.dtype))
            blocks_BULHW = torch.unflatten(held, 1, (len(exchange.group), -1))
            for number in exchange.others:
                block = self._guard.contiguous(blocks_BULHW[:, number])
                sends.append(Parcel(peer=exchange.group[number], tensor=block))
                receives.append(Parcel(peer=exchange.group[number], tensor=got[stage, number]))
            own.append(blocks_BULHW[:, exchange.member])
        self._own.append(own)
        self._pendings.append(transport.post(Channel.HEADS, sends, receives))

    def finish(self) -> None:
        """Put all into the targets; the last stage travels while the others are put there."""
        for number in range(len(self._targets)):
            self._guard.run(self._keep, number)
        last = len(self._pendings) - 1
        for stages in (slice(0, last), slice(last, last + 1)):
            for pending in self._pendings[stages]:
                pending.wait()
            for number in range(len(self._targets)):
                self._guard.run(self._put, number, stages)

    def _keep(self, number: int) -> None:
        """The own blocks, to their place or among those that are summed."""
        exchange, target = self._exchange, self._words[number]
        summed = exchange.copies(target.shape[3]) > 1
        places = self._got[number] if summed else exchange.places(target)[:, 0]
        for stage, own in enumerate(self._own):
            places[stage, exchange.member].copy_(own[number])

    def _put(self, number: int, stages: slice) -> None:
        """Blocks of the others; copies of a key's head are summed."""
        exchange, got, target = self._exchange, self._got[number], self._words[number]
        if not got[stages].shape[0]:
            return
        copies = exchange.copies(target.shape[3])
        if copies > 1:
            held = self._targets[number]
            summed_GBLD = torch.unflatten(got[0].view(held.dtype), 0, (-1, copies)).sum(dim=1).squeeze(-2)
            held.movedim(2, 0).copy_(summed_GBLD)
            return
        places = exchange.places(target)[:, 0]
        for run in exchange.rest:
            places[stages, run].copy_(got[stages, run])


def words(part: Tensor) -> Tensor:
    """The same memory in elements of 8 bytes, where its last axis is whole ones; else as it is.

    Torch copies strided memory element by element; elements of 2 bytes reach half the speed (two H200, torch 2.11).
    """
    ratio = _WORD.itemsize // part.element_size()
    steps = (part.shape[-1], part.storage_offset(), *part.stride()[:-1])
    return part.view(_WORD) if ratio > 1 and part.stride(-1) == 1 and not any(one % ratio for one in steps) else part


def _tokens(part_PUBLHD: Tensor, guard: Guard) -> Tensor:
    """(P, B, T, H, D), a view where the batch is 1."""
    use(part_PUBLHD)
    view = part_PUBLHD.movedim(1, 2)
    if view.shape[1] == 1:
        return view.flatten(2, 3)
    return guard.copied(view).flatten(2, 3)
