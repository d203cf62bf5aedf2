"""Every adapter of an attention library against the definition, with stand-ins that compute what they are called with."""

import dataclasses
import importlib
import re
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from dense_attention import inputs, relative_error, truth
from fakes import cudnn, flash_attention, flash_attention_4, slices
from fakes.arithmetic import Log
from mask_examples import NAMES, example

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.execute.providers import choose, installed_version
from attnspec.lower.varlen import varlen_plan
from attnspec.shape import Shape
from attnspec.slices import AttnSlices, take
from attnspec.support import Device, KernelNames, Problem, Provider
from attnspec.support.kernel_names import patterns

CPU = Device(type="cpu")
ERROR = 3e-6
"""Inputs are float32, whatever the problem's type says, so that wrong wiring cannot hide in rounding."""
DOCUMENTS = [5, 0, 1, 11, 8]
TOTAL = sum(DOCUMENTS)
ODD = {
    "no slice": [],
    "rows and keys left over": [(3, 9, 2, 8, 1)],
    "inverse causal": [(0, 20, 0, 20, 2)],
    "inverse causal and full": [(3, 9, 2, 8, 2), (9, 12, 7, 9, 0)],
    "both": [(2, 8, 5, 20, 3)],
    "two intervals and empty rows": [(0, 4, 0, 4, 1), (0, 4, 10, 20, 0), (12, 16, 5, 12, 3)],
    "more queries than keys": [(0, 20, 3, 9, 1)],
    "full, then inverse causal": [(0, 6, 0, 4, 0), (6, 9, 1, 4, 2)],
    "one query each": [(0, 1, 0, 3, 0), (1, 2, 4, 9, 0)],
}


def fa2(monkeypatch, request, log):
    flash_attention.install_flash_attn(monkeypatch, log)


def aten(monkeypatch, request, log):
    library = torch.library.Library("aten", "IMPL")
    request.addfinalizer(library._destroy)
    flash_attention.install_aten(library, log)


def fa3(provider):
    def install(monkeypatch, request, log):
        library = torch.library.Library("flash_attn_3", "FRAGMENT")
        request.addfinalizer(library._destroy)
        if provider == "flash-attn-3":
            monkeypatch.setitem(sys.modules, "flash_attn_interface", ModuleType("flash_attn_interface"))
        else:
            loaded = {*torch.ops.loaded_libraries, "/site-packages/xformers/flash_attn_3/_C.so"}
            monkeypatch.setattr(torch.ops, "loaded_libraries", loaded)
        flash_attention.define_fa3(library, provider, log)

    return install


def flash_mask(monkeypatch, request, log):
    library = torch.library.Library("flashmask", "FRAGMENT")
    request.addfinalizer(library._destroy)
    slices.define_flashmask(library, log)


def plainly(install):
    return lambda monkeypatch, request, log: install(monkeypatch, log)


# Name: (kernel, provider, parameters, how the stand-in comes into place)
ADAPTERS = {
    "fa2 flash-attn": ("fa2", "flash-attn", {}, fa2),
    "fa2 torch": ("fa2", "torch", {}, aten),
    "fa3 flash-attn-3": ("fa3", "flash-attn-3", {}, fa3("flash-attn-3")),
    "fa3 xformers": ("fa3", "xformers", {}, fa3("xformers")),
    "fa4": ("fa4", "flash-attn-4", {}, plainly(flash_attention_4.install)),
    "fa4 block_sparse": ("fa4", "flash-attn-4", {"backend": "block_sparse"}, plainly(flash_attention_4.install)),
    "cudnn transformer-engine": ("cudnn", "transformer-engine", {}, plainly(cudnn.install_transformer_engine)),
    "cudnn frontend": ("cudnn", "nvidia-cudnn-frontend", {}, plainly(cudnn.install_frontend)),
    "ffa": ("ffa", "magi-attention", {}, plainly(slices.install_magi)),
    "ffa_fa4": ("ffa_fa4", "magi-attention", {}, plainly(slices.install_magi)),
    "flash_mask": ("flash_mask", "flashmask", {}, flash_mask),
}
VARLEN = [name for name in ADAPTERS if ADAPTERS[name][0] in ("fa2", "fa3", "cudnn") or name == "fa4"]


class Adapter:
    """One adapter with its stand-in in place."""

    def __init__(self, name, monkeypatch, request):
        self.log = Log()
        kernel, self.provider, values, install = ADAPTERS[name]
        install(monkeypatch, request, self.log)
        self.module = plugins.load("kernels", kernel)
        self.params = self.module.Params(**values)
        self.is_varlen = name in VARLEN

    def bind(self, mask, *, heads=(4, 2), batch=1, needs_backward=True):
        shape = Shape(batch=batch, num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=16, dtype="bfloat16")
        problem = Problem(shape=shape, slices=mask, needs_backward=needs_backward, device=CPU)
        lowered = self.module.lower(problem, self.params, self.provider)
        return self.module.bind(lowered, problem, self.params, self.provider, CPU)


@pytest.fixture
def adapter(request, monkeypatch):
    return Adapter(request.param, monkeypatch, request)


every_adapter = pytest.mark.parametrize("adapter", ADAPTERS, indirect=True)
every_varlen_adapter = pytest.mark.parametrize("adapter", VARLEN, indirect=True)


def of_rows(rows, seqlen_q=20, seqlen_k=30):
    return AttnSlices.from_rows(rows, seqlen_q=seqlen_q, seqlen_k=seqlen_k)


def small_problem():
    shape = Shape(batch=1, num_heads_q=2, num_heads_kv=2, head_dim=16, dtype="bfloat16")
    return Problem(shape=shape, slices=example("causal", [9]), needs_backward=True, device=CPU)


def check_values(adapter, mask, *, heads=(4, 2), batch=1):
    """out, lse, gradients, and gradients from a given (out, lse)."""
    q, k, v, dout = inputs(mask, heads_q=heads[0], heads_kv=heads[1], batch=batch)
    bound = adapter.bind(mask, heads=heads, batch=batch)
    wanted = truth(mask, q, k, v, dout)
    given, given_dout = bound.load(q, k, v), bound.load_dout(dout)
    forward = bound.forward(given)
    out, lse = bound.canonical_out(forward)
    assert out.is_contiguous()
    assert relative_error(out, wanted.out) <= ERROR
    empty = wanted.lse.isneginf()
    assert not out.transpose(1, 2)[empty].any()
    assert lse.dtype == torch.float32
    assert lse.is_contiguous()
    assert (lse.isneginf() == empty).all()
    assert relative_error(lse[~empty], wanted.lse[~empty]) <= ERROR
    for held in (forward, bound.load_forward(wanted.out.float(), wanted.lse.float())):
        grads = bound.canonical_grads(bound.backward(given, held, given_dout))
        for grad, right, source in zip(grads, wanted.grads, (q, k, v), strict=True):
            assert grad.shape == source.shape
            assert grad.dtype == source.dtype
            assert grad.is_contiguous()
            assert relative_error(grad, right) <= ERROR
    return bound


@every_adapter
def test_every_mask(adapter):
    for name in NAMES:
        mask = example(name, DOCUMENTS)
        adapter.log.calls.clear()
        check_values(adapter, mask)
        num_calls = varlen_plan(mask).num_calls if adapter.is_varlen else 1
        made = [name for name in adapter.log.names() if name != "ask"]
        assert made == [name for name in ("forward", "backward", "backward") for _ in range(num_calls)]


@every_adapter
def test_a_batch_and_heads_without_groups(adapter):
    for name in ("sliding_window_causal", "varlen_causal", "varlen_block_causal"):
        check_values(adapter, example(name, [3, 9, 1]), batch=2, heads=(2, 2))


@every_adapter
@pytest.mark.parametrize("rows", ODD.values(), ids=ODD)
def test_odd_slices(adapter, rows):
    check_values(adapter, of_rows(rows))
    check_values(adapter, of_rows(rows, 22, 20), batch=2)
    if rows:
        check_values(adapter, of_rows(rows, max(row[1] for row in rows), max(row[3] for row in rows)))


@every_adapter
def test_gradients_of_parts_add_up_to_the_whole(adapter):
    """What a ring does: each step sees some keys, and its backward gets the merged out and lse."""
    for name in ("causal", "varlen_block_causal"):
        mask = example(name, DOCUMENTS)
        q, k, v, dout = inputs(mask)
        wanted = truth(mask, q, k, v, dout)
        total = [torch.zeros_like(part) for part in (q, k, v)]
        rows = np.array([[0, TOTAL, 0]])
        for start, end in ((0, 13), (13, 14), (14, TOTAL)):
            part = take(mask, rows, np.array([[start, end, 0]]), seqlen_q=TOTAL, seqlen_k=end - start)
            bound = adapter.bind(part)
            given = bound.load(q, k[:, start:end].contiguous(), v[:, start:end].contiguous())
            forward = bound.load_forward(wanted.out.float(), wanted.lse.float())
            dq, dk, dv = bound.canonical_grads(bound.backward(given, forward, bound.load_dout(dout)))
            total[0] += dq
            total[1][:, start:end] += dk
            total[2][:, start:end] += dv
        for found, right in zip(total, wanted.grads, strict=True):
            assert relative_error(found, right) <= ERROR


@every_adapter
def test_what_a_bound_kernel_says_of_itself(adapter):
    bound = adapter.bind(example("causal", [9]))
    assert bound.explicit_backward is True
    assert bound.frees_graph is False
    assert isinstance(bound.expected_kernels, KernelNames)
    for pass_, num_patterns in (("fwd", 1), ("bwd", 1), ("fwd_bwd", 2)):
        assert len([re.compile(one) for one in patterns(bound.expected_kernels, pass_)]) == num_patterns
    assert bound.backend in (None, "varlen", "block_sparse")
    q, k, v, _ = inputs(example("causal", [9]))
    assert all(left.data_ptr() == right.data_ptr() for left, right in zip(bound.load(q, k, v), (q, k, v), strict=True))


@every_varlen_adapter
def test_a_mask_over_one_whole_sequence_is_not_packed(adapter):
    for name in ("full", "causal", "sliding_window_causal", "sliding_window"):
        bound = adapter.bind(example(name, [40]), batch=2)
        q, k, v, _ = inputs(example(name, [40]), batch=2)
        adapter.log.calls.clear()
        bound.forward(bound.load(q, k, v))
        ((_, arguments),) = adapter.log.calls
        assert arguments["packed"] is False
        assert arguments.get("causal", name == "causal") == (name == "causal")


@every_varlen_adapter
def test_the_lse_of_the_first_call_is_not_copied_for_the_backward(adapter):
    for name in ("causal", "varlen_causal"):
        mask = example(name, DOCUMENTS)
        q, k, v, dout = inputs(mask)
        bound = adapter.bind(mask)
        layout = bound._calls[0].arguments.lse_layout
        wanted = truth(mask, q, k, v, dout)
        given = bound.load_forward(wanted.out.float(), wanted.lse.float())
        for forward in (bound.forward(bound.load(q, k, v)), given):
            assert forward.lse.shape == q.shape[:3]
            assert layout.native(forward.lse).data_ptr() == forward.lse.data_ptr()
            assert layout.view(layout.native(forward.lse), 1).stride() == forward.lse.stride()


@every_adapter
def test_an_empty_mask_of_varlen_and_ranges_calls_nothing(adapter):
    mask = of_rows([])
    bound = adapter.bind(mask)
    q, k, v, dout = inputs(mask)
    adapter.log.calls.clear()
    forward = bound.forward(bound.load(q, k, v))
    bound.backward(bound.load(q, k, v), forward, bound.load_dout(dout))
    if bound.expected_kernels == "":
        assert adapter.log.calls == []
    else:
        assert adapter.log.names() == ["forward", "backward"]


@every_adapter
def test_a_forward_alone_still_gives_lse(adapter):
    mask = example("causal", [12])
    q, k, v, dout = inputs(mask)
    bound = adapter.bind(mask, needs_backward=False)
    _, lse = bound.canonical_out(bound.forward(bound.load(q, k, v)))
    assert relative_error(lse, truth(mask, q, k, v, dout).lse) <= ERROR


@pytest.mark.parametrize("adapter", ["fa4 block_sparse"], indirect=True)
def test_every_band_of_fa4_has_a_compiled_kernel_of_its_own(adapter):
    adapter.bind(example("causal", [9]))
    band_mask = importlib.import_module("attnspec.kernels._fa4_masks").band_mask
    bounds = [(-10, 10), (-101, 0), (-1, 10), (-11, 0), (None, 0), (0, None), (-10, None), (None, 10)]
    assert len({band_mask(*one).__cute_hash__ for one in bounds}) == len(bounds)


@pytest.mark.parametrize("adapter", ["fa4 block_sparse"], indirect=True)
def test_block_sparse_over_several_blocks(adapter):
    docs = [130, 0, 1, 100, 69]
    for name in ("varlen_block_causal", "share_question", "global_sliding_window"):
        params = {"block": 70} if name == "varlen_block_causal" else {}
        bound = check_values(adapter, example(name, docs, **params), heads=(2, 1))
        assert bound.backend == "block_sparse"
    assert {arguments["sparse"] for _, arguments in adapter.log.calls} == {True}


@pytest.mark.parametrize("adapter", ["fa4"], indirect=True)
def test_fa4_takes_blocks_where_calls_do_not_do(adapter):
    many = of_rows([(row, row + 1, key, key + 1, 0) for row in range(3) for key in range(row % 2, 30, 2)])
    assert check_values(adapter, many).backend == "block_sparse"
    assert check_values(adapter, example("causal", [9])).backend == "varlen"
    shape = Shape(batch=1, num_heads_q=2, num_heads_kv=2, head_dim=16, dtype="bfloat16")

    def refusal(slices_held, **named):
        problem = Problem(
            shape=named.pop("shape", shape), slices=slices_held, needs_backward=True, device=named.pop("device", CPU)
        )
        with pytest.raises(UnsupportedError) as raised:
            adapter.module.lower(problem, adapter.module.Params(**named), None)
        return raised.value.reason_code, raised.value.reason

    code, _ = refusal(many, backend="varlen")
    assert code == "no_lowering"
    wide = Shape(batch=1, num_heads_q=2, num_heads_kv=2, head_dim=192, dtype="bfloat16")
    assert refusal(many, shape=wide) == ("head_dim", "a block-sparse call takes head_dim up to 128")
    old = Device(type="cuda", capability=(12, 0))
    assert refusal(many, device=old) == ("device", "a block-sparse call needs compute capability 9.0 or 10.x, got 12.x")
    blackwell = Device(type="cuda", capability=(10, 0))
    assert refusal(example("causal", [9]), shape=wide, device=blackwell) == (
        "head_dim",
        "on Blackwell head_dim is up to 128, or 256, not 192",
    )


@pytest.mark.parametrize("adapter", ["ffa"], indirect=True)
def test_ffa_reduces_outputs_only_where_ranges_of_queries_meet(adapter):
    for name, meets in (("varlen_causal", False), ("share_question", True)):
        mask = example(name, DOCUMENTS)
        q, k, v, _ = inputs(mask)
        bound = adapter.bind(mask)
        out = bound.forward(bound.load(q.bfloat16(), k.bfloat16(), v.bfloat16())).out
        assert out.dtype == torch.bfloat16
        _, arguments = adapter.log.calls[-1]
        assert arguments == {"atomic": meets, "out_type": torch.float32 if meets else torch.bfloat16}


def test_ffa_passes_cat_gqa_on(monkeypatch, request):
    adapter = Adapter("ffa", monkeypatch, request)
    adapter.params = adapter.module.Params(cat_gqa=True)
    check_values(adapter, example("causal", [9]))
    assert ("backward", {"cat_gqa": True}) in adapter.log.calls


@pytest.mark.parametrize("kernel", ["ffa", "ffa_fa4"])
def test_the_placeholder_on_the_index_is_a_broken_package(monkeypatch, kernel):
    package = ModuleType("magi_attention")
    package.__file__ = "/site/magi_attention/__init__.py"
    package.__path__ = []
    package.__version__ = "0.0.1"
    monkeypatch.setitem(sys.modules, "magi_attention", package)
    module = plugins.load("kernels", kernel)
    fix = module.PROVIDERS[0].fix
    assert fix.startswith("the package index has an empty placeholder only: build tag v1.1.1 of ")
    with pytest.raises(UnsupportedError) as raised:
        installed_version(module.PROVIDERS[0])
    assert (raised.value.reason_code, raised.value.reason) == (
        "broken_package",
        "magi-attention 0.0.1 is installed, >=1.1 is needed",
    )
    problem = small_problem()
    lowered = module.lower(problem, module.Params(), None)
    with pytest.raises(UnsupportedError) as raised:
        module.bind(lowered, problem, module.Params(), "magi-attention", CPU)
    assert raised.value.reason_code == "broken_package"
    assert raised.value.reason == (
        f"magi_attention at /site/magi_attention/__init__.py has no magi_attention.functional; {fix}"
    )


def test_ffa_fa4_says_that_its_flash_attention_is_missing(monkeypatch):
    slices.install_magi(monkeypatch, Log(), has_fa4=False)
    module = plugins.load("kernels", "ffa_fa4")
    problem = small_problem()
    with pytest.raises(UnsupportedError, match="MagiAttention finds no module flash_attn_cute") as raised:
        module.bind(module.lower(problem, module.Params(), None), problem, module.Params(), "magi-attention", CPU)
    assert raised.value.reason_code == "missing_package"


@pytest.mark.parametrize(
    ("install", "provider", "wanted"),
    [
        (
            cudnn.install_transformer_engine,
            "transformer-engine",
            "TransformerEngine has no fused attention for this call: too odd",
        ),
        (cudnn.install_frontend, "nvidia-cudnn-frontend", "cuDNN 91900 has no plan for this call: too odd"),
    ],
)
def test_what_cudnn_refuses_is_unsupported_in_its_own_words(monkeypatch, install, provider, wanted):
    install(monkeypatch, Log(), refuse="too odd")
    module = plugins.load("kernels", "cudnn")
    problem = small_problem()
    with pytest.raises(UnsupportedError) as raised:
        module.bind(module.lower(problem, module.Params(), None), problem, module.Params(), provider, CPU)
    assert (raised.value.reason_code, raised.value.reason) == ("backend", wanted)


def test_transformer_engine_lays_stats_out_otherwise_on_consumer_blackwell(monkeypatch):
    cudnn.install_transformer_engine(monkeypatch, Log())
    module = plugins.load("kernels", "cudnn")
    device = Device(type="cpu", capability=(12, 0))

    def bind(mask):
        problem = dataclasses.replace(small_problem(), slices=mask)
        lowered = module.lower(problem, module.Params(), None)
        return module.bind(lowered, problem, module.Params(), "transformer-engine", device)

    bind(example("causal", [9]))
    with pytest.raises(UnsupportedError) as raised:
        bind(example("varlen_causal", [4, 5]))
    assert (raised.value.reason_code, raised.value.reason) == (
        "device",
        "on compute capability 12 stats of packed sequences are laid out otherwise",
    )


@pytest.mark.parametrize(("held", "wanted"), [("flash-attn-3", "xformers"), ("xformers", "flash-attn-3")])
@pytest.mark.parametrize("by_others", [False, True])
def test_fa3_of_two_packages_is_not_mixed_up(monkeypatch, request, held, wanted, by_others):
    adapter = Adapter(f"fa3 {held}", monkeypatch, request)
    if by_others:  # TransformerEngine imports what is installed under another name
        monkeypatch.delitem(sys.modules, "flash_attn_interface", raising=False)
    adapter.provider = wanted
    with pytest.raises(UnsupportedError) as raised:
        adapter.bind(example("causal", [9]))
    assert (raised.value.reason_code, raised.value.reason) == (
        "broken_package",
        f"this process holds the operators of {held} already",
    )


def test_fa3_of_xformers_is_loaded_by_path_after_cuda_12s_runtime(monkeypatch, request, tmp_path, not_imported):
    runtime = tmp_path / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.12"
    operators = tmp_path / "xformers" / "flash_attn_3" / "_C.so"
    for file in (runtime, operators):
        file.parent.mkdir(parents=True)
        file.touch()
    (tmp_path / "xformers" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    not_imported("nvidia", "xformers")
    loaded = []
    monkeypatch.setattr("ctypes.CDLL", lambda path, mode: loaded.append(path))

    def load_library(path):
        loaded.append(path)
        fa3("xformers")(monkeypatch, request, Log())

    monkeypatch.setattr(torch.ops, "load_library", load_library)
    module = plugins.load("kernels", "fa3")
    problem = small_problem()
    lowered = module.lower(problem, module.Params(), None)
    module.bind(lowered, problem, module.Params(), "xformers", CPU)
    assert loaded == [str(runtime), str(operators)]
    module.bind(lowered, problem, module.Params(), "xformers", CPU)
    assert len(loaded) == 2


def test_fa3_says_when_xformers_comes_without_it(monkeypatch, tmp_path, not_imported):
    (tmp_path / "xformers").mkdir()
    (tmp_path / "xformers" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    not_imported("xformers")
    module = plugins.load("kernels", "fa3")
    with pytest.raises(ModuleNotFoundError, match=r"^xformers is installed without flash_attn_3/_C\.so$"):
        module._xformers_library()


@pytest.mark.parametrize("name", sorted({kernel for kernel, *_ in ADAPTERS.values()}))
def test_libraries_that_are_not_installed_are_missing_packages(monkeypatch, name):
    module = plugins.load("kernels", name)
    for provider in module.PROVIDERS:
        if provider.module != "torch":
            monkeypatch.setitem(sys.modules, provider.module.partition(".")[0], None)
            for held in [held for held in sys.modules if held.startswith(provider.module)]:
                monkeypatch.delitem(sys.modules, held)
    for provider in module.PROVIDERS:
        if provider.module != "torch":
            with pytest.raises(UnsupportedError) as raised:
                choose(module, provider.name, Device(type="cuda", capability=(9, 9)))
            assert raised.value.reason_code == "missing_package"
            assert raised.value.reason.endswith(f"({provider.fix})")


def test_every_provider_is_tried_by_some_adapter():
    tried = {(kernel, provider) for kernel, provider, *_ in ADAPTERS.values()}
    for name in {kernel for kernel, _ in tried}:
        providers: tuple[Provider, ...] = plugins.load("kernels", name).PROVIDERS
        assert {(name, provider.name) for provider in providers} <= tried
