"""How long packs of the real distribution take as a whole command, and how much memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

BYTES = 2**30
"""The budget of 64K packs from all documents; that for time is 4 s on two quiet cores."""

SAMPLE = """
import resource, subprocess, sys
command = [sys.executable, "-m", "attnspec", "sample", "--seqlen", sys.argv[1], "--packs", "20", "--seed", "0", "--json"]
subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print('{"cpu_s": %f, "peak_bytes": %d}' % (used.ru_utime + used.ru_stime, used.ru_maxrss * 1024))
"""


def sampled(seqlen):
    done = subprocess.run([sys.executable, "-c", SAMPLE, seqlen], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("seqlen", ["1K", "8K", "64K", "1M"])
def test_packs_of_all_documents(benchmark, seqlen):
    figures = benchmark.pedantic(sampled, args=(seqlen,), rounds=1)
    benchmark.extra_info.update(figures)
    assert figures["peak_bytes"] < BYTES
