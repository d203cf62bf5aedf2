"""All-to-all between shards of the sequence and shares of the heads (DeepSpeed-Ulysses, Jacobs et al. 2023).

U ranks of a head group each hold L slots with all heads. `spread` gives each the slots of all for its own heads of one
stage, `collect` brings results back. Own shares are copied, never sent. Suffixes: B batch, L a rank's slots, T all
slots of the group, N query heads, G key/value heads, H heads of a rank in one stage, U ranks, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnspec.exchange.guard import Guard
from attnspec.exchange.lanes import use
from attnspec.exchange.transport import Parcel, Pending, Transport
from attnspec.sharding.heads import HeadSplit
from attnspec.sharding.routes import Channel

_WORD = torch.int64


class Spread:
    """One stage's tensors on their way to the ranks of their heads."""

    def __init__(self, pending: Pending, q_UBLHD: Tensor, kv: Tensor | None) -> None:
        self._pending, self._q_UBLHD, self._kv = pending, q_UBLHD, kv

    def arrive(self) -> None:
        """What follows on the current stream begins after it has come."""
        self._pending.wait()

    def wait(self) -> tuple[Tensor, Tensor | None]:
        """(q_BTHD, kv (2, B, T, H, D)) as the current stream will see them; not copied where the batch is 1."""
        self._pending.wait()
        use(self._q_UBLHD)
        q_BTHD = self._q_UBLHD.movedim(0, 1).flatten(1, 2).contiguous()
        if self._kv is None:
            return q_BTHD, None
        use(self._kv)
        return q_BTHD, self._kv.movedim(1, 2).flatten(2, 3).contiguous()


class Collect:
    """One stage's results on their way back."""

    def __init__(
        self, exchange: HeadExchange, stage: int, pending: Pending, own: Sequence[Tensor], got: Sequence[Tensor]
    ) -> None:
        self._exchange, self._stage, self._pending, self._own, self._got = exchange, stage, pending, own, got

    def into(self, targets: Sequence[Tensor], guard: Guard) -> None:
        """Put them where the stage's heads are in the (B, L, N or G, D) targets; copies of a key's head are summed."""
        self._pending.wait()
        for target, own, got in zip(targets, self._own, self._got, strict=True):
            use(own)
            guard.run(self._exchange.unpack, self._stage, own, got, target)


class HeadExchange:
    """The all-to-alls of one rank. group: the ranks of its head group in order; member: its number among them."""

    def __init__(self, split: HeadSplit, group: Sequence[int], member: int) -> None:
        self._split, self._group, self._member = split, group, member
        self._others = [number for number in range(len(group)) if number != member]
        self._own = [slice(member, member + 1)]
        rest = [slice(0, member), slice(member + 1, len(group))]
        self._rest = [run for run in rest if run.start < run.stop]

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self._group)

    def spread(self, stage: int, q_BLND: Tensor, kv: Tensor | None, transport: Transport, guard: Guard) -> Spread:
        """Start bringing queries (or their gradients), and keys and values (2, B, L, G, D), to where they are used."""
        batch, share, _, width = q_BLND.shape
        size, split = len(self._group), self._split
        q_UBLHD = guard.room(q_BLND, (size, batch, share, split.num_heads_q, width))
        pairs = [(q_BLND, q_UBLHD)]
        all_keys = None
        if kv is not None:
            all_keys = guard.room(kv, (2, size, batch, kv.shape[2], split.num_heads_kv, width))
            pairs += [(kv[0], all_keys[0]), (kv[1], all_keys[1])]
        sends, receives = [], []
        for source, target in pairs:
            packed = guard.room(target, target.shape)
            guard.run(self._pack, stage, source, packed, self._rest)
            for number in self._others:
                sends.append(Parcel(peer=self._group[number], tensor=packed[number]))
                receives.append(Parcel(peer=self._group[number], tensor=target[number]))
        pending = transport.post(Channel.HEADS, sends, receives)
        for source, target in pairs:  # while that travels
            guard.run(self._pack, stage, source, target, self._own)
        return Spread(pending, q_UBLHD, all_keys)

    def collect(self, stage: int, results: Sequence[Tensor], transport: Transport, guard: Guard) -> Collect:
        """Start bringing results (B, T, H, D) back."""
        own, got_all, sends, receives = [], [], [], []
        for result in results:
            blocks_BULHD = torch.unflatten(result, 1, (len(self._group), -1))
            got = guard.room(result, (len(self._group), *blocks_BULHD[:, 0].shape))
            for number in self._others:
                sends.append(Parcel(peer=self._group[number], tensor=blocks_BULHD[:, number].contiguous()))
                receives.append(Parcel(peer=self._group[number], tensor=got[number]))
            own.append(blocks_BULHD[:, self._member])
            got_all.append(got)
        return Collect(self, stage, transport.post(Channel.HEADS, sends, receives), own, got_all)

    def unpack(self, stage: int, own_BLHD: Tensor, got_UBLHD: Tensor, target_BLND: Tensor) -> None:
        """Blocks of all ranks into the heads of a stage."""
        copies = self._copies(target_BLND)
        if copies > 1:
            got_UBLHD[self._member] = own_BLHD
            summed_GBLD = torch.unflatten(got_UBLHD, 0, (-1, copies)).sum(dim=1).squeeze(-2)
            target_BLND.movedim(2, 0).copy_(summed_GBLD)
            return
        places_UBLHD = self._places(stage, target_BLND)
        copy_rows(own_BLHD, places_UBLHD[self._member])
        for run in self._rest:
            copy_rows(got_UBLHD[run], places_UBLHD[run])

    def _pack(self, stage: int, source_BLND: Tensor, blocks_UBLHD: Tensor, members: Sequence[slice]) -> None:
        """Blocks for runs of members of the group."""
        copies = self._copies(source_BLND)
        if copies > 1:
            for number in (number for run in members for number in range(run.start, run.stop)):
                head = number // copies
                copy_rows(source_BLND[:, :, head : head + 1], blocks_UBLHD[number])
            return
        places_UBLHD = self._places(stage, source_BLND)
        for run in members:
            copy_rows(places_UBLHD[run], blocks_UBLHD[run])

    def _places(self, stage: int, part_BLND: Tensor) -> Tensor:
        """The heads of a stage, by rank: a view (U, B, L, H, D)."""
        parts = torch.unflatten(part_BLND, 2, (len(self._group), self._split.stages, -1))
        return parts[:, :, :, stage].movedim(2, 0)

    def _copies(self, part_BLND: Tensor) -> int:
        """On how many ranks each of the tensor's heads is: more than one where there are more ranks than heads."""
        return max(len(self._group) // part_BLND.shape[2], 1)


def copy_rows(source: Tensor, target: Tensor) -> None:
    """Torch copies strided memory element by element: here 8 bytes where types are alike and rows allow."""
    wide_source, wide_target = _as_words(source), _as_words(target)
    if wide_source is None or wide_target is None or source.dtype != target.dtype:
        target.copy_(source)
    else:
        wide_target.copy_(wide_source)


def _as_words(part: Tensor) -> Tensor | None:
    """The same memory in elements of 8 bytes, where its last axis is whole ones."""
    ratio = _WORD.itemsize // part.element_size()
    steps = (part.shape[-1], part.storage_offset(), *part.stride()[:-1])
    return part.view(_WORD) if part.stride(-1) == 1 and not any(one % ratio for one in steps) else None
