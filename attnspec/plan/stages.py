"""A plan collapsed by stage: a handful of groups and how many cases flow between them. Pure; what `--graph` draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnspec.params import switches_said
from attnspec.plan.model import Case, MaskNode, Plan, SampleNode
from attnspec.units import format_count

MAX_GROUPS = 16
"""Groups of one stage; the rest are folded into one."""
STAGES = ("sample", "mask", "run", "collect")


@dataclass(slots=True, kw_only=True)
class Group:
    """Nodes of one stage that are drawn as one. `cases` are those that flow through it.

    details: parameters. notes: seqlens of a mask, cp_sizes of a strategy, in the order of their first use.
    """

    label: str
    details: tuple[str, ...] = ()
    nodes: set[str] = field(default_factory=set)
    cases: int = 0
    unsupported: int = 0
    notes: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """groups: stage -> its groups in order. flows: (stage, index of source, index of target) -> (cases, unsupported).

    A flow of stage s goes from a group of s to a group of the stage after it.
    """

    groups: Mapping[str, tuple[Group, ...]]
    flows: Mapping[tuple[str, int, int], tuple[int, int]]


def collapse(plan: Plan) -> Stages:
    """Group sample nodes by how packs are filled, mask nodes by mask and parameters, cases by implementation."""
    folds = {
        "sample": _Fold((_sample_label(node), ()) for node in plan.samples.values()),
        "mask": _Fold((_mask_key(node), parameters(node.params)) for node in plan.masks.values()),
        "run": _Fold((implementation_label(case), ()) for case in plan.cases),
        "collect": _Fold([("cells.parquet", ())]),
    }
    passing: Counter[tuple[str, int, int]] = Counter()
    refused: Counter[tuple[str, int, int]] = Counter()
    for case in plan.cases:
        node = case.workload.mask_node
        unsupported = case.case_id in plan.unsupported
        chain = (
            folds["sample"].add(_sample_label(node.sample), node.sample.sample_id, unsupported),
            folds["mask"].add(_mask_key(node), node.mask_id, unsupported),
            folds["run"].add(implementation_label(case), case.case_id, unsupported),
            folds["collect"].add("cells.parquet", "", unsupported),
        )
        for stage, source, target in zip(STAGES, chain, chain[1:], strict=False):
            passing[stage, source, target] += 1
            refused[stage, source, target] += unsupported
        folds["mask"].groups[chain[1]].notes[format_count(node.seqlen_q)] = None
        if case.level == "distributed":
            folds["run"].groups[chain[2]].notes[str(case.cp_size)] = None
    return Stages(
        groups={stage: tuple(fold.groups) for stage, fold in folds.items()},
        flows={key: (cases, refused[key]) for key, cases in passing.items()},
    )


def implementation_label(case: Case) -> str:
    """A kernel with its backend and switches, or a strategy with its kernel in brackets."""
    asked = case.implementation
    kernel = " ".join(part for part in (asked.kernel, asked.backend, switches_said(asked.kernel_params)) if part)
    return kernel if asked.strategy is None else f"{asked.strategy} ({kernel})"


def mask_label(node: MaskNode) -> str:
    """A mask with its parameters, on one line."""
    details = parameters(node.params)
    return f"{node.mask} ({', '.join(details)})" if details else node.mask


def parameters(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Parameters that are set, each as its name and a short value.

    >>> parameters({"window": 1024, "seqlen_k": None})
    ('window 1K',)
    """
    return tuple(f"{name} {_short(value)}" for name, value in params.items() if value is not None)


def span(texts: Sequence[str]) -> str:
    """A list in few words.

    >>> span(["1K"]), span(["1K", "2K", "4K"]), span(["1K", "2K", "4K", "8K", "16K"])
    ('1K', '1K, 2K, 4K', '1K … 16K')
    """
    return ", ".join(texts) if len(texts) <= 3 else f"{texts[0]} … {texts[-1]}"


def _sample_label(node: SampleNode) -> str:
    if node.data_sha256 is None:
        return "one document"
    return f"{str(node.lengths).rsplit('/', 1)[-1]} × {node.num_packs} packs"


def _mask_key(node: MaskNode) -> str:
    return "\n".join((node.mask, *parameters(node.params)))


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"{len(value)} rows"
    text = format_count(value) if type(value) is int and value >= 1024 else str(value)
    return text if len(text) <= 16 else f"{text[:15]}…"


class _Fold:
    """Groups by key (its first line is the label), in the order of their first use, at most MAX_GROUPS of them."""

    def __init__(self, keys: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        distinct = dict(keys)
        kept = list(distinct) if len(distinct) <= MAX_GROUPS else list(distinct)[: MAX_GROUPS - 1]
        self.groups = [Group(label=key.partition("\n")[0], details=distinct[key]) for key in kept]
        self._index = {key: index for index, key in enumerate(kept)}
        if len(kept) < len(distinct):
            self.groups.append(Group(label=f"{len(distinct) - len(kept)} more"))

    def add(self, key: str, node: str, unsupported: bool) -> int:
        """Count a case that flows through `node`; returns the index of its group."""
        index = self._index.get(key, len(self.groups) - 1)
        group = self.groups[index]
        group.nodes.add(node)
        group.cases += 1
        group.unsupported += unsupported
        return index
