"""Golden packs: the same on every machine, rank, numpy version and hash seed. A change here changes what ids mean."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from attnspec.sample import draw_packs, read_lengths
from attnspec.sample.coins import Coins

GOLDEN = {
    ("page", 1024, 0): "ab90f6b11b03ee41",
    ("page", 8192, 0): "46956f656f4fcaf4",
    ("page", 8192, 1): "39f3dd64fe0e9e34",
    ("page", 65536, 0): "6fb280c31990c442",
    ("page", 65536, 42): "fdac8161fdf74a69",
    ("page", 65536, 18446744073709551617): "a39cf1f5ca1ba5b0",
    ("page", 1048576, 42): "8d094d5d4c7af618",
    ("page", 16777216, 7): "c01de8b09d3b0eb7",
    ("pile", 8192, 42): "98cfc44146764b68",
    ("prolong64k", 65536, 42): "33829f055cbff82f",
    ("prolong512k", 524288, 42): "fb497ab024d0cebb",
}
LENGTHS = {
    "page": "643954936e88ae3d",
    "pile": "47d0983e53de5b30",
    "prolong64k": "2b5599750cd05db2",
    "prolong512k": "86e440621c2d9277",
}


def digest(packs):
    content = hashlib.sha256()
    for pack in packs:
        content.update(len(pack).to_bytes(8, "little") + pack.astype("<i8").tobytes())
    return content.hexdigest()[:16]


def draw(name, seqlen, seed, num_packs=4):
    return draw_packs(
        read_lengths(name), seqlen=seqlen, num_packs=num_packs, max_doc_fraction=Fraction(1, 4), seed=seed
    )


@pytest.mark.parametrize(("name", "seqlen", "seed"), GOLDEN)
def test_packs_are_the_golden_ones(name, seqlen, seed):
    assert digest(draw(name, seqlen, seed)) == GOLDEN[name, seqlen, seed]


@pytest.mark.parametrize("name", LENGTHS)
def test_shipped_distributions_have_their_checksums(name):
    assert read_lengths(name).sha256[:16] == LENGTHS[name]


def test_the_first_pack_in_full():
    assert draw("page", 1024, 0)[0].tolist() == [217, 213, 256, 256, 82]


def test_the_first_words_in_full():
    assert Coins(0, "documents").words(2).tolist() == [2221881150862829826, 5494238656037703517]


def test_order_is_the_same_for_any_sorting_code():
    words = Coins(5, "row").words(1000)
    by_python = sorted(range(1000), key=words.tolist().__getitem__)
    assert Coins(5, "row").order(1000).tolist() == by_python
    assert np.array_equal(words[by_python], np.sort(words))


_PROGRAM = """
import json, sys
from click.testing import CliRunner
from attnspec.cli.sample import command
result = CliRunner().invoke(command, ["--seqlen", "8K", "--packs", "3", "--seed", "0", "--json"], catch_exceptions=False)
loaded = [name for name in ("matplotlib", "torch", "pydantic") if name in sys.modules]
print(json.dumps({"out": json.loads(result.stdout), "loaded": loaded}))
"""


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_packs_do_not_depend_on_process_or_hash_seed(hash_seed):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROGRAM],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["out"]["packs"] == [pack.tolist() for pack in draw("page", 8192, 0, num_packs=3)]
    assert answer["loaded"] == []
