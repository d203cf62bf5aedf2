"""Which cases cannot run, decided while planning: without running anything, and for many cases at once.

A kernel is asked with the slices of example documents at the real seqlen. A yes is shared by all masks of one pattern:
the worker asks again with the real slices, so a wrong yes costs nothing. It is even asked about a shorter sequence of
that pattern, since lowering a long one can take seconds. A no is the kernel's answer to the mask's own slices, because
nobody asks again; it is shared by masks of exactly the same structure once two of them were refused in the same words,
and, where one mask has many lengths, by those between two that have its pattern and were refused in the same words.

Where packs are drawn, a mask's own slices are known to the worker alone. There a no stands only if the shortest and the
longest documents that can be drawn are refused on the same ground; else the worker decides.

Where nobody has looked at a device, a no is what every device refuses that the machine may turn out to have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np

from attnspec import plugins
from attnspec.errors import InputError, UnsupportedError
from attnspec.ids import canonical_json
from attnspec.masks import make_slices
from attnspec.plan.asked import Asked
from attnspec.plan.devices import Refusal, first_answer, possible_devices
from attnspec.plan.model import MaskNode, Unsupported
from attnspec.plan.parts import refused_part
from attnspec.plan.structure import equal_documents, example_documents, pattern, structure
from attnspec.sample.lengths import Lengths
from attnspec.sample.packs import piece_bounds
from attnspec.shape import Shape
from attnspec.slices import AttnSlices
from attnspec.support import Device, Problem
from attnspec.units import format_count

_SHORT_SEQLENS = (2048, 8192, 32768, 131072)
_FEW_LENGTHS = 16
"""Up to this many lengths of one mask are looked at one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a plug-in said. dense: it runs with a mask of seqlen_q x seqlen_k elements on the device.

    grounds: the reason code of each device, where all refuse.
    """

    refused: Unsupported | None = None
    grounds: tuple[str, ...] = ()
    dense: bool = False


_YES = Verdict()
_Key = tuple[str, bool]
"""Which implementation, and whether a backward follows."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Pattern:
    """What is known of all masks of one pattern: a short one of them, and what was said about that."""

    short: AttnSlices
    answers: dict[_Key, Verdict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Example:
    """A mask node with its pattern, and what was said about its own slices where the pattern was refused.

    length: of equal documents; None for uneven ones. ends: the examples of the shortest and longest node of the same
    mask and pattern, where there are many lengths.
    """

    node: MaskNode
    pattern: _Pattern
    length: int | None = None
    ends: tuple[_Example, _Example] | None = None
    answers: dict[_Key, Verdict] = field(default_factory=dict)


class Verdicts:
    """Asks plug-ins about mask nodes and remembers.

    nodes: all that will be asked about. shape: of every case. device: None means that nobody has looked at one.
    lengths: what documents are drawn from. Raises InputError when a mask refuses its own parameters or lengths.
    """

    def __init__(
        self, nodes: Iterable[MaskNode], *, shape: Shape, device: Device | None, lengths: Lengths | None
    ) -> None:
        self._shape = shape
        self._device = device
        self._devices = possible_devices(device)
        self._lengths = lengths
        self._limits: dict[tuple[str, bool, int], Verdict] = {}
        self._parts: dict[tuple[str, bool, int], Unsupported | None] = {}
        self._shares: dict[tuple[str, str, int], Verdict] = {}
        self._patterns: dict[bytes, _Pattern] = {}
        self._examples: dict[str, _Example] = {}
        self._extremes: dict[tuple[str, str, int, int, int], _Example | None] = {}
        self._words: dict[tuple[str, bool, bytes], tuple[Verdict, bool]] = {}
        for family in _families(nodes):
            self._survey(family)

    def ask(self, asked: Asked, node: MaskNode, *, needs_backward: bool, cp_size: int) -> Verdict:
        """What the plug-ins say about a case."""
        example = self._examples[node.mask_id]
        limits = (asked.key, needs_backward, cp_size)
        if limits not in self._limits:
            self._limits[limits] = self._check_limits(asked, example.pattern.short, needs_backward, cp_size)
        if self._limits[limits].refused is not None:
            return self._limits[limits]
        if asked.strategy is not None:
            if limits not in self._parts:
                self._parts[limits] = refused_part(
                    asked, self._shape, device=self._device, needs_backward=needs_backward, cp_size=cp_size
                )
            refused = self._parts[limits]
            if refused is not None and len(example.pattern.short):  # of an empty mask no kernel computes any part
                return Verdict(refused=refused)
            return self._share(asked, asked.strategy, node, cp_size)
        verdict = self._judge(example, asked, needs_backward)
        if verdict.refused is None or node.sample.data_sha256 is None:
            return verdict
        return self._with_other_documents(verdict.grounds, example, asked, needs_backward) or verdict

    def _judge(self, example: _Example, asked: Asked, needs_backward: bool) -> Verdict:
        """The answer to all masks of a pattern if it is yes, else to the example's own slices."""
        key = (asked.key, needs_backward)
        alike = example.pattern.answers
        if key not in alike:
            alike[key] = self._lower(asked, example.pattern.short, needs_backward)
        if alike[key].refused is None:
            return alike[key]
        if key not in example.answers and example.ends is not None:
            low, high = (self._itself(end, asked, needs_backward) for end in example.ends)
            if low.refused is not None and low == high:
                example.answers[key] = low
        return self._itself(example, asked, needs_backward)

    def _with_other_documents(
        self, grounds: tuple[str, ...], example: _Example, asked: Asked, needs_backward: bool
    ) -> Verdict | None:
        """A yes where documents that may be drawn are not refused on the same `grounds`; None where all are."""
        for which in (0, 1):
            extreme = self._extreme(example, which)
            if extreme is None:
                return _YES
            verdict = self._judge(extreme, asked, needs_backward)
            if verdict.refused is None:
                return verdict
            if verdict.grounds != grounds:
                return _YES
        return None

    def _extreme(self, example: _Example, which: int) -> _Example | None:
        """The mask over the shortest (0) or longest (1) documents alone; None where the mask itself refuses them."""
        node, fraction = example.node, example.node.sample.max_doc_fraction
        assert self._lengths is not None and fraction is not None
        length = piece_bounds(self._lengths, seqlen=node.seqlen_q, max_doc_fraction=fraction)[which]
        seqlen = int(equal_documents(node.seqlen_q, length).sum())
        key = (node.mask, canonical_json(dict(node.params)), length, seqlen, node.seqlen_k * seqlen // node.seqlen_q)
        if key not in self._extremes:
            try:
                slices = example_slices(node, seqlen, length)
            except InputError:
                self._extremes[key] = None
                return None
            held = self._patterns.setdefault(pattern(slices), _Pattern(short=slices))
            self._extremes[key] = _Example(node=node, pattern=held, length=length)
            if example.ends is not None:
                low, high = (self._extreme(end, which) for end in example.ends)
                if low is not None and high is not None and low.pattern is held is high.pattern:
                    self._extremes[key] = _Example(node=node, pattern=held, length=length, ends=(low, high))
        return self._extremes[key]

    def _share(self, asked: Asked, strategy: ModuleType, node: MaskNode, cp_size: int) -> Verdict:
        """Whether a library's own strategy takes a mask; asked where the mask knows no documents and so is exact."""
        if node.sample.data_sha256 is not None or not (
            getattr(strategy, "PROVIDERS", ()) and hasattr(strategy, "shard")
        ):
            return _YES
        key = (asked.key, node.mask_id, cp_size)
        if key not in self._shares:
            slices, docs = example_slices(node, node.seqlen_q), [node.seqlen_q]
            try:
                strategy.shard(asked.strategy_params, slices, docs, self._shape, cp_size)
                self._shares[key] = _YES
            except UnsupportedError as error:
                self._shares[key] = _refusal(error)
        return self._shares[key]

    def _survey(self, family: Sequence[MaskNode]) -> None:
        """Find the pattern of every node of one mask, by rising length; between equal patterns none is looked for."""
        last = len(family) - 1
        looked = range(last + 1) if last < _FEW_LENGTHS else (0, last)
        patterns = {index: self._look(family[index]) for index in looked}
        between = [(0, last)] if last > 0 else []
        while between:
            low, high = between.pop()
            if patterns[low] is patterns[high]:
                for index in range(low + 1, high):
                    patterns.setdefault(index, patterns[low])
            elif high - low > 1:
                middle = (low + high) // 2
                if middle not in patterns:
                    patterns[middle] = self._look(family[middle])
                between += [(low, middle), (middle, high)]
        examples = [_Example(node=node, pattern=patterns[index]) for index, node in enumerate(family)]
        ends: dict[int, tuple[_Example, _Example]] = {}
        if last >= _FEW_LENGTHS:
            for example in examples:
                ends[id(example.pattern)] = (ends.get(id(example.pattern), (example,))[0], example)
        for example in examples:
            low_high = ends.get(id(example.pattern))
            if low_high is not None and example not in low_high:
                example = dataclasses.replace(example, ends=low_high)
            self._examples[example.node.mask_id] = example

    def _look(self, node: MaskNode) -> _Pattern:
        try:
            slices = example_slices(node, node.seqlen_q)
        except InputError as error:
            raise InputError(f"mask {node.mask} at seqlen {format_count(node.seqlen_q)}: {error}") from None
        digest = pattern(slices)
        if digest not in self._patterns:
            self._patterns[digest] = _Pattern(short=_shortest(node, digest) or slices)
        elif slices.seqlen_q < self._patterns[digest].short.seqlen_q:
            self._patterns[digest].short = slices
        return self._patterns[digest]

    def _itself(self, example: _Example, asked: Asked, needs_backward: bool) -> Verdict:
        """The answer to a mask's own slices, or to those of two others that have exactly their structure."""
        key = (asked.key, needs_backward)
        if key not in example.answers:
            slices = _own_slices(example)
            same = (*key, structure(slices))
            known, agreed = self._words.get(same, (None, False))
            if known is None or not agreed:
                answer = self._lower(asked, slices, needs_backward)
                self._words[same] = answer, answer == known and answer.refused is not None
                known = answer
            example.answers[key] = known
        return example.answers[key]

    def _check_limits(self, asked: Asked, slices: AttnSlices, needs_backward: bool, cp_size: int) -> Verdict:
        shape = self._shape
        if asked.strategy is not None:
            # A strategy may repeat K and V, so heads alone are no reason to refuse its kernel.
            shape = dataclasses.replace(shape, num_heads_kv=shape.num_heads_q)

        def check(device: Device) -> None:
            problem = Problem(shape=shape, slices=slices, needs_backward=needs_backward, device=device)
            asked.kernel.SUPPORT.check(problem)

        _, refusal = first_answer(self._devices, check)
        if refusal is not None:
            return _no(refusal)
        if asked.strategy is not None:
            try:
                asked.strategy.check(asked.strategy_params, self._shape, cp_size)
            except UnsupportedError as error:
                return _refusal(error)
        return _YES

    def _lower(self, asked: Asked, slices: AttnSlices, needs_backward: bool) -> Verdict:
        def lower(device: Device) -> Any:
            problem = Problem(shape=self._shape, slices=slices, needs_backward=needs_backward, device=device)
            asked.kernel.SUPPORT.check(problem)
            return asked.kernel.lower(problem, asked.kernel_params, asked.implementation.provider)

        lowered, refusal = first_answer(self._devices, lower)
        return Verdict(dense=getattr(lowered, "dense", False)) if refusal is None else _no(refusal)


def _no(refusal: Refusal) -> Verdict:
    return Verdict(refused=refusal.why, grounds=refusal.grounds)


def _refusal(error: UnsupportedError) -> Verdict:
    why = Unsupported(reason_code=error.reason_code, reason=error.reason)
    return Verdict(refused=why, grounds=(error.reason_code,))


def _own_slices(example: _Example) -> AttnSlices:
    seqlen = example.node.seqlen_q
    if example.length is not None:
        seqlen = int(equal_documents(seqlen, example.length).sum())
    return example_slices(example.node, seqlen, example.length)


def example_slices(node: MaskNode, seqlen: int, length: int | None = None) -> AttnSlices:
    """The slices of a mask node over example documents, at its own seqlen_q or as a shorter likeness of it.

    length: of the documents; None for uneven ones. Raises InputError when the mask refuses its parameters or lengths.
    """
    module = plugins.load("masks", node.mask)
    params = plugins.make_params(module, node.params)
    if seqlen != node.seqlen_q and node.seqlen_k != node.seqlen_q:
        params = dataclasses.replace(params, seqlen_k=max(1, node.seqlen_k * seqlen // node.seqlen_q))
    if not module.USES_DOCUMENTS:
        docs = np.array([seqlen])
    elif length is None:
        docs = example_documents(seqlen, node.sample.max_doc_fraction)
    else:
        docs = equal_documents(seqlen, length)
    return make_slices(module, params, docs, seqlen)


def _families(nodes: Iterable[MaskNode]) -> Iterator[list[MaskNode]]:
    """Nodes of one mask, parameters and share of documents, by rising length."""
    held: dict[tuple[str, str, Fraction | None], list[MaskNode]] = {}
    for node in nodes:
        key = (node.mask, canonical_json(dict(node.params)), node.sample.max_doc_fraction)
        held.setdefault(key, []).append(node)
    for family in held.values():
        yield sorted(family, key=lambda node: node.seqlen_q)


def _shortest(node: MaskNode, digest: bytes) -> AttnSlices | None:
    for seqlen in _SHORT_SEQLENS:
        if seqlen >= node.seqlen_q:
            break
        try:
            slices = example_slices(node, seqlen)
        except InputError:
            continue  # the mask's own parameters need the longer sequence
        if pattern(slices) == digest:
            return slices
    return None
