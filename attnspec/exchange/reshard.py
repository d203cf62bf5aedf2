"""Bringing tokens to the ranks that work on them, and results back: an all-to-all of unequal shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from attnspec.exchange.guard import Guard
from attnspec.exchange.transport import Parcel, Pending, Transport
from attnspec.sharding.reshard import Moves
from attnspec.sharding.routes import Channel
from attnspec.slices.edges import IntArray


class Reshard:
    """One rank's part. num_home, num_work: its slots where tokens live and where they work."""

    def __init__(self, moves: Moves, num_home: int, num_work: int, device: str) -> None:
        self._home = _Side.of(moves.sent_slots, moves.sent_counts, num_home, device)
        self._work = _Side.of(moves.filled_slots, moves.filled_counts, num_work, device)

    def bring(self, parts: Sequence[Tensor], transport: Transport, guard: Guard) -> Arriving:
        """Start tensors (B, home slots, heads, D) on their way to (B, work slots, heads, D); padding is zero there."""
        return _move(parts, self._home, self._work, transport, guard)

    def fetch(self, parts: Sequence[Tensor], transport: Transport, guard: Guard) -> Arriving:
        """The way back."""
        return _move(parts, self._work, self._home, transport, guard)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Side:
    """A rank's slots at one end. slots: of its tokens, those of each peer together. runs: of each peer among them.

    back: of every slot its place among the tokens; any place where it is padding. padding: those slots, or None.
    """

    slots: Tensor
    runs: list[slice]
    back: Tensor
    padding: Tensor | None

    @classmethod
    def of(cls, slots: IntArray, counts: IntArray, num_slots: int, device: str) -> _Side:
        back = np.full(num_slots, -1)
        back[slots] = np.arange(len(slots))
        padding = np.flatnonzero(back < 0)
        return cls(
            slots=torch.from_numpy(slots).to(device),
            runs=_runs(counts.tolist()),
            back=torch.from_numpy(np.maximum(back, 0)).to(device),
            padding=torch.from_numpy(padding).to(device) if len(padding) else None,
        )


class Arriving:
    """Tensors on their way."""

    def __init__(self, pending: Pending, arriving: Sequence[Tensor], side: _Side, guard: Guard) -> None:
        self._pending, self._arriving, self._side, self._guard = pending, arriving, side, guard

    def wait(self) -> list[Tensor]:
        """Tensors (B, slots, heads, D)."""
        self._pending.wait()
        made = []
        for got in self._arriving:
            filled = self._guard.run(_unpack, got, self._side)
            if filled is None:
                _, batch, heads, width = got.shape
                filled = self._guard.room(got, (batch, len(self._side.back), heads, width))
            made.append(filled)
        return made


def _move(parts: Sequence[Tensor], sent: _Side, filled: _Side, transport: Transport, guard: Guard) -> Arriving:
    """All tensors in one batch. Tokens come first in messages, so that each rank's share is one run of memory."""
    sends: list[Parcel] = []
    receives: list[Parcel] = []
    arriving = []
    for part in parts:
        batch, _, heads, width = part.shape
        packed = guard.room(part, (len(sent.slots), batch, heads, width))
        got = guard.room(part, (len(filled.slots), batch, heads, width))
        guard.run(_pack, part, sent, packed, transport.rank, got[filled.runs[transport.rank]])
        for peer, (here, there) in enumerate(zip(sent.runs, filled.runs, strict=True)):
            if peer != transport.rank and here.start < here.stop:
                sends.append(Parcel(peer=peer, tensor=packed[here]))
            if peer != transport.rank and there.start < there.stop:
                receives.append(Parcel(peer=peer, tensor=got[there]))
        arriving.append(got)
    return Arriving(transport.post(Channel.HEADS, sends, receives), arriving, filled, guard)


def _pack(part_BTND: Tensor, side: _Side, packed: Tensor, rank: int, kept: Tensor) -> None:
    """What peers get into `packed`, what stays here into `kept`."""
    own = side.runs[rank]
    before, after = slice(0, own.start), slice(own.stop, len(packed))
    for run, target in ((before, packed[before]), (own, kept), (after, packed[after])):
        if len(target):
            torch.index_select(part_BTND.transpose(0, 1), 0, side.slots[run], out=target)


def _unpack(got: Tensor, side: _Side) -> Tensor:
    """Tokens into their slots; it gathers, since scattering rows of bfloat16 goes element by element (torch 2.11)."""
    if not len(got):
        _, batch, heads, width = got.shape
        return got.new_zeros((batch, len(side.back), heads, width))
    filled = got.index_select(0, side.back)
    if side.padding is not None:
        filled.index_fill_(0, side.padding, 0)
    return filled.transpose(0, 1).contiguous()


def _runs(counts: list[int]) -> list[slice]:
    ends = list(accumulate(counts))
    return [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
