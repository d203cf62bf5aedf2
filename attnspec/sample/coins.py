"""Fair coins: the one source of chance in sampling, the same on every machine. Pure.

Everything that the sampler decides is decided by fair coins, so that one exact primitive in integer arithmetic serves
all of it: no floating point, no rejection bound, no library routine whose stream may change between versions.

The words come from PCG64 (O'Neill 2014, XSL-RR 128/64), whose state and increment are the SHA-256 of a seed and a
label. A stream has an address: what it yields depends on its label alone, not on what else was drawn.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from attnspec.ids import canonical_json

MAX_SEED = 2**63 - 1
"""Of a spec and of `attnspec sample`, so that either can draw what the other did."""
_CHUNK_WORDS = 1 << 16  # how many words are held at once; the draws do not depend on it
_ONE = np.uint64(1)
_TWO_BITS, _FOUR_BITS, _BYTES, _ONES = (
    np.uint64(0x5555555555555555),
    np.uint64(0x3333333333333333),
    np.uint64(0x0F0F0F0F0F0F0F0F),
    np.uint64(0x0101010101010101),
)


def _ones(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Set bits of each word (numpy's own bitwise_count is younger than the oldest numpy allowed)."""
    words = words - ((words >> _ONE) & _TWO_BITS)
    words = (words & _FOUR_BITS) + ((words >> np.uint64(2)) & _FOUR_BITS)
    words = (words + (words >> np.uint64(4))) & _BYTES
    return ((words * _ONES) >> np.uint64(56)).astype(np.int64)


class Coins:
    """A stream of fair coins, addressed by a seed and a label of integers and strings.

    >>> Coins(0, "example").order(5).tolist() == Coins(0, "example").order(5).tolist()
    True
    """

    def __init__(self, seed: int, *label: int | str) -> None:
        digest = hashlib.sha256(canonical_json(["attnspec.sample", 1, seed, *label]).encode()).digest()
        self._bits = np.random.PCG64(0)
        self._bits.state = {
            "bit_generator": "PCG64",
            "state": {
                "state": int.from_bytes(digest[:16], "little"),
                "inc": int.from_bytes(digest[16:], "little") | 1,
            },
            "has_uint32": 0,
            "uinteger": 0,
        }

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words of 64 coins each."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)

    def heads(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Throw `counts[i]` coins for each i and count the heads: exact independent Binomial(counts[i], 1/2).

        Costs one word for 64 coins and memory for the counts alone.
        """
        heads_before = np.zeros(len(counts) + 1, dtype=np.int64)
        ends = np.cumsum(counts)
        num_words = int(ends[-1]) // 64 + 1 if len(ends) else 0
        seen = done = 0
        for first in range(0, num_words, _CHUNK_WORDS):
            words = self.words(min(_CHUNK_WORDS, num_words - first))
            total = np.zeros(len(words) + 1, dtype=np.int64)
            np.cumsum(_ones(words), out=total[1:])
            until = int(np.searchsorted(ends, (first + len(words)) * 64))
            whole, rest = ends[done:until] // 64 - first, (ends[done:until] % 64).astype(np.uint64)
            partial = _ones(words[whole] & ((_ONE << rest) - _ONE))
            heads_before[done + 1 : until + 1] = seen + total[whole] + partial
            seen, done = seen + int(total[-1]), until
        return np.diff(heads_before)

    def order(self, count: int) -> NDArray[np.int64]:
        """A uniformly random order of `count` items. Equal words are no order, so they are all drawn again."""
        while True:
            words = self.words(count)
            order = np.argsort(words, kind="stable")
            if not np.any(words[order[1:]] == words[order[:-1]]):
                return order

    def below(self, bound: int) -> int:
        """A uniformly random integer in [0, bound), bound at most 2**64: a word's top bits, again if too large."""
        num_bits = (bound - 1).bit_length()
        while True:
            number = int(self.words(1)[0]) >> (64 - num_bits)
            if number < bound:
                return number
