"""The methods paragraph of a paper about a run: what was measured, how, and on what. From its tables and provenance.

Nothing is told that the run does not hold: a number that a run lacks is left out, and what differs between its cases is
told as a list or a range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

import attnspec
from attnspec.drawing.look import PASS_TITLES, mask_title
from attnspec.errors import InputError
from attnspec.launch.measured_code import measured_code, measured_versions
from attnspec.launch.rehearsal import is_rehearsal
from attnspec.report.environment import environment, section, variables
from attnspec.report.run import OpenedRun
from attnspec.report.skew import skew_by_case
from attnspec.stats import median
from attnspec.units import format_count

Row = Mapping[str, Any]


def methods_text(run: OpenedRun) -> str:
    """The paragraphs, in sentences. Raises InputError where no case was measured."""
    rows = [row for row in run.cells.to_pylist() if row["status"] == "ok" and row["source"] == "measured"]
    if not rows:
        raise InputError(f"{run.path}: no case is ok, so there is nothing to describe")
    paragraphs = (_workloads(run, rows), _timing(run, rows), _verification(run, rows), _platform(run, rows))
    return "\n\n".join(" ".join(sentences) for sentences in paragraphs) + "\n"


def _workloads(run: OpenedRun, rows: Sequence[Row]) -> Iterator[str]:
    versions = measured_versions(run.provenance) or [attnspec.__version__]
    if is_rehearsal(run.provenance):
        yield "This was a rehearsal of a shrunk spec on the CPU, whose times say nothing and belong in no paper."
    yield f"We measured {_number(len(rows), 'case')} with attnspec {listed(versions)}."
    heads = sorted({(row["num_heads_q"], row["num_heads_kv"]) for row in rows})
    told = listed(f"{queries} query and {keys} key/value heads" for queries, keys in heads)
    yield (
        f"Inputs have batch size {listed(_values(rows, 'batch'))}, {told}, head dimension "
        f"{listed(_values(rows, 'head_dim'))} and type {listed(_values(rows, 'dtype'))}, drawn from a normal "
        "distribution with seeds derived from each workload."
    )
    masks = dict.fromkeys(mask_title(row["mask"], row["mask_params"]) for row in rows)
    lengths = [format_count(seqlen) for seqlen in _values(rows, "seqlen")]
    passes = [PASS_TITLES[pass_] for pass_ in dict.fromkeys(row["pass"] for row in rows)]
    yield f"Masks are {listed(masks)}, over {listed(lengths)} tokens (K = 1024), {listed(passes)}."
    ranks = _values(rows, "cp_size")
    if ranks != [1]:
        strategies = sorted({row["strategy"] for row in rows if row["strategy"]})
        yield f"Sequences are shared by {listed(ranks)} ranks under {listed(strategies)}."
    yield from _documents(run, rows)


def _documents(run: OpenedRun, rows: Sequence[Row]) -> Iterator[str]:
    packs = [count for count in _values(rows, "num_packs") if count > 1]
    if not packs:
        return
    sentence = f"Masks of documents are measured over {listed(packs)} packs of documents each"
    if run.folder.spec.is_file():
        data = run.spec.data
        sentence += (
            f", drawn from the length distribution {data.lengths} with seed {run.spec.seed}; documents over "
            f"{data.max_doc_fraction} of a pack are split"
        )
    yield f"{sentence}."


def _timing(run: OpenedRun, rows: Sequence[Row]) -> Iterator[str]:
    on_cuda = any(row["peak_memory_bytes"] is not None for row in rows)
    if on_cuda:
        yield (
            "Each iteration is timed on the device by events, with L2 flushed before it, and is enqueued before the "
            "device begins it, if need be behind a spin kernel, so that launch overhead does not count."
        )
    else:
        yield "Each iteration is timed on the CPU by a monotonic clock."
    if any(row["cp_size"] > 1 for row in rows):
        yield "The time of an iteration is that of the slowest rank, collectives inside attention included."
        measured = {row["case_id"] for row in rows}
        shares = [skew.share for case_id, skew in skew_by_case(run.timings).items() if case_id in measured]
        if shares:
            yield (
                "Its ranks, which begin together, ended apart by "
                f"{100 * median(shares):.2g} percent of it in the median case and {100 * max(shares):.2g} at most."
            )
    samples = [row["num_samples"] for row in rows if row["num_samples"] is not None]
    rounds = run.timings.filter(pc.is_in(run.timings["case_id"], run.cells["case_id"]))
    counts = rounds.group_by(["case_id", "pack"]).aggregate([("round", "count_distinct")])["round_count_distinct"]
    conditions = section(run.provenance, "workers", "conditions").values()
    settle_ns = max((one.get("settle_ns", 0) for one in conditions if isinstance(one, Mapping)), default=0)
    settling = f", each begun by up to {settle_ns / 1e6:g} ms of the same iterations untimed" if settle_ns else ""
    yield (
        f"After a warm-up, all implementations of a workload take turns in rounds of changing order{settling}; we took "
        f"{_span(samples)} iterations per case in {_span(counts.to_pylist())} rounds per pack."
    )
    if run.folder.spec.is_file():
        measure = run.spec.measure
        yield (
            f"Sampling ends when the 95 % interval of the median is within {measure.ci:.3g} of it (half its width, "
            f"relative) or after {measure.max_seconds:g} s per case and pack, with at least {measure.min_iters} "
            "iterations."
        )
    yield (
        "We report medians; over packs, times are averaged and throughput is total FLOPs over total time. FLOPs count "
        "the allowed pairs of the mask exactly: 4 x pairs x batch x query heads x head dimension forward, 2.5 times "
        "that backward. Intervals are 95 % block-bootstrap intervals over rounds within packs."
    )


def _verification(run: OpenedRun, rows: Sequence[Row]) -> Iterator[str]:
    checked = [row for row in rows if row["verified_error"] is not None and row["verified_bound"] is not None]
    if checked:
        worst = max(checked, key=lambda row: float(row["verified_error"] / row["verified_bound"]))
        yield (
            f"Before timing, {_all(len(checked), len(rows))} verified at full size on the inputs that are timed: a "
            "probe proves the mask on every row, and outputs, log-sum-exp and gradients of sampled rows are held "
            "against a reference of higher precision (float64, or float32 without TF32), relative to the error of "
            "plain attention of the same type."
        )
        yield f"The worst ratio was {worst['verified_error']:.3g} of a bound of {worst['verified_bound']:.3g}."
    others = Counter(status for status in run.cells["status"].to_pylist() if status not in ("ok", "skipped"))
    if others:
        told = listed(f"{count} {status}" for status, count in others.most_common())
        yield f"Of the other cases asked for, {told}; they have no throughput."


def _platform(run: OpenedRun, rows: Sequence[Row]) -> Iterator[str]:
    held = environment(run)
    worker = section(held, "worker")
    cuda, versions = section(worker, "cuda"), section(worker, "versions")
    # On a CPU this is the processor.
    device = listed(_as_list(held["device"])) or "an unknown device"
    sentence = f"Measurements ran on {device}"
    if "driver" in worker:
        sentence += f" (driver {listed(_as_list(worker['driver']))}{_cuda(cuda)})"
    yield f"{sentence}, host processor {section(held, 'host').get('processor', 'unknown')}."
    clocks = [row["sm_clock_mhz"] for row in rows if row["sm_clock_mhz"] is not None]
    if clocks:
        throttled = sum(bool(row["throttled"]) for row in rows)
        yield (
            f"Clocks were not locked by attnspec; the median SM clock of a case was {_span(clocks)} MHz, and "
            f"{_number(throttled, 'case')} had samples that the device reported as throttled."
        )
    packages = [f"{name} {listed(_as_list(version))}" for name, version in sorted(versions.items())]
    kernels = [f"{kernel} from {listed(_as_list(names))}" for kernel, names in section(held, "provider").items()]
    yield f"Kernels: {listed(kernels)}." if kernels else "Kernels are named without provider."
    if packages:
        python = worker.get("python")
        yield f"Software: {listed([*([f'Python {listed(_as_list(python))}'] if python else []), *packages])}."
    if told := variables(run.provenance):
        yield f"Environment variables: {listed(told)}."
    if held["image"]:
        yield f"Container image {listed(_as_list(held['image']))}."
    yield from _code(run)


def _code(run: OpenedRun) -> Iterator[str]:
    states = measured_code(run.provenance)
    if len(states) == 1:
        ((state, commit),) = states.items()
        yield f"attnspec's own code: {f'commit {commit} and ' if commit else ''}SHA-256 {state}."
    elif states:
        told = (f"{state} (commit {commit})" if commit else state for state, commit in states.items())
        yield f"Cases were measured with {len(states)} states of attnspec's own code, SHA-256 {listed(told)}."


def _cuda(cuda: Mapping[str, Any]) -> str:
    names = (("CUDA", "runtime"), ("cuDNN", "cudnn"), ("NCCL", "nccl"))
    return "".join(f", {name} {listed(_as_list(cuda[key]))}" for name, key in names if cuda.get(key) is not None)


def listed(items: Iterable[object]) -> str:
    """Items as people list them.

    >>> listed([]), listed([1]), listed([1, 2]), listed("abc")
    ('', '1', '1 and 2', 'a, b and c')
    """
    *firsts, last = [*map(str, items)] or [""]
    return f"{', '.join(firsts)} and {last}" if firsts else last


def _values(rows: Iterable[Row], name: str) -> list[Any]:
    return sorted({row[name] for row in rows})


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _all(count: int, total: int) -> str:
    return "every case was" if count == total else f"{count:,} of {total:,} cases were"


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
