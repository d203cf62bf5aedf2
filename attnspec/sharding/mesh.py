"""Ranks as a mesh: neighbours split heads (Ulysses), rings across them split the sequence. Pure.

Rank r is number r % ulysses_degree of its head group and number r // ulysses_degree of its ring, so that a head group
lies inside one node and its rings run across nodes.
"""

from __future__ import annotations

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


def head_degrees(shape: Shape, cp_size: int) -> tuple[int, ...]:
    """The degrees by which heads can be split over cp_size ranks, ascending.

    Each rank gets equally many query heads; key/value heads are split, or each is repeated on equally many ranks.

    >>> head_degrees(Shape(batch=1, num_heads_q=40, num_heads_kv=8, head_dim=128, dtype="bfloat16"), 40)
    (1, 2, 4, 8, 40)
    """
    return tuple(
        one
        for one in divisors(cp_size)
        if shape.num_heads_q % one == 0 and (shape.num_heads_kv % one == 0 or one % shape.num_heads_kv == 0)
    )


def head_mesh(shape: Shape, cp_size: int, ulysses_degree: int | None) -> Mesh:
    """The mesh of a given degree, or of the largest that fits a node.

    Raises UnsupportedError (mesh: it does not divide the ranks; heads: nor the heads), naming the degrees that work.

    >>> shape = Shape(batch=1, num_heads_q=64, num_heads_kv=8, head_dim=128, dtype="bfloat16")
    >>> head_mesh(shape, 32, None)
    Mesh(ulysses_degree=8, ring_degree=4)
    """
    allowed = head_degrees(shape, cp_size)
    if ulysses_degree is None:
        ulysses_degree = max(one for one in allowed if one <= NODE_SIZE)
    works = f"allowed ulysses_degree: {', '.join(map(str, allowed))}"
    if cp_size % ulysses_degree:
        raise UnsupportedError("mesh", f"ulysses_degree {ulysses_degree} does not divide {cp_size} ranks; {works}")
    check_heads(shape, ulysses_degree, works)
    return Mesh(ulysses_degree=ulysses_degree, ring_degree=cp_size // ulysses_degree)


def check_heads(shape: Shape, degree: int, works: str) -> None:
    """Raise UnsupportedError when heads cannot be split by `degree`; `works` says what can."""
    if shape.num_heads_q % degree:
        raise UnsupportedError("heads", f"{shape.num_heads_q} query heads cannot be split over {degree} ranks; {works}")
    if shape.num_heads_kv % degree and degree % shape.num_heads_kv:
        raise UnsupportedError(
            "heads",
            f"{shape.num_heads_kv} key/value heads can be neither split over {degree} ranks nor each repeated on "
            f"equally many of them; {works}",
        )
