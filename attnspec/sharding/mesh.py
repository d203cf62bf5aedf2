"""Ranks as a mesh: neighbours split heads (Ulysses), rings across them split the sequence. Pure.

Rank r is number r % ulysses_degree of its head group and number r // ulysses_degree of its ring, so that a head group
lies inside one node and its rings run across nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attnspec.errors import UnsupportedError
from attnspec.shape import Shape

NODE_SIZE = 8
"""Devices that a node is taken to have where a degree is left open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """ulysses_degree x ring_degree ranks."""

    ulysses_degree: int
    ring_degree: int

    @property
    def size(self) -> int:
        """Ranks in all."""
        return self.ulysses_degree * self.ring_degree

    def place(self, rank: int) -> tuple[int, int]:
        """(number in the head group, number in the ring).

        >>> Mesh(ulysses_degree=2, ring_degree=3).place(5)
        (1, 2)
        """
        ring, head = divmod(rank, self.ulysses_degree)
        return head, ring

    def rank(self, head: int, ring: int) -> int:
        """The rank at a place."""
        return ring * self.ulysses_degree + head

    def head_group(self, ring: int) -> tuple[int, ...]:
        """Ranks that hold the same tokens' heads, in order."""
        return tuple(self.rank(head, ring) for head in range(self.ulysses_degree))

    def ring(self, head: int) -> tuple[int, ...]:
        """Ranks that hold the same heads' tokens, in order."""
        return tuple(self.rank(head, ring) for ring in range(self.ring_degree))


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    return tuple(one for one in range(1, number + 1) if number % one == 0)


def head_degrees(shape: Shape, cp_size: int, *, even: bool = False) -> tuple[int, ...]:
    """The degrees by which heads can be split over cp_size ranks, ascending; never empty, 1 is one of them.

    Each rank gets equally many query heads; key/value heads are split, or each is repeated on equally many ranks. Where
    a library repeats none (`even`) they must be split.

    >>> shape = Shape(batch=1, num_heads_q=40, num_heads_kv=8, head_dim=128, dtype="bfloat16")
    >>> head_degrees(shape, 40), head_degrees(shape, 40, even=True)
    ((1, 2, 4, 8, 40), (1, 2, 4, 8))
    """
    return tuple(one for one in divisors(cp_size) if _fault(shape, one, even=even) is None)


def head_mesh(shape: Shape, cp_size: int, ulysses_degree: int | None, *, even: bool = False, window: int = 1) -> Mesh:
    """The mesh of a given degree, or of the largest that fits a node and leaves a ring of whole windows, if one does.

    even: as in `head_degrees`. Raises UnsupportedError (mesh: it does not divide the ranks; heads: nor the heads),
    naming the degrees that work. A window that does not divide the ring is not refused here.

    >>> shape = Shape(batch=1, num_heads_q=64, num_heads_kv=8, head_dim=128, dtype="bfloat16")
    >>> head_mesh(shape, 32, None)
    Mesh(ulysses_degree=8, ring_degree=4)
    >>> head_mesh(shape, 8, None, window=2)
    Mesh(ulysses_degree=4, ring_degree=2)
    """
    allowed = head_degrees(shape, cp_size, even=even)
    allowed = tuple(one for one in allowed if cp_size // one % window == 0) or allowed
    if ulysses_degree is None:
        ulysses_degree = max(one for one in allowed if one <= NODE_SIZE)
    works = f"allowed ulysses_degree: {listed(allowed)}"
    if cp_size % ulysses_degree:
        raise UnsupportedError("mesh", f"ulysses_degree {ulysses_degree} does not divide {cp_size} ranks; {works}")
    check_heads(shape, ulysses_degree, works, even=even)
    return Mesh(ulysses_degree=ulysses_degree, ring_degree=cp_size // ulysses_degree)


def check_heads(shape: Shape, degree: int, works: str, *, even: bool = False) -> None:
    """Raise UnsupportedError when heads cannot be split by `degree`; `works` says what can. even: as above."""
    fault = _fault(shape, degree, even=even)
    if fault is not None:
        raise UnsupportedError("heads", f"{fault}; {works}")


def check_several(cp_size: int) -> None:
    """Raise UnsupportedError for one rank alone: a library's context parallelism wants a process group."""
    if cp_size < 2:
        raise UnsupportedError(
            "mesh", f"a library's context parallelism needs at least 2 ranks, got {cp_size}; allowed cp_size: 2 or more"
        )


def listed(numbers: Iterable[int]) -> str:
    """Numbers as a message names them.

    >>> listed((1, 2))
    '1, 2'
    """
    return ", ".join(map(str, numbers))


def _fault(shape: Shape, degree: int, *, even: bool) -> str | None:
    """Why heads cannot be split by `degree`; None where they can."""
    num_q, num_kv = shape.num_heads_q, shape.num_heads_kv
    if num_q % degree:
        return f"{num_q} query heads cannot be split over {degree} ranks"
    if even and num_kv % degree:
        return f"{num_kv} key/value heads cannot be split over {degree} ranks, and the library repeats none"
    if num_kv % degree and degree % num_kv:
        return (
            f"{num_kv} key/value heads can be neither split over {degree} ranks nor each repeated on equally many of "
            "them"
        )
    return None
