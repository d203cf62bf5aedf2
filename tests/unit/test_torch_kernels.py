"""sdpa and flex: which form a mask takes, and what they refuse with whose words. Values: tests/conformance."""

import importlib

import numpy as np
import pytest
import torch
from mask_examples import NAMES, example

from attnspec.errors import UnsupportedError
from attnspec.kernels import _sdpa_bound, flex, sdpa
from attnspec.lower.dense import dense_mask
from attnspec.shape import Shape
from attnspec.slices import AttnSlices, dense
from attnspec.strategies import ring_p2p
from attnspec.support import Device, Problem

CPU = Device(type="cpu")
H200 = Device(type="cuda", capability=(9, 0), model="NVIDIA H200")
B200 = Device(type="cuda", capability=(10, 0), model="NVIDIA B200")


def problem(slices=None, *, dtype="bfloat16", heads=(8, 2), head_dim=128, device=H200, needs_backward=True):
    return Problem(
        shape=Shape(batch=1, num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=head_dim, dtype=dtype),
        slices=example("causal", [256]) if slices is None else slices,
        needs_backward=needs_backward,
        device=device,
    )


def refusal(call, *arguments):
    with pytest.raises(UnsupportedError) as caught:
        call(*arguments)
    return caught.value.reason_code, caught.value.reason


def form(backend, slices, device=H200):
    params = sdpa.Params(backend=backend, kv_repeat=backend == "efficient")
    made = sdpa.lower(problem(slices, device=device), params, None)
    held = [name for name in ("rectangle", "documents", "mask") if getattr(made, name) is not None]
    assert len(held) == 1
    return held[0]


@pytest.mark.parametrize("backend", ["cudnn", "efficient", "math", None])
def test_sdpa_takes_a_dense_mask_where_the_backend_does(backend):
    for name in NAMES:
        wanted = "rectangle" if name in ("full", "causal") else "mask"
        assert form(backend, example(name, [100, 0, 56, 100])) == wanted


@pytest.mark.parametrize("chunk_cells", [2**28, 50])
def test_a_dense_mask_on_the_device_is_the_picture_and_no_row_of_it_is_empty(monkeypatch, chunk_cells):
    """A row without a key is let see key 0, since backends disagree on such rows; the kernel clears it afterwards."""
    monkeypatch.setattr(_sdpa_bound, "_MASK_CHUNK_CELLS", chunk_cells)
    tall = AttnSlices.from_rows([(0, 9, 0, 4, 1)], seqlen_q=9, seqlen_k=4)
    gaps = AttnSlices.from_rows([(2, 5, 1, 7, 3), (5, 6, 0, 2, 0), (5, 6, 4, 7, 0)], seqlen_q=8, seqlen_k=7)
    for slices in (tall, gaps, *(example(name, [7, 0, 1, 12]) for name in NAMES)):
        made = dense_mask(slices)
        wanted = dense(slices)
        wanted[~wanted.any(axis=1), 0] = True
        allowed = _sdpa_bound.allowed_cells(made, slices.seqlen_k, "cpu")
        assert allowed.numpy().tolist() == wanted.tolist()
        added = _sdpa_bound.additive(allowed, "bfloat16")
        assert (added.stride(0) % 16, added.dtype) == (0, torch.bfloat16)
        assert torch.equal(added == 0, allowed)
        assert torch.equal(added.isneginf(), ~allowed)


def test_sdpa_flash_takes_documents_and_no_other_mask():
    wanted = {"full": "rectangle", "causal": "rectangle", "varlen_full": "documents", "varlen_causal": "documents"}
    for name in NAMES:
        slices = example(name, [100, 0, 56, 100])
        if name in wanted:
            assert form("flash", slices) == wanted[name]
        else:
            code, reason = refusal(sdpa.lower, problem(slices), sdpa.Params(backend="flash"), None)
            assert code == "no_lowering"
            assert "torch's flash backend takes no mask: only full, causal, and documents" in reason
    assert {form("flash", example(name, [100, 0, 156]), CPU) for name in NAMES} == {"rectangle", "mask"}


@pytest.mark.parametrize("cp_size", [2, 4])
@pytest.mark.parametrize("kind", [0, 1])
def test_no_step_of_a_ring_over_full_or_causal_takes_a_dense_mask(kind, cp_size):
    """The pieces of a zigzag meet in rows and in keys; together they are one rectangle."""
    slices = AttnSlices.from_rows([(0, 256, 0, 256, kind)], seqlen_q=256, seqlen_k=256)
    plan = ring_p2p.shard(ring_p2p.Params(), slices, np.array([256]), problem().shape, cp_size)
    calls = [call for rank in range(cp_size) for call in plan.calls(rank)]
    assert len(calls) == cp_size**2
    for backend in ("cudnn", "flash", "efficient", "math"):
        assert {form(backend, call.slices) for call in calls} == {"rectangle"}


def test_bottom_right_causal_is_native_only_where_torch_aligns_it_so():
    wide = AttnSlices.from_rows([(0, 128, 0, 256, 1)], seqlen_q=128, seqlen_k=256)
    forms = {backend: form(backend, wide) for backend in ("flash", "efficient", "cudnn", "math", None)}
    native, dense = "rectangle", "mask"
    assert forms == {"flash": native, "efficient": native, "cudnn": dense, "math": dense, None: native}
    assert form(None, wide, CPU) == dense
    tall = AttnSlices.from_rows([(0, 256, 0, 128, 1)], seqlen_q=256, seqlen_k=128)
    for backend in forms:  # cut to a square
        assert form(backend, tall) == native


@pytest.mark.parametrize(
    ("backend", "asked", "code", "reason"),
    [
        ("flash", {"dtype": "float32"}, "dtype", "torch's flash backend takes bfloat16 and float16 on CUDA"),
        ("flash", {"head_dim": 264}, "head_dim", "head_dim up to 256 in multiples of 8, not 264"),
        ("flash", {"head_dim": 100}, "head_dim", "head_dim up to 256 in multiples of 8, not 100"),
        ("cudnn", {"dtype": "float64"}, "dtype", "torch's cudnn backend takes bfloat16 and float16 on CUDA"),
        ("efficient", {"dtype": "float64"}, "dtype", "torch's efficient backend takes"),
        ("efficient", {}, "heads", "refuses grouped queries (8:2); kv_repeat: true repeats K and V to all query heads"),
        ("cudnn", {"device": CPU}, "backend", "torch's cudnn backend runs on CUDA only; on the CPU: flash, math"),
        ("efficient", {"device": CPU}, "backend", "torch's efficient backend runs on CUDA only"),
    ],
)
def test_sdpa_refuses_what_a_backend_never_takes(backend, asked, code, reason):
    found = refusal(sdpa.lower, problem(**asked), sdpa.Params(backend=backend), None)
    assert found[0] == code
    assert reason in found[1]


def test_the_efficient_backend_takes_repeated_and_ungrouped_heads():
    repeated, plain = sdpa.Params(backend="efficient", kv_repeat=True), sdpa.Params(backend="efficient")
    assert sdpa.lower(problem(), repeated, None).rectangle is not None
    assert sdpa.lower(problem(heads=(8, 8)), plain, None).rectangle is not None


def test_sdpa_tells_torchs_own_reason(monkeypatch):
    import warnings

    def takes_no_groups(params, debug):
        same = params.query.size(1) == params.key.size(1)
        if debug and not same:
            warnings.warn("For dense inputs, both fused kernels require same num_heads", stacklevel=1)
        return same

    monkeypatch.setattr(torch.backends.cuda, "can_use_efficient_attention", takes_no_groups)
    asked, lowered = problem(device=CPU), sdpa.Lowered()
    code, reason = refusal(sdpa._ask_torch, "efficient", lowered, asked, sdpa.Params(), CPU)
    assert code == "heads"
    assert reason == "torch's efficient backend: For dense inputs, both fused kernels require same num_heads"
    sdpa._ask_torch("efficient", lowered, asked, sdpa.Params(kv_repeat=True), CPU)
    monkeypatch.setattr(torch.backends.cuda, "can_use_efficient_attention", lambda params, debug: False)
    code, reason = refusal(sdpa._ask_torch, "efficient", lowered, asked, sdpa.Params(), CPU)
    assert (code, reason) == ("backend", "torch's efficient backend: not available on this device")


def test_the_backend_that_torch_picks_is_recorded():
    asked = problem(device=CPU, dtype="float32", head_dim=16)
    bound = sdpa.bind(sdpa.lower(asked, sdpa.Params(), "torch"), asked, sdpa.Params(), "torch", CPU)
    assert bound.backend == "flash"


def test_flex_gives_torchs_own_reason_for_no_backward_on_the_cpu():
    q, k, v = (torch.randn(1, 1, 128, 16, requires_grad=True) for _ in range(3))
    with pytest.raises(NotImplementedError) as caught:
        importlib.import_module("torch.nn.attention.flex_attention").flex_attention(q, k, v)
    code, reason = refusal(flex.SUPPORT.check, problem(dtype="float32", device=CPU))
    assert (code, reason) == ("direction", str(caught.value))


@pytest.mark.parametrize(
    ("params", "asked", "code", "reason"),
    [
        ({"backend": "TRITON"}, {"device": CPU}, "backend", "TRITON backend runs on CUDA only"),
        ({"lse": True}, {"device": CPU}, "backend", "`return_lse` is not supported yet"),
        ({}, {"head_dim": 8}, "head_dim", "at least 16, got 8"),
        ({"backend": "FLASH"}, {"dtype": "float32"}, "dtype", "bfloat16 and float16, not float32"),
        ({"backend": "FLASH"}, {"device": Device(type="cuda", capability=(8, 0))}, "device", "9.0 or higher"),
    ],
)
def test_flex_refuses_what_torch_refuses(params, asked, code, reason):
    found = refusal(flex.lower, problem(**asked), flex.Params(**params), None)
    assert found[0] == code
    assert reason in found[1]


def test_flex_refuses_index_tables_that_are_too_large(monkeypatch):
    monkeypatch.setattr(flex, "_MAX_ENTRIES", 1000)
    code, reason = refusal(flex.lower, problem(example("causal", [2**15])), flex.Params(), None)
    assert code == "seqlen"
    assert "choose a larger block_q and block_k" in reason


def test_flex_says_that_there_is_no_compiler(monkeypatch):
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def none_found():
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none_found)
    asked = problem(device=CPU, dtype="float32", needs_backward=False)
    lowered = flex.lower(asked, flex.Params(), "torch")
    code, reason = refusal(flex.bind, lowered, asked, flex.Params(), "torch", CPU)
    assert code == "no_compiler"
    assert "No working C++ compiler found" in reason


def test_flex_masks_are_arithmetic_bands_on_cuda_and_intervals_on_the_cpu():
    for name in NAMES:
        slices = example(name, [100, 56, 100])
        on_cuda = flex.lower(problem(slices), flex.Params(), None)
        on_cpu = flex.lower(problem(slices, device=CPU), flex.Params(), None)
        band = name in ("causal", "sliding_window", "sliding_window_causal")
        assert isinstance(on_cuda.mask, flex.Band) == band
        assert (on_cuda.mask is None) == (name == "full")
        assert isinstance(on_cpu.mask, flex.IntervalMask)
    blackwell = flex.lower(problem(device=B200), flex.Params(backend="FLASH"), None)
    assert (blackwell.blocks.block_q, blackwell.blocks.block_k) == (256, 128)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_no_mask_is_the_one_that_torch_makes_where_none_is_given():
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = torch.randn(1, 4, 40, 16), torch.randn(1, 2, 96, 16), torch.randn(1, 2, 96, 16)
    made = flex._torch_block_mask(None, None, "cpu")
    with_it = flex_attention(q, k, v, block_mask=made, enable_gqa=True)
    assert torch.equal(with_it, flex_attention(q, k, v, enable_gqa=True))


@pytest.mark.parametrize("device", [CPU, H200], ids=["intervals", "bands"])
def test_torchs_block_mask_says_what_the_slices_say(device):
    """Blocks that torch visits, whole or cell by cell, from the queries' side and from the keys'."""
    wide = AttnSlices.from_rows([(0, 40, 0, 70, 1)], seqlen_q=40, seqlen_k=70)
    tall = AttnSlices.from_rows([(0, 70, 0, 40, 1)], seqlen_q=70, seqlen_k=40)
    for slices in (wide, tall, *(example(name, [33, 0, 1, 30]) for name in NAMES)):
        lowered = flex.lower(problem(slices, device=device), flex.Params(block_q=16, block_k=16), None)
        picture = dense(slices)
        if lowered.mask is None:
            assert picture.all()
            continue
        made = flex._torch_block_mask(lowered.blocks, lowered.mask, "cpu")
        none = torch.zeros((), dtype=torch.int64)
        q, k = (torch.arange(size) for size in picture.shape)
        allowed = made.mask_mod(none, none, q[:, None], k[None, :])
        partial = visited(made.kv_num_blocks, made.kv_indices, slices.seqlen_k)
        whole = visited(made.full_kv_num_blocks, made.full_kv_indices, slices.seqlen_k)
        assert not (partial & whole).any()
        cells = partial[q // 16][:, k // 16] & allowed | whole[q // 16][:, k // 16]
        assert cells.numpy().tolist() == picture.tolist()
        assert torch.equal(visited(made.q_num_blocks, made.q_indices, slices.seqlen_q), partial.T)
        assert torch.equal(visited(made.full_q_num_blocks, made.full_q_indices, slices.seqlen_q), whole.T)


def visited(num_blocks, indices, seqlen):
    """bool (rows of blocks, blocks of 16)."""
    found = torch.zeros(num_blocks.shape[-1], -(-seqlen // 16), dtype=torch.bool)
    for row, count in enumerate(num_blocks[0, 0].tolist()):
        found[row, indices[0, 0, row, :count].long()] = True
    return found


def test_flex_tables_have_one_width_per_shape_until_that_would_be_large(monkeypatch):
    packs = [example("varlen_causal", docs) for docs in ([2048], [300, 1000, 748], [1] * 2048)]
    shapes = [table_shapes(slices) for slices in packs]
    assert shapes[0] == shapes[1] == shapes[2]
    monkeypatch.setattr(flex, "_FIXED_WIDTH_ENTRIES", 0)
    widths = [{shape[-1] for shape in table_shapes(slices)} for slices in packs]
    assert widths == [{1, 16}, {8, 16}, {1}]


def table_shapes(slices):
    lowered = flex.lower(problem(slices), flex.Params(), None)
    made = flex._torch_block_mask(lowered.blocks, lowered.mask, "meta")
    assert made.seq_lengths == (slices.seqlen_q, slices.seqlen_k)
    return [part.shape for part in (made.kv_indices, made.full_kv_indices, made.q_indices, made.full_q_indices)]


def test_flex_is_compiled_so_that_a_fallback_is_an_error(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(options))
    flex._compiled.cache_clear()
    flex._compiled("TRITON", True)
    flex._compiled.cache_clear()
    assert asked == [{"fullgraph": True, "dynamic": False}]
    assert torch._dynamo.config.recompile_limit >= 1000
    assert torch._dynamo.config.accumulated_recompile_limit >= 1000
    assert torch._functorch.config.donated_buffer is False


@pytest.mark.slow
def test_flex_compiles_ten_shapes_ten_times(monkeypatch):
    from torch._dynamo.utils import counters

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: compile_(function, backend="eager", **options))
    flex._compiled.cache_clear()
    counters.clear()
    lengths = range(128, 1408, 128)
    for length in lengths:
        held = problem(
            example("causal", [length]), dtype="float32", heads=(1, 1), head_dim=16, device=CPU, needs_backward=False
        )
        bound = flex.bind(flex.lower(held, flex.Params(), "torch"), held, flex.Params(), "torch", CPU)
        q, k, v = (torch.randn(1, length, 1, 16) for _ in range(3))
        bound.forward(bound.load(q, k, v))
    flex._compiled.cache_clear()
    assert counters["stats"]["unique_graphs"] == len(lengths) == 10
