"""From a spec to a plan: every sweep's product, nodes and cases by content id, jobs, and what cannot run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np

from attnspec import plugins
from attnspec.errors import InputError
from attnspec.ids import canonical_json
from attnspec.masks import seqlen_k_of
from attnspec.plan import identity
from attnspec.plan.asked import Asked
from attnspec.plan.jobs import group_jobs
from attnspec.plan.model import Case, Image, MaskNode, Plan, SampleNode, Unsupported, Workload
from attnspec.plan.variables import misled
from attnspec.plan.verdicts import Verdicts
from attnspec.sample.lengths import Lengths
from attnspec.sample.packs import max_piece
from attnspec.shape import Pass
from attnspec.spec import ImplementationItem, KernelSweep, MaskItem, Spec, Sweep
from attnspec.support import Device


def uses_documents(spec: Spec) -> bool:
    """Whether any mask of a spec needs the length distribution."""
    return any(plugins.load("masks", mask.name).USES_DOCUMENTS for sweep in spec.sweeps for mask in sweep.masks)


def compile_spec(
    spec: Spec,
    lengths: Lengths | None,
    *,
    device: Device | None = None,
    images: Sequence[Image] = (),
    env: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of a spec. `lengths` is the distribution that `spec.data.lengths` names; None only if no mask needs it.

    Raises InputError when a mask refuses its parameters at one of the seqlens, and for more packs than documents fill.
    """
    compiler = _Compiler(spec, lengths)
    for index, sweep in enumerate(spec.sweeps):
        compiler.add(index, sweep)
    unsupported, dense = compiler.judge(device, images, env)
    cases = tuple(compiler.cases.values())
    return Plan(
        name=spec.name,
        runner=spec.runner,
        images=tuple(images),
        device=device,
        measure=spec.measure,
        lengths=lengths,
        samples=compiler.samples,
        masks=compiler.masks,
        workloads=compiler.workloads,
        cases=cases,
        jobs=group_jobs(cases, runner=spec.runner, images=images),
        unsupported=unsupported,
        dense=dense,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mask:
    """A mask item with its module and parameters loaded."""

    item: MaskItem
    module: ModuleType
    params: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """An implementation item as the sweep asks it, with what its case ids hash."""

    item: ImplementationItem
    asked: Asked
    env_json: str


class _Compiler:
    """Collects nodes while the sweeps are walked; what is asked twice is held once."""

    def __init__(self, spec: Spec, lengths: Lengths | None) -> None:
        self._spec = spec
        self._lengths = lengths
        self._sha256 = None if lengths is None else lengths.sha256
        self._asked: dict[int, Asked] = {}  # by identity: cases share their implementations, which the spec holds
        self.samples: dict[str, SampleNode] = {}
        self.masks: dict[str, MaskNode] = {}
        self.workloads: dict[str, Workload] = {}
        self.cases: dict[str, Case] = {}

    def add(self, index: int, sweep: Sweep) -> None:
        """Walk one sweep: mask by mask, length by length, so that what is measured together stands together."""
        masks = [_load_mask(item) for item in sweep.masks]
        asks = [_load_ask(item) for item in (sweep.kernels if isinstance(sweep, KernelSweep) else sweep.strategies)]
        num_packs = self._spec.num_packs(sweep)
        for cp_size, seqlen in _lengths(sweep):
            for mask in masks:
                workload: Workload | None = None
                for ask in asks:
                    for pass_ in sweep.passes:
                        if sweep.exclude and _excluded(sweep, mask.item, cp_size, seqlen, pass_, ask.item):
                            continue
                        workload = workload or self._workload(mask, seqlen, num_packs)
                        self._add_case(index, sweep, workload, ask, pass_, cp_size)

    def judge(
        self, device: Device | None, images: Sequence[Image], env: Mapping[str, str] | None
    ) -> tuple[dict[str, Unsupported], frozenset[str]]:
        """What cannot run on `device`, in `images` or with `env` and why, by case_id, and the cases that take a dense
        mask.
        """
        verdicts = Verdicts(self.masks.values(), shape=self._spec.shape, device=device, lengths=self._lengths)
        unsupported: dict[str, Unsupported] = {}
        dense: list[str] = []
        for case in self.cases.values():
            asked = self._asked[id(case.implementation)]
            verdict = verdicts.ask(
                asked, case.workload.mask_node, needs_backward=case.pass_ != "fwd", cp_size=case.cp_size
            )
            if verdict.refused is not None:
                unsupported[case.case_id] = verdict.refused
            elif images and not any(image.holds(case.implementation) for image in images):
                unsupported[case.case_id] = _in_no_image(case, images)
            elif (wrong := misled(case, asked, env)) is not None:
                unsupported[case.case_id] = wrong
            elif verdict.dense:
                dense.append(case.case_id)
        return unsupported, frozenset(dense)

    def _add_case(self, index: int, sweep: Sweep, workload: Workload, ask: _Ask, pass_: Pass, cp_size: int) -> None:
        case_id = identity.case_id(
            workload=workload.workload_id, implementation=ask.asked.key, pass_=pass_, cp_size=cp_size, env=ask.env_json
        )
        if case_id in self.cases:
            return
        self.cases[case_id] = Case(
            case_id=case_id,
            workload=workload,
            implementation=ask.item.implementation,
            pass_=pass_,
            level=sweep.level,
            cp_size=cp_size,
            env=ask.item.env,
            sweep=index,
        )
        self._asked[id(ask.item.implementation)] = ask.asked

    def _workload(self, mask: _Mask, seqlen: int, num_packs: int) -> Workload:
        packs = self._pack_content(mask.module, seqlen, num_packs)
        sample = self._sample(seqlen, packs)
        seqlen_k = seqlen_k_of(mask.params, seqlen)
        mask_id = identity.mask_id(
            sample=sample.sample_id,
            mask=mask.item.name,
            params=mask.item.params,
            seqlen_q=seqlen,
            seqlen_k=seqlen_k,
        )
        if mask_id not in self.masks:
            self.masks[mask_id] = MaskNode(
                mask_id=mask_id,
                sample=sample,
                mask=mask.item.name,
                params=mask.item.params,
                seqlen_q=seqlen,
                seqlen_k=seqlen_k,
            )
        workload_id = identity.workload_id(
            mask=mask.item.name,
            params=mask.item.params,
            seqlen_q=seqlen,
            seqlen_k=seqlen_k,
            shape=self._spec.shape,
            seed=self._spec.seed,
            **packs,
        )
        if workload_id not in self.workloads:
            self.workloads[workload_id] = Workload(
                workload_id=workload_id,
                mask_node=self.masks[mask_id],
                shape=self._spec.shape,
                seed=self._spec.seed,
            )
        return self.workloads[workload_id]

    def _pack_content(self, module: ModuleType, seqlen: int, num_packs: int) -> dict[str, Any]:
        if not module.USES_DOCUMENTS:
            return {"num_packs": 1, "data_sha256": None, "max_doc_fraction": None}
        assert self._sha256 is not None and self._lengths is not None
        most = int(np.dot(self._lengths.counts, self._lengths.hi - 1)) // seqlen
        if most < num_packs:  # whatever is drawn; what is short by a little shows when packs are drawn
            raise InputError(
                f"data.num_packs: got {num_packs}; {self._lengths.name} holds at most {most} packs of {seqlen} tokens; "
                "allowed: fewer packs, a shorter seqlen, or more documents"
            )
        fraction: Fraction = self._spec.data.max_doc_fraction
        max_piece(seqlen, fraction)  # refuses a share that is less than a token
        return {"num_packs": num_packs, "data_sha256": self._sha256, "max_doc_fraction": fraction}

    def _sample(self, seqlen: int, packs: Mapping[str, Any]) -> SampleNode:
        drawn = packs["data_sha256"] is not None
        seed = self._spec.seed if drawn else None
        sample_id = identity.sample_id(seqlen=seqlen, seed=seed, **packs)
        if sample_id not in self.samples:
            self.samples[sample_id] = SampleNode(
                sample_id=sample_id,
                seqlen=seqlen,
                lengths=self._spec.data.lengths if drawn else None,
                seed=seed,
                **packs,
            )
        return self.samples[sample_id]


def _in_no_image(case: Case, images: Sequence[Image]) -> Unsupported:
    what = case.implementation.kernel
    if case.implementation.provider is not None:
        what = f"{what} from {case.implementation.provider}"
    if case.implementation.strategy is not None:
        what = f"{case.implementation.strategy} with {what}"
    names = ", ".join(image.name for image in images)
    return Unsupported(reason_code="missing_package", reason=f"no image of the runner holds {what}; it has {names}")


def _load_mask(item: MaskItem) -> _Mask:
    module = plugins.load("masks", item.name)
    return _Mask(item=item, module=module, params=plugins.make_params(module, item.params))


def _load_ask(item: ImplementationItem) -> _Ask:
    return _Ask(
        item=item,
        asked=Asked.load(item.implementation),
        env_json=canonical_json(dict(item.env)),
    )


def _lengths(sweep: Sweep) -> Iterator[tuple[int, int]]:
    """(cp_size, seqlen) pairs of a sweep."""
    if isinstance(sweep, KernelSweep):
        yield from ((1, seqlen) for seqlen in sweep.seqlen)
    else:
        yield from ((cp_size, cp_size * share) for cp_size in sweep.cp_size for share in sweep.seqlen_per_rank)


def _excluded(sweep: Sweep, mask: MaskItem, cp_size: int, seqlen: int, pass_: Pass, item: ImplementationItem) -> bool:
    if isinstance(sweep, KernelSweep):
        return sweep.excludes(mask=mask, seqlen=seqlen, pass_=pass_, item=item)
    return sweep.excludes(mask=mask, cp_size=cp_size, seqlen_per_rank=seqlen // cp_size, pass_=pass_, item=item)
