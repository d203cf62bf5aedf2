"""A strategy over ranks as a Prepared: its plan, and the kernel bound to each part of the mask that it computes."""

from __future__ import annotations

import dataclasses
import time

from attnspec import plugins
from attnspec.exchange.bound import RankKernel
from attnspec.exchange.groups import Ranks
from attnspec.execute.joint import Agreement, JointStrategy
from attnspec.execute.prepared import Prepared, kernel_params
from attnspec.ids import canonical_json
from attnspec.shape import Shape
from attnspec.sharding.sharding import Sharding, load_imbalance
from attnspec.slices import AttnSlices
from attnspec.slices.edges import IntArray
from attnspec.support import BoundKernel, Problem
from attnspec.wire import Implementation


def plan_strategy(implementation: Implementation, problem: Problem, docs: IntArray, ranks: Ranks) -> Sharding:
    """Who holds, computes, sends and receives what. Raises UnsupportedError where heads or degrees do not fit.

    docs: lengths of the pack's documents, summing to seqlen_q. A strategy with `dispatch` in the place of `shard` gets
    its plan from its library, by all ranks together.
    """
    assert implementation.strategy is not None
    module = plugins.load("strategies", implementation.strategy)
    params = plugins.make_params(module, implementation.strategy_params)
    module.check(params, problem.shape, ranks.size)
    plan: Sharding
    if hasattr(module, "dispatch"):
        plan = module.dispatch(params, implementation.kernel, problem.slices, problem.shape, ranks, problem.device)
    else:
        plan = module.shard(params, problem.slices, docs, problem.shape, ranks.size)
    return plan


def prepare_strategy(
    implementation: Implementation, problem: Problem, provider: str, plan: Sharding, agreement: Agreement
) -> Prepared:
    """Lower and bind this rank's part. Raises UnsupportedError where the kernel cannot compute one of its calls.

    All ranks together: what bounds the error of a row is the worst of all kernels, since rows may be computed on one
    rank, or in parts on several, and checked on another.
    """
    assert implementation.strategy is not None
    strategy = plugins.load("strategies", implementation.strategy)
    module = plugins.load("kernels", implementation.kernel)
    params = kernel_params(implementation)

    kernel_partials = [1]

    def bind(shape: Shape, slices: AttnSlices) -> BoundKernel:
        part = dataclasses.replace(problem, shape=shape, slices=slices)
        module.SUPPORT.check(part)
        lowered = module.lower(part, params, provider)
        bound: BoundKernel = module.bind(lowered, part, params, provider, problem.device)
        kernel_partials.append(getattr(bound, "partials", 1))
        return bound

    transport = agreement.ranks.transport
    started = time.perf_counter()
    bound: RankKernel = strategy.bind(plan, bind, transport, problem.device, needs_backward=problem.needs_backward)
    lower_s = time.perf_counter() - started
    tolerances, partials = zip(*agreement.exchange((bound.lse_tolerance, max(kernel_partials))), strict=True)
    return Prepared(
        bound=JointStrategy(bound, agreement),
        needs_backward=problem.needs_backward,
        lower_s=lower_s,
        backend=bound.backend,
        lse_tolerance=max(tolerances),
        q_rows=plan.q_tokens(transport.rank),
        k_rows=plan.k_tokens(transport.rank),
        partials=plan.partials,
        kernel_partials=max(partials),
        mesh=canonical_json(dict(plan.mesh)),
        load_imbalance=load_imbalance(plan.areas),
        padding_tokens=plan.padding_tokens,
    )
