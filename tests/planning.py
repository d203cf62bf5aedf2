"""What the tests of planning share: toy plug-ins, and a small spec over them as plain JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from attnspec import plugins

FOLDER = Path(__file__).parent / "toys" / "planning"


@contextmanager
def planning_toys() -> Iterator[None]:
    """Kernels any_kernel and one_slice and the strategy even_ring, beside the shipped plug-ins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
        plugins.load_files(sorted(FOLDER.glob("*.py")))
        yield


def small_spec() -> dict[str, Any]:
    """Two sweeps, masks with and without documents, one environment."""
    return {
        "attnspec": 1,
        "name": "small",
        "runner": "local",
        "seed": 7,
        "shape": {"batch": 1, "num_heads_q": 8, "num_heads_kv": 2, "head_dim": 64, "dtype": "float32"},
        "data": {"lengths": "page", "max_doc_fraction": "1/4", "num_packs": 3},
        "sweeps": [
            {
                "level": "kernel",
                "masks": ["full", "varlen_causal", {"sliding_window_causal": {"window": 64}}],
                "seqlen": ["1K", 512],
                "passes": ["fwd", "bwd"],
                "kernels": [{"any_kernel": {"backend": "FAST", "env": {"A": "1", "B": "2"}}}, "one_slice"],
            },
            {
                "level": "distributed",
                "masks": ["full", "varlen_causal"],
                "cp_size": [1, 2],
                "seqlen_per_rank": 512,
                "passes": "fwd",
                "strategies": [{"even_ring": {"kernel": "any_kernel", "degree": 2}}],
            },
        ],
        "measure": {"min_iters": 5, "max_seconds": 1, "ci": "5%"},
    }
