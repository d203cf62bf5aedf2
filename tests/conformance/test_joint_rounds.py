"""Rounds of several ranks: what goes wrong on one is the same on all, after one exchange, and the next round is right."""

from __future__ import annotations

from strategy_runs import implementation, mask_slices, prepared_strategy
from test_strategies import shape_of

from attnspec.execute.clock import CpuClock, Sample
from attnspec.execute.joint import Agreement, JointFailure, JointTimer

DOCS = [9, 16, 30, 3]
LIMIT_S = 60
WRONG = {
    "kernel": "the kernel says no",
    "kernel and clock": "the kernel says no",
    "clock": "the clock says no",
    "no samples": "the clock gave no samples",
    "no time": "an iteration took 0 ns by the device's own clock",
}
PLANS = (
    [(None, what) for what in WRONG] + [(what, None) for what in WRONG] + [("no time", "kernel"), ("clock", "clock")]
)
"""What goes wrong on rank 0 and on rank 1."""


class Spoilt:
    """A timer whose clock is wrong when told so."""

    settle_ns, held, wrong = 0, True, None

    def __init__(self, timer):
        self._timer = timer

    def round(self, iterations, *, ahead=0):
        taken = self._timer.round(iterations, ahead=ahead)
        if self.wrong in ("clock", "kernel and clock"):
            raise RuntimeError(WRONG["clock"])
        if self.wrong == "no samples":
            return []
        if self.wrong == "no time":
            taken[-1] = Sample(started_ns=0, elapsed_ns=0, host_ns=0)
        return taken


def spoilt_rounds(ranks, name, align):
    """Of each plan: what the round ended with here, how often ranks were asked, and whether the next was well."""
    case = implementation(name, "reference"), shape_of("float32", 8, 4), mask_slices("varlen_causal", DOCS), DOCS
    prepared, _ = prepared_strategy(ranks, *case)
    agreement, ends = Agreement(ranks, str), []
    clock = CpuClock(align=agreement.meet if align else None)
    spoilt = Spoilt(clock.timer(prepared.step("fwd_bwd")))
    timer, asked, share = JointTimer(spoilt, prepared.bound, agreement), [], ranks.share
    forward, kernel = prepared.bound._bound.forward_with, []
    ranks.share = lambda thing: asked.append(thing) or share(thing)

    def forward_with(inputs, guard):
        guard.run(failing) if kernel else None
        return forward(inputs, guard)

    def failing():
        raise RuntimeError(WRONG["kernel"])

    prepared.bound._bound.forward_with = forward_with
    try:
        for plan in PLANS:
            mine = plan[ranks.rank]
            kernel[:], spoilt.wrong = ["fails"] * (mine in ("kernel", "kernel and clock")), mine
            asked.clear()
            try:
                timer.round(2)
                end = None
            except JointFailure as error:
                end = str(error)
            times, (kernel[:], spoilt.wrong) = len(asked), ((), None)
            ends.append((end, times, len(timer.round(3))))
    finally:
        ranks.share = share
    return ends


def test_a_round_fails_on_all_ranks_or_on_none(pools):
    for name, align in (("ring_p2p", False), ("ulysses", True)):
        pools(2).start(spoilt_rounds, name, align)
        first, second = pools(2).results(timeout_s=LIMIT_S)
        assert first == second, name
        kind, ends = first
        assert kind == "returned", ends
        for plan, (end, times, good) in zip(PLANS, ends, strict=True):
            rank = 0 if plan[0] is not None else 1
            assert end == f"rank {rank}: {WRONG[plan[rank]]}", (name, plan)
            assert times == 1 + 2 * align, (name, plan)
            assert good == 3
