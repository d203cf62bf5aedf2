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
from attnspec.plan.model import MaskNode, Unsupported, Workload
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Example:
    """A mask over example documents, the shorter likeness of its pattern, and what tells how alike masks are."""

    slices: AttnSlices
    short: AttnSlices
    pattern: bytes


class Verdicts:
    """Asks plug-ins and remembers. One object serves one compilation; `device` None means that nobody has looked."""

    def __init__(self, device: Device | None) -> None:
        self._device = device
        self._examples: dict[str, _Example] = {}
        self._short: dict[bytes, AttnSlices] = {}
        self._limits: dict[tuple[str, Shape, bool, int], Unsupported | None] = {}
        self._patterns: dict[tuple[str, Shape, bool, bytes], Unsupported | None] = {}
        self._structures: dict[tuple[str, Shape, bool, bytes], tuple[Unsupported, bool]] = {}
        self._own: dict[tuple[str, Shape, bool, str], Unsupported | None] = {}

    def ask(self, asked: Asked, workload: Workload, *, needs_backward: bool, cp_size: int) -> Unsupported | None:
        """Why this cannot run, or None. Raises InputError when the mask refuses its own parameters or lengths."""
        shape, example = workload.shape, self._example(workload.mask_node)
        limits = (asked.key, shape, needs_backward, cp_size)
        if limits not in self._limits:
            self._limits[limits] = self._check_limits(asked, shape, example.slices, needs_backward, cp_size)
        refused = self._limits[limits]
        if refused is not None or asked.strategy is not None:
            return refused
        alike = (asked.key, shape, needs_backward, example.pattern)
        if alike not in self._patterns:
            self._patterns[alike] = self._lower(asked, shape, example.short, needs_backward)
        if self._patterns[alike] is None:
            return None
        own = (asked.key, shape, needs_backward, workload.mask_node.mask_id)
        if own not in self._own:
            self._own[own] = self._ask_itself(asked, shape, example, needs_backward)
        return self._own[own]

    def _ask_itself(self, asked: Asked, shape: Shape, example: _Example, needs_backward: bool) -> Unsupported | None:
        same = (asked.key, shape, needs_backward, structure(example.slices))
        known, agreed = self._structures.get(same, (None, False))
        if agreed:
            return known
        answer = self._lower(asked, shape, example.slices, needs_backward)
        if answer is not None:
            self._structures[same] = answer, answer == known
        return answer

    def _check_limits(
        self, asked: Asked, shape: Shape, slices: AttnSlices, needs_backward: bool, cp_size: int
    ) -> Unsupported | None:
        try:
            asked.kernel.SUPPORT.check(self._problem(shape, slices, needs_backward))
            if asked.strategy is not None:
                asked.strategy.check(asked.strategy_params, shape, cp_size)
        except UnsupportedError as error:
            return Unsupported(reason_code=error.reason_code, reason=error.reason)
        return None

    def _lower(self, asked: Asked, shape: Shape, slices: AttnSlices, needs_backward: bool) -> Unsupported | None:
        problem = self._problem(shape, slices, needs_backward)
        try:
            asked.kernel.lower(problem, asked.kernel_params, asked.implementation.provider)
        except UnsupportedError as error:
            return Unsupported(reason_code=error.reason_code, reason=error.reason)
        return None

    def _problem(self, shape: Shape, slices: AttnSlices, needs_backward: bool) -> Problem:
        return Problem(shape=shape, slices=slices, needs_backward=needs_backward, device=self._device)

    def _example(self, node: MaskNode) -> _Example:
        if node.mask_id not in self._examples:
            module = plugins.load("masks", node.mask)
            params = plugins.make_params(module, node.params)
            try:
                slices = example_slices(module, params, node, node.seqlen_q)
            except InputError as error:
                raise InputError(f"mask {node.mask} at seqlen {format_count(node.seqlen_q)}: {error}") from None
            kind = pattern(slices)
            if kind not in self._short:
                self._short[kind] = _shortest(module, params, node, kind) or slices
            self._examples[node.mask_id] = _Example(slices=slices, short=self._short[kind], pattern=kind)
        return self._examples[node.mask_id]


def example_slices(module: ModuleType, params: Any, node: MaskNode, seqlen: int) -> AttnSlices:
    """The slices of a mask node over example documents, at its own seqlen_q or as a shorter likeness of it.

    Raises InputError when the mask refuses its parameters or lengths.
    """
    if seqlen != node.seqlen_q and node.seqlen_k != node.seqlen_q:
        params = dataclasses.replace(params, seqlen_k=max(1, node.seqlen_k * seqlen // node.seqlen_q))
    docs = example_documents(seqlen, node.sample.max_doc_fraction) if module.USES_DOCUMENTS else [seqlen]
    return make_slices(module, params, docs, seqlen)


def _shortest(module: ModuleType, params: Any, node: MaskNode, kind: bytes) -> AttnSlices | None:
    for seqlen in _SHORT_SEQLENS:
        if seqlen >= node.seqlen_q:
            break
        try:
            slices = example_slices(module, params, node, seqlen)
        except InputError:
            continue  # the mask's own parameters need the longer sequence
        if pattern(slices) == kind:
            return slices
    return None
