"""Verification of a prepared implementation, before timing, at full size, on the workload's own tensors.

In order: the mask probe of every row, its backward too; out and lse of the sampled rows; for a backward, one with dO
zero outside these rows (dQ there and nowhere else, dK and dV of all columns), and the identities on the gradients that
will be timed.
Errors are per-row RMS over heads and head_dim, in units of plain attention's error on the same row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from attnspec.execute.backward_probe import Rounding, check_dk_dv, check_dq, dout_of, halves
from attnspec.execute.findings import Finding, finite, where
from attnspec.execute.identities import Identities, Reduce
from attnspec.execute.oracle import Truth, truth
from attnspec.execute.prepared import Prepared
from attnspec.execute.probe import Codes, check_probe, code_values, make_codes
from attnspec.execute.rows import sample_rows
from attnspec.execute.tensors import Tensors
from attnspec.record.status import Status
from attnspec.shape import Shape
from attnspec.slices import AttnSlices, row_intervals
from attnspec.slices.edges import IntArray
from attnspec.stats import seed_of
from attnspec.support import Forward

BOUND_OUT, BOUND_DQ, BOUND_DK, BOUND_DV, BOUND_LSE = 2.0, 2.0, 4.0, 4.0, 4.0
CHUNK_VALUES = 2**26
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What became of it.

    error: worst ratio of out, dq, dk and dv to plain attention's error or, where it is wrong, of the check that failed;
    bound: the bound that belongs to it. compile_s: what first calls took more than later ones; verify_s: all else.
    """

    status: Status
    reason_code: str | None
    reason: str | None
    error: float
    bound: float
    compile_s: float
    verify_s: float


@dataclass(slots=True, kw_only=True)
class Checks:
    """What all implementations of one workload and pack are checked against, made when first needed.

    q_rows_of and dout_rows_of give chosen rows of the whole sequence; k_BSGD and v_BSGD are whole. q_rows, k_rows and
    reduce: what this rank holds, and how ranks add up, as in Prepared and Identities.
    """

    workload_id: str
    shape: Shape
    slices: AttnSlices
    q_rows_of: Callable[[IntArray], Tensor]
    dout_rows_of: Callable[[IntArray], Tensor] | None
    k_BSGD: Tensor
    v_BSGD: Tensor
    q_rows: IntArray | None = None
    k_rows: IntArray | None = None
    reduce: Reduce = lambda partial: partial
    _truths: dict[int, Truth] = field(default_factory=dict)
    _codes: Codes | None = None
    _identities: Identities | None = None

    @classmethod
    def of(cls, workload_id: str, shape: Shape, slices: AttnSlices, tensors: Tensors) -> Checks:
        """Checks of whole tensors on one device."""
        device, dout_BTND = tensors.q_BTND.device, tensors.dout_BTND

        def rows_of(value_BTND: Tensor) -> Callable[[IntArray], Tensor]:
            return lambda rows: value_BTND[:, torch.from_numpy(rows).to(device)]

        return cls(
            workload_id=workload_id,
            shape=shape,
            slices=slices,
            q_rows_of=rows_of(tensors.q_BTND),
            dout_rows_of=None if dout_BTND is None else rows_of(dout_BTND),
            k_BSGD=tensors.k_BSGD,
            v_BSGD=tensors.v_BSGD,
        )

    def over(self, q_rows: IntArray | None, k_rows: IntArray | None, reduce: Reduce) -> Checks:
        """The same over what one rank holds; the oracle, which is over the whole sequence, is shared."""
        return replace(self, q_rows=q_rows, k_rows=k_rows, reduce=reduce, _codes=None, _identities=None)

    def truth(self, partials: int) -> Truth:
        """The oracle, in units of plain attention in so many parts."""
        if partials not in self._truths:
            rows = sample_rows(self.slices, seed=seed_of(f"{self.workload_id}:rows"))
            self._truths[partials] = truth(
                self.shape,
                self.slices,
                rows,
                q_BRND=self.q_rows_of(rows),
                k_BSGD=self.k_BSGD,
                v_BSGD=self.v_BSGD,
                dout_BRND=None if self.dout_rows_of is None else self.dout_rows_of(rows),
                partials=partials,
            )
        return self._truths[partials]

    def ready(self, partials: int) -> None:
        """Make everything that implementations with so many partials share."""
        self.truth(partials)
        self.codes()
        if self.dout_rows_of is not None:
            self.identities()

    def codes(self) -> Codes:
        """The mask probe."""
        if self._codes is None:
            intervals = row_intervals(self.slices, self.q_rows)
            seed = seed_of(f"{self.workload_id}:probe")
            self._codes = make_codes(self.shape, self.slices.seqlen_k, intervals, seed=seed, device=self.k_BSGD.device)
        return self._codes

    def every_code(self) -> Codes:
        """The mask probe of all rows, whoever holds them."""
        return self.codes() if self.q_rows is None else self.over(None, None, self.reduce).codes()

    def identities(self) -> Identities:
        """The identities of gradients."""
        if self._identities is None:
            self._identities = Identities(
                self.shape,
                self.slices,
                self.k_BSGD.device,
                q_rows=self.q_rows,
                k_rows=self.k_rows,
                reduce=self.reduce,
            )
        return self._identities


def verify(
    prepared: Prepared,
    checks: Checks,
    tensors: Tensors,
    *,
    synchronize: Callable[[], None] = lambda: None,
    agree: Callable[[Finding], Finding] = lambda found: found,
) -> Verification:
    """Verify, and leave `prepared` loaded. Whatever the implementation raises passes through.

    agree: makes of the ranks' findings of one check the one that stands for all.
    """
    checks.ready(prepared.partials)  # shared by all implementations, so no part of this one's time
    synchronize()
    calls = _Calls(prepared, synchronize)
    started = time.perf_counter()
    worst = Finding(error=0.0, bound=BOUND_OUT)
    for found in map(agree, _findings(prepared, checks, tensors, calls)):
        if found.failed:
            worst = found
            break
        if found.against_plain:
            worst = worst.or_worse(found)
    synchronize()
    total = time.perf_counter() - started
    compile_s = min(calls.compile_s, total)
    return Verification(
        status=Status.WRONG if worst.failed else Status.OK,
        reason_code=worst.reason_code if worst.failed else None,
        reason=worst.reason if worst.failed else None,
        error=worst.error,
        bound=worst.bound,
        compile_s=compile_s,
        verify_s=total - compile_s,
    )


def worst_of(verifications: list[Verification]) -> Verification:
    """Several packs or ranks as one: the first wrong one, else the worst ratio; times are added."""
    wrong = [one for one in verifications if one.status is Status.WRONG]
    worst = wrong[0] if wrong else max(verifications, key=lambda one: one.error / one.bound)
    return Verification(
        status=worst.status,
        reason_code=worst.reason_code,
        reason=worst.reason,
        error=worst.error,
        bound=worst.bound,
        compile_s=sum(one.compile_s for one in verifications),
        verify_s=sum(one.verify_s for one in verifications),
    )


class _Calls:
    """Forward and backward calls, timed: what the first took more than later ones is compile time."""

    def __init__(self, prepared: Prepared, synchronize: Callable[[], None]) -> None:
        self._bound, self._synchronize = prepared.bound, synchronize
        self._seconds: dict[str, list[float]] = {"forward": [], "backward": []}

    def forward(self, inputs: Any) -> Forward:
        return self._timed("forward", lambda: self._bound.forward(inputs))

    def backward(self, inputs: Any, forward: Forward, dout: Any) -> tuple[Tensor, Tensor, Tensor]:
        grads = self._timed("backward", lambda: self._bound.backward(inputs, forward, dout))
        dq, dk, dv = self._bound.canonical_grads(grads)
        return dq.detach(), dk.detach(), dv.detach()

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        out, lse = self._bound.canonical_out(forward)
        return out.detach(), None if lse is None else lse.detach()

    @property
    def compile_s(self) -> float:
        return sum(max(0.0, held[0] - min(held[1:])) for held in self._seconds.values() if len(held) > 1)

    def _timed(self, kind: str, call: Callable[[], T]) -> T:
        self._synchronize()
        started = time.perf_counter()
        result = call()
        self._synchronize()
        self._seconds[kind].append(time.perf_counter() - started)
        return result


def _findings(prepared: Prepared, checks: Checks, tensors: Tensors, calls: _Calls) -> Iterator[Finding]:
    """One finding per check, in order. Each step's tensors are gone before the next."""
    yield from _probe_findings(prepared, checks, tensors, calls)
    prepared.load(tensors)
    forward = calls.forward(prepared.inputs)
    yield from _out_findings(prepared, checks, calls, forward)
    if not prepared.needs_backward:
        return
    yield from _sparse_findings(prepared, checks, tensors, calls, forward)
    if prepared.bound.frees_graph:
        del forward
        forward = calls.forward(prepared.inputs)
    else:
        prepared.forward = forward
    yield from _timed_findings(prepared, checks, tensors, calls, forward)


def _probe_findings(prepared: Prepared, checks: Checks, tensors: Tensors, calls: _Calls) -> Iterator[Finding]:
    codes = checks.codes()
    values_BSGD = code_values(codes, tensors.v_BSGD, prepared.k_rows)
    inputs = prepared.bound.load(*halves(tensors.q_BTND, tensors.k_BSGD), values_BSGD)
    forward = calls.forward(inputs)
    out_BTND, lse_BNT = calls.canonical_out(forward)
    yield finite("out of the mask probe", out_BTND, prepared.q_rows)
    partials = prepared.partials * prepared.kernel_partials
    yield check_probe(codes, out_BTND, lse_BNT, lse_tolerance=prepared.lse_tolerance, partials=partials)
    if not prepared.needs_backward:
        return
    assert tensors.dout_BTND is not None
    del out_BTND, lse_BNT
    dout = prepared.bound.load_dout(dout_of(codes, tensors.dout_BTND))
    dq_BTND, dk_BSGD, dv_BSGD = calls.backward(inputs, forward, dout)
    yield from _finite_grads(prepared, dq_BTND, dk_BSGD, dv_BSGD, of=" of the mask probe")
    rounding = Rounding.of(tensors.q_BTND.dtype, prepared.lse_tolerance, merged=partials > 1)
    yield check_dq(codes, checks.k_BSGD, dq_BTND, rounding)
    yield check_dk_dv(checks.every_code(), checks.q_rows_of, dk_BSGD, dv_BSGD, prepared.k_rows, rounding)


def _out_findings(prepared: Prepared, checks: Checks, calls: _Calls, forward: Forward) -> Iterator[Finding]:
    right = checks.truth(prepared.partials)
    here = _Here(right.rows_R, prepared.q_rows, checks.k_BSGD.device)
    out_BTND, lse_BNT = calls.canonical_out(forward)
    yield finite("out", out_BTND, prepared.q_rows)
    yield _compare("out", here.take(out_BTND), right.out_BRND, right.out_unit_R, here, BOUND_OUT)
    if lse_BNT is not None:
        yield _compare_lse(lse_BNT[:, :, here.local], right, here, prepared.lse_tolerance)


def _sparse_findings(
    prepared: Prepared, checks: Checks, tensors: Tensors, calls: _Calls, forward: Forward
) -> Iterator[Finding]:
    right = checks.truth(prepared.partials)
    here = _Here(right.rows_R, prepared.q_rows, checks.k_BSGD.device)
    grads = right.grads
    assert tensors.dout_BTND is not None and grads is not None
    sparse_BTND = torch.zeros_like(tensors.dout_BTND)
    sparse_BTND[:, here.local] = tensors.dout_BTND[:, here.local]
    dout = prepared.bound.load_dout(sparse_BTND)
    dq_BTND, dk_BSGD, dv_BSGD = calls.backward(prepared.inputs, forward, dout)
    yield from _finite_grads(prepared, dq_BTND, dk_BSGD, dv_BSGD)
    yield _compare("dq", here.take(dq_BTND), grads.dq_BRND, grads.dq_unit_R, here, BOUND_DQ)
    yield _zero_elsewhere(dq_BTND, grads.dq_unit_R, here)
    columns = _Here(np.arange(checks.slices.seqlen_k), prepared.k_rows, checks.k_BSGD.device)
    yield _compare("dk", columns.take(dk_BSGD), grads.dk_BSGD, grads.dk_unit_S, columns, BOUND_DK)
    yield _compare("dv", columns.take(dv_BSGD), grads.dv_BSGD, grads.dv_unit_S, columns, BOUND_DV)


def _timed_findings(
    prepared: Prepared, checks: Checks, tensors: Tensors, calls: _Calls, forward: Forward
) -> Iterator[Finding]:
    right = checks.truth(prepared.partials)
    here = _Here(right.rows_R, prepared.q_rows, checks.k_BSGD.device)
    grads = right.grads
    assert grads is not None
    out_BTND, _ = calls.canonical_out(forward)
    dq_BTND, dk_BSGD, dv_BSGD = calls.backward(prepared.inputs, forward, prepared.dout)
    yield from _finite_grads(prepared, dq_BTND, dk_BSGD, dv_BSGD)
    # A row of dQ depends on no other row of dO, so the sparse oracle holds here too.
    yield _compare("dq", here.take(dq_BTND), grads.dq_BRND, grads.dq_unit_R, here, BOUND_DQ)
    partials = prepared.partials * prepared.kernel_partials
    yield checks.identities().check(tensors, out_BTND, dk_BSGD, dv_BSGD, partials=partials)


class _Here:
    """Which of some global positions a rank holds: `index` into the positions, `local` into the rank's tensors."""

    def __init__(self, positions: IntArray, held: IntArray | None, device: torch.device) -> None:
        index, local = np.arange(len(positions)), positions
        self.whole = held is None
        if held is not None:
            _, index, local = np.intersect1d(positions, held, assume_unique=True, return_indices=True)
        self.positions: IntArray = positions[index]
        self.index = torch.from_numpy(index).to(device)
        self.local = torch.from_numpy(local).to(device)

    def take(self, value_BRND: Tensor) -> Tensor:
        """Those rows of a rank's tensor, in the order of `positions`."""
        every = self.whole and len(self.local) == value_BRND.shape[1]
        return value_BRND if every else value_BRND[:, self.local]


def _compare(name: str, got_BRND: Tensor, right_BRND: Tensor, unit_R: Tensor, here: _Here, bound: float) -> Finding:
    """Per-row RMS error over heads and head_dim, over the unit of the row. got_BRND: as `here.take` gives it."""
    if not here.whole:
        right_BRND, unit_R = right_BRND[:, here.index], unit_R[here.index]
    worst = Finding(error=0.0, bound=bound, against_plain=True)
    chunk = max(1, CHUNK_VALUES // (got_BRND.shape[0] * got_BRND.shape[2] * got_BRND.shape[3]))
    for start in range(0, got_BRND.shape[1], chunk):
        rows = slice(start, start + chunk)
        square_BPND = (got_BRND[:, rows].to(right_BRND.dtype) - right_BRND[:, rows]).square_()
        error_P = square_BPND.mean(dim=(0, 2, 3)).sqrt()
        found = Finding.worst_of(error_P / unit_R[rows], bound=bound, against_plain=True)
        if found.index is not None and found.exceeds(worst):
            (place,) = found.index
            head = int(square_BPND[:, place].sum(dim=(0, 2)).argmax())
            kind = "row" if name in ("out", "dq") else "key"
            worst = found.with_reason(
                name,
                f"{name}: RMS error {float(error_P[place]):.3g} of {kind} {int(here.positions[start + place])} (most "
                f"of it in head {head}) is {found.error:.3g} times that of plain attention in the same dtype "
                f"(bound {bound:g})",
            )
    return worst


def _compare_lse(lse_BNR: Tensor, right: Truth, here: _Here, tolerance: float) -> Finding:
    """Largest error over heads; a row without keys must be exactly -inf."""
    expected_BNR, unit_BNR = right.lse_BNR[:, :, here.index], right.lse_unit_BNR[:, :, here.index]
    got_BNR = lse_BNR.to(expected_BNR.dtype)
    error_BNR = torch.where(got_BNR == expected_BNR, 0.0, (got_BNR - expected_BNR).abs())
    found = Finding.worst_of(error_BNR / (unit_BNR + tolerance / BOUND_LSE), bound=BOUND_LSE)
    if found.index is None:
        return found
    batch, head, row = found.index
    return found.with_reason(
        "lse",
        f"lse: {where(int(here.positions[row]), head)}: got {float(got_BNR[batch, head, row]):.8g}, expected "
        f"{float(expected_BNR[batch, head, row]):.8g}, {found.error:.3g} units (bound {BOUND_LSE:g})",
    )


def _zero_elsewhere(dq_BTND: Tensor, unit_R: Tensor, here: _Here) -> Finding:
    """dQ of rows whose dO is zero is zero, up to a row's unit of error."""
    largest_T = dq_BTND.abs().amax(dim=(0, 2, 3)).to(torch.float64)
    largest_T[here.local] = 0.0
    unit = unit_R.to(torch.float64).median() if len(unit_R) else torch.ones((), dtype=torch.float64)
    found = Finding.worst_of(largest_T / unit.to(largest_T.device), bound=BOUND_DQ)
    if found.index is None:
        return found
    (row,) = found.index
    text = f"dq: local row {row} has {float(largest_T[row]):.3g} where dO is zero, so 0 is expected"
    return found.with_reason("dq", text)


def _finite_grads(prepared: Prepared, dq: Tensor, dk: Tensor, dv: Tensor, of: str = "") -> Iterator[Finding]:
    yield finite(f"dq{of}", dq, prepared.q_rows)
    yield finite(f"dk{of}", dk, prepared.k_rows)
    yield finite(f"dv{of}", dv, prepared.k_rows)
