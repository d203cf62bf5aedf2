"""Running a strategy on the ranks of a RankPool, and what its results should be. The functions run inside the ranks."""

from __future__ import annotations

import numpy as np
import torch

from attnspec import plugins
from attnspec.execute.joint import Agreement
from attnspec.execute.prepared import prepare_kernel
from attnspec.execute.strategy import plan_strategy, prepare_strategy
from attnspec.execute.tensors import make_tensors
from attnspec.execute.verify import Checks, verify
from attnspec.shape import Shape
from attnspec.sharding.sharding import sent_bytes
from attnspec.support import Device, Problem
from attnspec.wire import Implementation

CPU = Device(type="cpu", model="test")


def tensors_of(shape, slices, q_rows=None, k_rows=None):
    return make_tensors(
        "workload-of-tests",
        shape,
        seqlen_q=slices.seqlen_q,
        seqlen_k=slices.seqlen_k,
        needs_backward=True,
        device=torch.device("cpu"),
        q_rows=q_rows,
        k_rows=k_rows,
    )


def implementation(strategy, kernel="reference", strategy_params=None, **kernel_params):
    return Implementation(
        kernel=kernel,
        provider=kernel_params.pop("provider", None),
        backend=kernel_params.pop("backend", None),
        strategy=strategy,
        strategy_params=strategy_params or {},
        kernel_params=kernel_params,
    )


def prepared_strategy(ranks, asked, shape, slices, docs):
    """(the strategy loaded with one rank's tensors, the tensors)."""
    problem = Problem(shape=shape, slices=slices, needs_backward=True, device=CPU)
    plan = plan_strategy(asked, problem, np.asarray(docs), ranks)
    prepared = prepare_strategy(asked, problem, asked.provider or "torch", plan, Agreement(ranks, str))
    tensors = tensors_of(shape, slices, prepared.q_rows, prepared.k_rows)
    prepared.load(tensors)
    return prepared, tensors


def run_strategy(ranks, asked, shape, slices, docs):
    """(tokens, results) of one rank: out, lse, dq at its queries, dk, dv at its keys, as float64 arrays."""
    prepared, _ = prepared_strategy(ranks, asked, shape, slices, docs)
    bound = prepared.bound
    forward = bound.forward(prepared.inputs)
    out, lse = bound.canonical_out(forward)
    dq, dk, dv = bound.canonical_grads(bound.backward(prepared.inputs, forward, prepared.dout))
    found = {"out": out, "lse": lse.transpose(1, 2), "dq": dq, "dk": dk, "dv": dv}
    results = {name: value.detach().double().numpy() for name, value in found.items()}
    return (prepared.q_rows, prepared.k_rows), results


def run_strategies(ranks, cases):
    """run_strategy of several cases, one after another."""
    return [run_strategy(ranks, *case) for case in cases]


def verify_strategies(ranks, cases):
    """What one rank finds of each case, verified as a worker does: (tokens that it holds, status, reason)."""
    found = []
    for asked, shape, slices, docs in cases:
        prepared, tensors = prepared_strategy(ranks, asked, shape, slices, docs)
        agreement = Agreement(ranks, str)
        whole = Checks.of("workload-of-tests", shape, slices, tensors_of(shape, slices))
        checks = whole.over(prepared.q_rows, prepared.k_rows, agreement.total)
        result = verify(prepared, checks, tensors, agree=agreement.worst)
        found.append((len(prepared.q_rows), str(result.status), result.reason))
    return found


def put_together(found, slices):
    """The ranks' results in the order of the sequence."""
    whole = {}
    for (q_rows, k_rows), results in found:
        for name, value in results.items():
            rows, seqlen = (k_rows, slices.seqlen_k) if name in ("dk", "dv") else (q_rows, slices.seqlen_q)
            held = whole.setdefault(name, np.full((value.shape[0], seqlen, *value.shape[2:]), np.nan))
            held[:, rows] = value
    return whole


def expected(shape, slices):
    """The specification's results over the whole sequence, in float64."""
    wide = Shape(
        batch=shape.batch,
        num_heads_q=shape.num_heads_q,
        num_heads_kv=shape.num_heads_kv,
        head_dim=shape.head_dim,
        dtype="float64",
    )
    problem = Problem(shape=wide, slices=slices, needs_backward=True, device=CPU)
    prepared = prepare_kernel(Implementation(kernel="reference"), problem, "torch")
    tensors = tensors_of(shape, slices)
    for name in ("q_BTND", "k_BSGD", "v_BSGD", "dout_BTND"):
        setattr(tensors, name, getattr(tensors, name).double())
    prepared.load(tensors)
    forward = prepared.bound.forward(prepared.inputs)
    dq, dk, dv = prepared.bound.backward(prepared.inputs, forward, prepared.dout)
    out, lse = forward.out, forward.lse.transpose(1, 2)
    return {name: value.numpy() for name, value in (("out", out), ("lse", lse), ("dq", dq), ("dk", dk), ("dv", dv))}


def mask_slices(name, docs, **params):
    module = plugins.load("masks", name)
    seqlen = sum(docs)
    held = docs if module.USES_DOCUMENTS else [seqlen]
    from attnspec.masks import make_slices

    return make_slices(module, plugins.make_params(module, params), np.array(held), seqlen)


def sent_and_planned(ranks, cases):
    """For each case, per direction: (bytes that this rank sent, bytes that the plan says)."""
    found = []
    for asked, shape, slices, docs in cases:
        problem = Problem(shape=shape, slices=slices, needs_backward=True, device=CPU)
        plan = plan_strategy(asked, problem, np.asarray(docs), ranks)
        prepared = prepare_strategy(asked, problem, "torch", plan, Agreement(ranks, str))
        prepared.load(tensors_of(shape, slices, prepared.q_rows, prepared.k_rows))
        with prepared.bound.counted() as in_forward:
            forward = prepared.bound.forward(prepared.inputs)
        with prepared.bound.counted() as in_backward:
            prepared.bound.backward(prepared.inputs, forward, prepared.dout)
        for pass_, sent in (("fwd", in_forward), ("bwd", in_backward)):
            assert not sent.unknown
            found.append((sent.num_bytes, sent_bytes(plan.messages(ranks.rank, pass_))))
    return found
