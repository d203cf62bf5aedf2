"""A plan in words, for `attnspec plan`. Not a command (its name starts with `_`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attnspec.plan import Case, Plan, count_nodes
from attnspec.plan.expect import Expectation
from attnspec.plan.stages import implementation_label, mask_label, span
from attnspec.spec import Spec, Sweep
from attnspec.units import counted, format_bytes, format_count

_MOST_GROUPS = 20
_MOST_REASONS = 4


def plan_text(
    plan: Plan, spec: Spec, expectation: Expectation, *, expected_device: str, beyond: Mapping[int, str] | None = None
) -> Iterator[str]:
    """The lines of `attnspec plan`. beyond: ranks of a job -> why they are more than the runner allows, or nothing."""
    nodes = count_nodes(plan)
    yield f"{plan.name}: {counted(len(plan.cases), 'case')} on runner {plan.runner} ({expected_device})"
    yield "  graph  " + " -> ".join(f"{count:,} {stage}" for stage, count in nodes.items())
    cases_of = Counter(case.sweep for case in plan.cases)
    for index, sweep in enumerate(spec.sweeps):
        yield f"  sweep {index}, {sweep.level}: {_product(sweep)}: {counted(cases_of[index], 'case')}"
    yield ""
    yield f"{counted(len(plan.jobs), 'job')}"
    for job in plan.jobs:
        refused = sum(case.case_id in plan.unsupported for case in job.cases)
        env = "".join(f" {name}={value}" for name, value in job.env.items())
        note = f" ({refused:,} unsupported)" if refused else ""
        ranks = counted(job.world_size, "rank")
        image = "" if job.image is None else f" in {job.image}"
        apart = "" if job.apart is None else f", {job.apart} apart"
        yield f"  {job.job_id}  {ranks:>9}  {counted(len(job.cases), 'case')}{note}{image}{apart}{env}"
    for why in dict.fromkeys(filter(None, (beyond or {}).values())):
        yield f"  too many for the runner: {why}"
    yield ""
    yield from _unsupported(plan)
    yield ""
    yield from _expected(plan, expectation)


def _product(sweep: Sweep) -> str:
    parts = [f"{len(values)} {name}" for name, values in sweep.axes.items()]
    return " x ".join(parts) + (", less excluded" if sweep.exclude else "")


def _unsupported(plan: Plan) -> Iterator[str]:
    if not plan.unsupported:
        yield "unsupported: none that can be told before running"
        return
    yield f"unsupported: {counted(len(plan.unsupported), 'case')} that can be told before running"
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for case_id, why in plan.unsupported.items():
        case = plan.case_by_id[case_id]
        groups.setdefault((implementation_label(case), why.reason_code, why.reason), []).append(case)
    for (label, code, reason), cases in list(groups.items())[:_MOST_GROUPS]:
        yield f"  {len(cases):>6,}  {label}: {reason} [{code}]"
        yield f"          {_where(cases)}"
    if len(groups) > _MOST_GROUPS:
        rest = sum(len(cases) for cases in list(groups.values())[_MOST_GROUPS:])
        yield f"  {rest:>6,}  for {len(groups) - _MOST_GROUPS} more reasons; --json lists every case"


def _where(cases: Sequence[Case]) -> str:
    """The masks, lengths and passes of some cases."""
    masks = list(dict.fromkeys(mask_label(case.workload.mask_node) for case in cases))
    lengths = sorted({case.workload.mask_node.seqlen_q for case in cases})
    passes = list(dict.fromkeys(case.pass_ for case in cases))
    shown = ", ".join(masks) if len(masks) <= 6 else f"{', '.join(masks[:5])} and {len(masks) - 5} more masks"
    ranks = sorted({case.cp_size for case in cases})
    at = "" if ranks == [1] else f"; cp_size {span(list(map(str, ranks)))}"
    return f"{shown}; {span([format_count(length) for length in lengths])}; {', '.join(passes)}{at}"


def _expected(plan: Plan, expectation: Expectation) -> Iterator[str]:
    yield "expected (estimates; nothing is sampled)"
    longest: dict[str, str] = {}
    for mask_id, node in plan.masks.items():
        label = mask_label(node)
        if label not in longest or node.seqlen_q > plan.masks[longest[label]].seqlen_q:
            longest[label] = mask_id
    wide = max(map(len, longest), default=0)
    for label, mask_id in longest.items():
        node = plan.masks[mask_id]
        packs = node.sample.num_packs
        pairs = expectation.areas[mask_id] / packs
        density = pairs / (node.seqlen_q * node.seqlen_k)
        kind = "exactly" if node.sample.data_sha256 is None else "about"
        square = f"{format_count(node.seqlen_q)} x {format_count(node.seqlen_k)}"
        yield f"  area    {label:<{wide}}  {kind} {density:.2%} of {square}"
    case = expectation.largest
    if case is None:
        yield ""
        yield nothing_measured((implementation_label(one), plan.unsupported[one.case_id].reason) for one in plan.cases)
        return
    node = case.workload.mask_node
    who = f"{implementation_label(case)}, {mask_label(node)}, {format_count(node.seqlen_q)}, {case.pass_}"
    dense = " with its dense mask" if case.case_id in plan.dense else ""
    size = format_bytes(expectation.largest_bytes)
    yield f"  memory  up to {size} of tensors a rank{dense} ({who}); what a kernel needs itself comes on top"
    budget = f"{plan.measure.max_seconds:g} s a pack and case"
    most = _duration(expectation.device_s_most)
    if expectation.device_s_least is None:
        iterations = f"{plan.measure.min_iters} iterations"
        yield f"  time    timing alone: up to {most} at {budget}, more where {iterations} take longer"
    else:
        least = _duration(expectation.device_s_least)
        yield f"  time    timing alone: {least} to {most} at half the device's peak and {budget}"
    beside = "setting up, compiling, verifying and letting the device settle"
    yield f"          not estimated: {beside}, which may take far longer"


def nothing_measured(whys: Iterable[tuple[str, str]]) -> str:
    """The line about cases that are all unsupported. whys: who cannot run and why, of each case.

    >>> nothing_measured([("fa3", "runs on cuda, not on cpu")] * 3 + [("fa2", "no float32")])
    'nothing can be measured: 4 of 4 cases are unsupported: 3 x fa3: runs on cuda, not on cpu; 1 x fa2: no float32'
    """
    counts = Counter(whys)
    total = counts.total()
    told = [f"{count:,} x {who}: {reason}" for (who, reason), count in counts.most_common(_MOST_REASONS)]
    left = len(counts) - len(told)
    told += [f"and {counted(left, 'more reason')}"] if left > 0 else []
    verb = "is" if total == 1 else "are"
    return f"nothing can be measured: {total:,} of {counted(total, 'case')} {verb} unsupported: {'; '.join(told)}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
