"""Every kernel file: what must stand in it, what its support says, and on the CPU what it computes."""

import dataclasses
import shutil
import subprocess
import sys

import pytest
import torch
from dense_attention import inputs, relative_error, truth
from mask_examples import NAMES, example

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.kernels import _sdpa_bound, reference
from attnspec.params import info
from attnspec.record.status import REASON_CODES, Status
from attnspec.shape import DTYPES, Shape
from attnspec.slices import AttnSlices
from attnspec.support import Device, Problem, Provider, Support
from attnspec.support.version import satisfies

KERNELS = plugins.names("kernels")
CPU = Device(type="cpu")
CUDA = [Device(type="cuda", capability=(major, 0)) for major in (7, 8, 9, 10, 12)]
UNKNOWN = Device(type="cuda")
DEVICES = [UNKNOWN, CPU, *CUDA]
BOUND_METHODS = (
    "load",
    "load_dout",
    "load_forward",
    "forward",
    "backward",
    "canonical_out",
    "canonical_grads",
)
VARIANTS = [
    ("reference", {}, torch.float64),
    ("reference", {"compute": "float32"}, torch.float32),
    ("reference", {}, torch.bfloat16),
    ("sdpa", {}, torch.float64),
    ("sdpa", {}, torch.float32),
    ("sdpa", {"kv_repeat": True}, torch.float32),
    ("sdpa", {"backend": "math"}, torch.float32),
    ("sdpa", {"backend": "flash"}, torch.bfloat16),
    ("sdpa", {"backend": "math"}, torch.bfloat16),
]
# Measured on these masks: float32 kernels 1e-7 to 4e-7 against float64, plain bfloat16 attention 1.5e-3 to 4e-3; lse and
# merged lse are float32 for every kernel.
ERRORS = {torch.float64: 1e-14, torch.float32: 2e-6, torch.bfloat16: 8e-3}
LSE_ERROR = 1e-6
DOCUMENTS = [[7, 0, 1, 20, 22], [1, 1, 1, 47], [50]]
RECTANGLES = {
    "causal, more queries": [(0, 50, 0, 37, 1)],
    "causal, more keys": [(0, 37, 0, 50, 1)],
    "one query": [(0, 1, 0, 9, 1)],
    "one key": [(0, 9, 0, 1, 1)],
    "full": [(0, 5, 0, 11, 0)],
}
ODD = {
    "no slice": [],
    "rows and keys left over": [(3, 9, 2, 8, 1)],
    "inverse causal and full": [(3, 9, 2, 8, 2), (9, 12, 1, 6, 0)],
    "two intervals and empty rows": [(0, 4, 0, 4, 1), (0, 4, 10, 20, 0), (12, 16, 5, 12, 3)],
}


def slices_of(rows, seqlen_q, seqlen_k):
    return AttnSlices.from_rows(rows, seqlen_q=seqlen_q, seqlen_k=seqlen_k)


def problem_of(slices, *, dtype="bfloat16", heads=(4, 2), head_dim=64, device=UNKNOWN, batch=1, needs_backward=True):
    shape = Shape(batch=batch, num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=head_dim, dtype=dtype)
    return Problem(shape=shape, slices=slices, needs_backward=needs_backward, device=device)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_file_has_what_every_kernel_has(name):
    module = plugins.load("kernels", name)
    assert isinstance(module.SUPPORT, Support)
    assert set(module.SUPPORT.devices) <= {"cpu", "cuda"}
    assert set(module.SUPPORT.dtypes) <= set(DTYPES)
    assert module.PROVIDERS
    for provider in module.PROVIDERS:
        assert isinstance(provider, Provider)
        assert provider.name
        assert provider.distribution
        assert provider.module
        assert provider.fix
        assert satisfies("0", provider.requires) in (True, False)  # parses
    assert len({provider.name for provider in module.PROVIDERS}) == len(module.PROVIDERS)
    assert callable(module.lower)
    assert callable(module.bind)
    assert module.Params.__dataclass_params__.frozen
    assert module.Params() == module.Params()
    assert all(info(field).doc for field in dataclasses.fields(module.Params))
    assert module.__doc__.startswith(f"{name}: ")


def test_top_levels_import_neither_torch_nor_a_library():
    code = """
import importlib.abc, sys
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise AssertionError(f"a top level imports {name}")
blocked = {"torch"}
sys.meta_path.insert(0, Blocker())
from attnspec import plugins
for name in plugins.names("kernels"):
    module = plugins.load("kernels", name)
    blocked |= {provider.module.partition(".")[0] for provider in module.PROVIDERS}
held = blocked & set(sys.modules)
assert not held, held
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", KERNELS)
def test_refusals_have_a_known_code_and_a_sentence(name):
    module = plugins.load("kernels", name)
    answers = set()
    odd = [slices_of(rows, 20, 30) for rows in ODD.values()]
    for slices in [*(example(mask, DOCUMENTS[0]) for mask in NAMES), *odd]:
        for device in DEVICES:
            for dtype, heads, head_dim in (
                ("bfloat16", (4, 2), 64),
                ("bfloat16", (4, 4), 100),
                ("float32", (4, 4), 64),
                ("float64", (4, 2), 520),
            ):
                problem = problem_of(slices, dtype=dtype, heads=heads, head_dim=head_dim, device=device)
                answers.add(_answer(module, problem, module.Params(), module.PROVIDERS[0].name))
    refusals = answers - {None}
    assert None in answers
    for code, reason in refusals:
        assert code in REASON_CODES[Status.UNSUPPORTED]
        assert len(reason) > 10
        assert reason == reason.strip()


def _answer(module, problem, params, provider):
    try:
        module.SUPPORT.check(problem)
        module.lower(problem, params, provider)
    except UnsupportedError as error:
        return error.reason_code, error.reason
    return None


@pytest.mark.parametrize("name", KERNELS)
def test_lowering_needs_no_capability_and_no_provider(name):
    module = plugins.load("kernels", name)
    module.lower(problem_of(example("causal", [64])), module.Params(), None)


def bound_of(name, values, problem):
    module = plugins.load("kernels", name)
    module.SUPPORT.check(problem)
    params = module.Params(**values)
    return module.bind(module.lower(problem, params, "torch"), problem, params, "torch", problem.device)


def check_values(name, values, slices, dtype, batch=1):
    """out, lse, gradients, and gradients from a merged (out, lse), against float64."""
    q, k, v, dout = inputs(slices, dtype=dtype, batch=batch)
    short = str(dtype).removeprefix("torch.")
    bound = bound_of(name, values, problem_of(slices, dtype=short, head_dim=16, device=CPU, batch=batch))
    for method in BOUND_METHODS:
        assert callable(getattr(bound, method))
    assert isinstance(bound.explicit_backward, bool)
    assert isinstance(bound.frees_graph, bool)
    assert bound.expected_kernels == ""
    assert bound.backend is None or isinstance(bound.backend, str)
    wanted = truth(slices, q, k, v, dout)
    given, given_dout = bound.load(q, k, v), bound.load_dout(dout)
    forward = bound.forward(given)
    out, lse = bound.canonical_out(forward)
    assert out.shape == q.shape
    assert out.dtype == dtype
    assert out.is_contiguous()
    assert relative_error(out, wanted.out) <= ERRORS[dtype]
    empty = wanted.lse.isneginf()
    assert not out.transpose(1, 2)[empty].any()
    if lse is not None:
        assert lse.dtype == torch.float32
        assert (lse.isneginf() == empty).all()
        error = (lse - wanted.lse)[~empty].abs().amax() if len(lse[~empty]) else 0.0
        assert error <= LSE_ERROR * 10 + getattr(bound, "lse_tolerance", 0.0)
    for _ in range(2):  # nothing is accumulated
        grads = bound.canonical_grads(bound.backward(given, forward, given_dout))
        check_grads(grads, wanted.grads, (q, k, v), ERRORS[dtype])
    if bound.explicit_backward:
        merged = bound.load_forward(wanted.out.to(dtype), wanted.lse.float())
        grads = bound.canonical_grads(bound.backward(given, merged, given_dout))
        check_grads(grads, wanted.grads, (q, k, v), max(ERRORS[dtype], LSE_ERROR))


def check_grads(grads, wanted, like, bound):
    for grad, right, source in zip(grads, wanted, like, strict=True):
        assert grad.shape == source.shape
        assert grad.dtype == source.dtype
        assert grad.is_contiguous()
        assert relative_error(grad, right) <= bound


@pytest.mark.parametrize(("name", "values", "dtype"), VARIANTS, ids=str)
def test_cpu_kernels_compute_every_mask(name, values, dtype):
    for mask in NAMES:
        for docs in DOCUMENTS:
            check_values(name, values, example(mask, docs), dtype)


@pytest.mark.parametrize(("name", "values", "dtype"), VARIANTS, ids=str)
def test_cpu_kernels_compute_rectangles_and_odd_slices(name, values, dtype):
    for rows in RECTANGLES.values():
        check_values(name, values, slices_of(rows, rows[0][1], rows[0][3]), dtype, batch=2)
    for rows in ODD.values():
        check_values(name, values, slices_of(rows, 20, 30), dtype)


@pytest.mark.parametrize(("name", "values"), [("reference", {}), ("sdpa", {"backend": "math"})])
def test_long_sequences_are_cut_into_chunks_that_change_nothing(monkeypatch, name, values):
    """What bounds memory at 64K tokens, here with chunks of a few rows."""
    monkeypatch.setattr(reference, "_CHUNK_BYTES", 8 * 4 * 60)
    monkeypatch.setattr(_sdpa_bound, "_MASK_CHUNK_CELLS", 120)
    for mask in NAMES:
        check_values(name, values, example(mask, DOCUMENTS[0]), torch.float64)
    for rows in ODD.values():
        check_values(name, values, slices_of(rows, 20, 30), torch.float64, batch=2)


def test_causal_is_aligned_at_the_bottom_right():
    wide, tall = slices_of([(0, 2, 0, 5, 1)], 2, 5), slices_of([(0, 5, 0, 2, 1)], 5, 2)
    for name, values in (("reference", {}), ("sdpa", {"backend": "flash"}), ("sdpa", {"backend": "math"})):
        # With q = 0 every allowed key weighs the same, so v = unit vectors shows which keys a row sees.
        for slices, rows in ((wide, [[4, 5]]), (tall, [[0, 0, 0, 1, 2]])):
            bound = bound_of(name, values, problem_of(slices, dtype="float32", heads=(1, 1), head_dim=5, device=CPU))
            q = torch.zeros(1, slices.seqlen_q, 1, 5)
            v = torch.eye(5)[: slices.seqlen_k].reshape(1, slices.seqlen_k, 1, 5)
            out, lse = bound.canonical_out(bound.forward(bound.load(q, torch.zeros_like(v), v)))
            seen = (out[0, :, 0] > 0).sum(-1).tolist()
            assert [seen] == rows
            if lse is not None:
                assert torch.equal(lse[0, 0], torch.tensor(rows[0], dtype=torch.float32).log())


def test_a_masked_row_gives_zeros_and_finite_gradients():
    slices = slices_of([(0, 1, 0, 3, 0), (2, 3, 0, 3, 0)], 3, 3)
    for name, values in (("reference", {}), ("sdpa", {"backend": "flash"}), ("sdpa", {"backend": "math"})):
        check_values(name, values, slices, torch.float32)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on the CPU needs a C++ compiler")
def test_flex_computes_masks_of_one_interval_with_one_graph(monkeypatch):
    # One head dimension, one shape: all masks of one interval share a graph, which takes seconds to compile.
    masks = [example(name, docs) for name in NAMES for docs in ([130, 0, 1, 100, 25], [256])]
    run_flex(monkeypatch, [slices for slices in masks if num_intervals(slices) == 1], num_graphs=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on the CPU needs a C++ compiler")
def test_flex_computes_gaps_rectangles_and_empty_rows(monkeypatch):
    masks = [example(name, [130, 0, 1, 100, 25]) for name in NAMES]
    run_flex(monkeypatch, [slices for slices in masks if num_intervals(slices) == 2], num_graphs=1)
    tall, wide = slices_of([(0, 300, 0, 200, 1)], 300, 200), slices_of([(0, 200, 0, 300, 1)], 200, 300)
    odd = [slices_of(rows, 20, 30) for rows in ODD.values()]
    run_flex(monkeypatch, [tall, wide, *odd], num_graphs=4)


def num_intervals(slices):
    from attnspec.lower.intervals import interval_mask

    return len(interval_mask(slices).lo)


def run_flex(monkeypatch, masks, num_graphs):
    from torch._dynamo.utils import counters

    assert masks
    counters.clear()
    for slices in masks:
        q, k, v, dout = inputs(slices)
        problem = problem_of(slices, dtype="float32", head_dim=16, device=CPU, needs_backward=False)
        bound = bound_of("flex", {}, problem)
        out, lse = bound.canonical_out(bound.forward(bound.load(q, k, v)))
        assert lse is None
        wanted = truth(slices, q, k, v, dout)
        assert out.is_contiguous()
        assert relative_error(out, wanted.out) <= ERRORS[torch.float32]
        assert not out.transpose(1, 2)[wanted.lse.isneginf()].any()
    assert counters["stats"]["unique_graphs"] == num_graphs
    assert not counters["graph_break"]
