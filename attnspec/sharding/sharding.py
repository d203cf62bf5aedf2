"""What every strategy's plan tells: who holds, computes, sends and receives what. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from attnspec.shape import Pass
from attnspec.sharding.calls import Task
from attnspec.slices.edges import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Bytes between a rank and a peer. content: what they are (kv, dkv, q, out, dout, dq, ...)."""

    kind: Literal["send", "receive"]
    step: int
    peer: int
    num_bytes: int
    content: str


class Sharding(Protocol):
    """One strategy's plan for one mask over the ranks."""

    @property
    def num_ranks(self) -> int:
        """Ranks that share the sequence."""
        ...

    @property
    def mesh(self) -> Mapping[str, int]:
        """Degrees, for the record."""
        ...

    @property
    def partials(self) -> int:
        """Into how many parts the keys of a row are split and merged, at most."""
        ...

    @property
    def padding_tokens(self) -> int:
        """Slots of all ranks that hold no token."""
        ...

    @property
    def areas(self) -> Sequence[int]:
        """Allowed pairs times query heads that each rank computes."""
        ...

    def q_tokens(self, rank: int) -> IntArray:
        """Positions of the queries that a rank holds, in its order."""
        ...

    def k_tokens(self, rank: int) -> IntArray:
        """Positions of the keys that a rank holds, in its order."""
        ...

    def tasks(self, rank: int) -> tuple[Task, ...]:
        """What a rank computes."""
        ...

    def messages(self, rank: int, pass_: Pass) -> tuple[Message, ...]:
        """What a rank sends and receives in one iteration of a pass, in order of steps."""
        ...


def comm_bytes(sharding: Sharding, pass_: Pass) -> int:
    """Bytes that one rank sends in one iteration, the largest over ranks."""
    return max(sent_bytes(sharding.messages(rank, pass_)) for rank in range(sharding.num_ranks))


def sent_bytes(messages: Iterable[Message]) -> int:
    """The sum over what is sent.

    >>> sent_bytes([Message(kind="send", step=0, peer=1, num_bytes=8, content="kv")])
    8
    """
    return sum(one.num_bytes for one in messages if one.kind == "send")


def load_imbalance(areas: Sequence[int]) -> float:
    """Largest over mean; 1 for an empty mask.

    >>> load_imbalance([3, 1])
    1.5
    """
    total = sum(areas)
    return max(areas) * len(areas) / total if total else 1.0
