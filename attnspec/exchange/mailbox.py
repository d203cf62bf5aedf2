"""What one place of a ring has received, will send and waits for, by step. Used by `attnspec.exchange.ring`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from attnspec.exchange.guard import Guard
from attnspec.exchange.transport import Parcel, Pending, Transport
from attnspec.sharding.routes import Channel, Transfer

Kind = Literal["keys", "grads"]
Pair = tuple[Tensor, Tensor]


class Errand(NamedTuple):
    """A transfer that this place takes part in."""

    kind: Kind
    transfer: Transfer


def errands_of(place: int, keys: Iterable[Transfer], grads: Iterable[Transfer], num_steps: int) -> list[list[Errand]]:
    """Those of one place by the step at whose beginning they start, in one order for both ends."""
    found: list[list[Errand]] = [[] for _ in range(num_steps)]
    for kind, transfers in (("keys", keys), ("grads", grads)):
        for one in transfers:
            if place in (one.source, one.target):
                found[one.start].append(Errand("keys" if kind == "keys" else "grads", one))
    for errands in found:
        errands.sort(key=lambda one: (one.transfer.channel, one.kind, one.transfer.owner))
    return found


class Mailbox:
    """One forward or backward of one place.

    keys: K and V by the step that works on them. totals: gradients of these by step, to be sent on. wide: element type
    of gradients that are sums already.
    """

    def __init__(
        self, place: int, ranks: Sequence[int], transport: Transport, guard: Guard, kv: Tensor, wide: torch.dtype
    ) -> None:
        self._place, self._ranks, self._transport, self._guard, self._wide = place, ranks, transport, guard, wide
        self.keys: dict[int, Tensor] = {0: kv}
        self.totals: dict[int, Pair] = {}
        self._incoming: dict[int, list[Pair]] = {}
        self._waiting: dict[tuple[Kind, int], list[Pending]] = {}
        self._started: list[Pending] = []

    def start(self, errands: Sequence[Errand]) -> None:
        """Start all transfers of a step, one batch per channel."""
        for channel in Channel:
            chosen = [one for one in errands if one.transfer.channel is channel]
            if chosen:
                self._post(channel, chosen)

    def need(self, kind: Kind, step: int) -> None:
        """Wait for what comes for a step."""
        for pending in self._waiting.pop((kind, step), ()):
            pending.wait()

    def incoming(self, step: int) -> list[Pair]:
        """Gradients that came for a step."""
        return self._incoming.pop(step, [])

    def finish(self) -> None:
        """Wait for everything, sends too."""
        for pending in self._started:
            pending.wait()

    def _post(self, channel: Channel, errands: Sequence[Errand]) -> None:
        sends: list[Parcel] = []
        receives: list[Parcel] = []
        due: set[tuple[Kind, int]] = set()
        for kind, one in errands:
            if one.source == self._place:
                sends += [Parcel(peer=self._ranks[one.target], tensor=tensor) for tensor in self._leaving(kind, one)]
            if one.target == self._place:
                receives += [Parcel(peer=self._ranks[one.source], tensor=room) for room in self._room(kind, one)]
                due.add((kind, one.due))
        pending = self._transport.post(channel, sends, receives)
        self._started.append(pending)
        for key in due:
            self._waiting.setdefault(key, []).append(pending)

    def _leaving(self, kind: Kind, one: Transfer) -> tuple[Tensor, ...]:
        return (self.keys[one.start],) if kind == "keys" else self.totals.pop(one.start + 1)

    def _room(self, kind: Kind, one: Transfer) -> tuple[Tensor, ...]:
        own = self.keys[0]
        if kind == "keys":
            self.keys[one.due] = self._guard.room(own, own.shape)
            return (self.keys[one.due],)
        dtype = self._wide if one.added else own.dtype
        pair = self._guard.room(own, own.shape[1:], dtype), self._guard.room(own, own.shape[1:], dtype)
        self._incoming.setdefault(one.due, []).append(pair)
        return pair
