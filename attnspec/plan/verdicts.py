"""Which cases cannot run, decided while planning: without running anything, and for many cases at once.

A kernel is asked with the slices of example documents at the real seqlen. A yes is shared by all masks of one pattern:
the worker asks again with the real slices, so a wrong yes costs nothing. It is even asked about a shorter sequence of
that pattern, since lowering a long one can take seconds. A no is the kernel's answer to the mask's own slices, because
nobody asks again; it is shared by masks of exactly the same structure once two of them were refused in the same words.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from attnspec import plugins
from attnspec.errors import InputError, UnsupportedError
from attnspec.ids import canonical_json
from attnspec.masks import make_slices
from attnspec.plan.identity import implementation_content
from attnspec.plan.model import MaskNode, Unsupported
from attnspec.plan.structure import example_documents, pattern, structure
from attnspec.shape import Shape
from attnspec.slices import AttnSlices
from attnspec.support import Device, Problem
from attnspec.units import format_count
from attnspec.wire import Implementation

_SHORT_SEQLENS = (2048, 8192, 32768, 131072)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An implementation as it is asked: its modules and parameters, loaded once. `key` tells implementations apart."""

    key: str
    implementation: Implementation
    kernel: ModuleType
    kernel_params: Any
    strategy: ModuleType | None
    strategy_params: Any

    @classmethod
    def load(cls, implementation: Implementation) -> Asked:
        """Find the plug-ins. Raises InputError for unknown names."""
        kernel = plugins.load("kernels", implementation.kernel)
        settings = dict(implementation.kernel_params)
        if any(field.name == "backend" for field in dataclasses.fields(kernel.Params)):
            settings["backend"] = implementation.backend
        name = implementation.strategy
        strategy = None if name is None else plugins.load("strategies", name)
        return cls(
            key=canonical_json(implementation_content(implementation)),
            implementation=implementation,
            kernel=kernel,
            kernel_params=plugins.make_params(kernel, settings),
            strategy=strategy,
            strategy_params=strategy and plugins.make_params(strategy, implementation.strategy_params),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a plug-in said. dense: it runs with a mask of seqlen_q x seqlen_k elements on the device."""

    refused: Unsupported | None = None
    dense: bool = False


_YES = Verdict()
_Key = tuple[str, bool]
"""Which implementation, and whether a backward follows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pattern:
    """What is known of all masks of one pattern: a short one of them, and what was said about that."""

    short: AttnSlices
    answers: dict[_Key, Verdict]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Example:
    """A mask over example documents, and what was said about it where its pattern was refused."""

    slices: AttnSlices
    pattern: _Pattern
    answers: dict[_Key, Verdict]


class Verdicts:
    """Asks plug-ins and remembers. One object serves one shape; `device` None means that nobody has looked at one."""

    def __init__(self, shape: Shape, device: Device | None) -> None:
        self._shape = shape
        self._device = device
        self._limits: dict[tuple[str, bool, int], Verdict] = {}
        self._patterns: dict[bytes, _Pattern] = {}
        self._examples: dict[str, _Example] = {}
        self._words: dict[tuple[str, bool, bytes], tuple[Verdict, bool]] = {}

    def ask(self, asked: Asked, node: MaskNode, *, needs_backward: bool, cp_size: int) -> Verdict:
        """What the plug-ins say about a case. Raises InputError when the mask refuses its own parameters or lengths."""
        example = self._examples.get(node.mask_id) or self._example(node)
        limits = (asked.key, needs_backward, cp_size)
        if limits not in self._limits:
            self._limits[limits] = self._check_limits(asked, example.slices, needs_backward, cp_size)
        if self._limits[limits].refused is not None or asked.strategy is not None:
            return self._limits[limits]
        key = (asked.key, needs_backward)
        alike = example.pattern.answers
        if key not in alike:
            alike[key] = self._lower(asked, example.pattern.short, needs_backward)
        if alike[key].refused is None:
            return alike[key]
        if key not in example.answers:
            example.answers[key] = self._ask_itself(asked, example.slices, needs_backward)
        return example.answers[key]

    def _ask_itself(self, asked: Asked, slices: AttnSlices, needs_backward: bool) -> Verdict:
        same = (asked.key, needs_backward, structure(slices))
        known, agreed = self._words.get(same, (None, False))
        if known is not None and agreed:
            return known
        answer = self._lower(asked, slices, needs_backward)
        if answer.refused is not None:
            self._words[same] = answer, answer == known
        return answer

    def _check_limits(self, asked: Asked, slices: AttnSlices, needs_backward: bool, cp_size: int) -> Verdict:
        problem = self._problem(slices, needs_backward)
        try:
            if asked.strategy is None:
                asked.kernel.SUPPORT.check(problem)
            else:
                # A strategy may repeat K and V, so heads alone are no reason to refuse its kernel.
                heads = dataclasses.replace(self._shape, num_heads_kv=self._shape.num_heads_q)
                asked.kernel.SUPPORT.check(dataclasses.replace(problem, shape=heads))
                asked.strategy.check(asked.strategy_params, self._shape, cp_size)
        except UnsupportedError as error:
            return _refusal(error)
        return _YES

    def _lower(self, asked: Asked, slices: AttnSlices, needs_backward: bool) -> Verdict:
        problem = self._problem(slices, needs_backward)
        try:
            lowered = asked.kernel.lower(problem, asked.kernel_params, asked.implementation.provider)
        except UnsupportedError as error:
            return _refusal(error)
        return Verdict(dense=getattr(lowered, "dense", False))

    def _problem(self, slices: AttnSlices, needs_backward: bool) -> Problem:
        return Problem(shape=self._shape, slices=slices, needs_backward=needs_backward, device=self._device)

    def _example(self, node: MaskNode) -> _Example:
        module = plugins.load("masks", node.mask)
        params = plugins.make_params(module, node.params)
        try:
            slices = example_slices(module, params, node, node.seqlen_q)
        except InputError as error:
            raise InputError(f"mask {node.mask} at seqlen {format_count(node.seqlen_q)}: {error}") from None
        digest = pattern(slices)
        if digest not in self._patterns:
            short = _shortest(module, params, node, digest) or slices
            self._patterns[digest] = _Pattern(short=short, answers={})
        self._examples[node.mask_id] = _Example(slices=slices, pattern=self._patterns[digest], answers={})
        return self._examples[node.mask_id]


def _refusal(error: UnsupportedError) -> Verdict:
    return Verdict(refused=Unsupported(reason_code=error.reason_code, reason=error.reason))


def example_slices(module: ModuleType, params: Any, node: MaskNode, seqlen: int) -> AttnSlices:
    """The slices of a mask node over example documents, at its own seqlen_q or as a shorter likeness of it.

    Raises InputError when the mask refuses its parameters or lengths.
    """
    if seqlen != node.seqlen_q and node.seqlen_k != node.seqlen_q:
        params = dataclasses.replace(params, seqlen_k=max(1, node.seqlen_k * seqlen // node.seqlen_q))
    docs = example_documents(seqlen, node.sample.max_doc_fraction) if module.USES_DOCUMENTS else [seqlen]
    return make_slices(module, params, docs, seqlen)


def _shortest(module: ModuleType, params: Any, node: MaskNode, digest: bytes) -> AttnSlices | None:
    for seqlen in _SHORT_SEQLENS:
        if seqlen >= node.seqlen_q:
            break
        try:
            slices = example_slices(module, params, node, seqlen)
        except InputError:
            continue  # the mask's own parameters need the longer sequence
        if pattern(slices) == digest:
            return slices
    return None
