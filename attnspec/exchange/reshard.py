"""Bringing tokens to the ranks that work on them, and results back: an all-to-all of unequal shares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from attnspec.exchange.guard import Guard
from attnspec.exchange.transport import Parcel, Pending, Transport
from attnspec.sharding.reshard import Moves
from attnspec.sharding.routes import Channel


class Reshard:
    """One rank's part. num_home, num_work: its slots where tokens live and where they work."""

    def __init__(self, moves: Moves, num_home: int, num_work: int, device: str) -> None:
        self._home = torch.from_numpy(moves.sent_slots).to(device)
        self._work = torch.from_numpy(moves.filled_slots).to(device)
        self._there, self._here = _runs(moves.sent_counts.tolist()), _runs(moves.filled_counts.tolist())
        self._num_home, self._num_work = num_home, num_work

    def bring(self, parts: Sequence[Tensor], transport: Transport, guard: Guard) -> Arriving:
        """Start tensors (B, home slots, heads, D) on their way to (B, work slots, heads, D); padding is zero there."""
        return self._move(parts, (self._home, self._there), (self._work, self._here), self._num_work, transport, guard)

    def fetch(self, parts: Sequence[Tensor], transport: Transport, guard: Guard) -> Arriving:
        """The way back."""
        return self._move(parts, (self._work, self._here), (self._home, self._there), self._num_home, transport, guard)

    def _move(
        self,
        parts: Sequence[Tensor],
        sent: tuple[Tensor, list[slice]],
        filled: tuple[Tensor, list[slice]],
        num_slots: int,
        transport: Transport,
        guard: Guard,
    ) -> Arriving:
        """All tensors in one batch. Tokens come first in messages, so that each rank's share is one run of memory."""
        sends: list[Parcel] = []
        receives: list[Parcel] = []
        arriving = []
        for part in parts:
            batch, _, heads, width = part.shape
            packed = guard.room(part, (len(sent[0]), batch, heads, width))
            got = guard.room(part, (len(filled[0]), batch, heads, width))
            guard.run(_pack, part, sent[0], packed)
            for peer, (here, there) in enumerate(zip(sent[1], filled[1], strict=True)):
                if peer == transport.rank:
                    guard.run(got[there].copy_, packed[here])
                    continue
                if here.start < here.stop:
                    sends.append(Parcel(peer=peer, tensor=packed[here]))
                if there.start < there.stop:
                    receives.append(Parcel(peer=peer, tensor=got[there]))
            arriving.append(got)
        return Arriving(transport.post(Channel.HEADS, sends, receives), arriving, filled[0], num_slots, guard)


class Arriving:
    """Tensors on their way."""

    def __init__(
        self, pending: Pending, arriving: Sequence[Tensor], slots: Tensor, num_slots: int, guard: Guard
    ) -> None:
        self._pending, self._arriving, self._slots = pending, arriving, slots
        self._num_slots, self._guard = num_slots, guard

    def wait(self) -> list[Tensor]:
        """Tensors (B, slots, heads, D)."""
        self._pending.wait()
        made = []
        for got in self._arriving:
            filled = self._guard.run(_unpack, got, self._slots, self._num_slots)
            if filled is None:
                _, batch, heads, width = got.shape
                filled = self._guard.room(got, (batch, self._num_slots, heads, width))
            made.append(filled)
        return made


def _pack(part_BTND: Tensor, slots: Tensor, packed: Tensor) -> None:
    torch.index_select(part_BTND.transpose(0, 1), 0, slots, out=packed)


def _unpack(got: Tensor, slots: Tensor, num_slots: int) -> Tensor:
    _, batch, heads, width = got.shape
    made = got.new_zeros if len(slots) < num_slots else got.new_empty
    filled: Tensor = made((num_slots, batch, heads, width))
    return filled.index_copy_(0, slots, got).transpose(0, 1).contiguous()


def _runs(counts: list[int]) -> list[slice]:
    ends = list(accumulate(counts))
    return [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
