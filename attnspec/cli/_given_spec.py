"""A spec as commands are given it: read, planned, and what is wrong with it located. Not a command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnspec import plugins
from attnspec.catalog.findings import Finding
from attnspec.errors import InputError, Problem, SpecError
from attnspec.launch.container_place import choices_of, plan_images
from attnspec.launch.runner_profile import Runner, load_runner, search_folders
from attnspec.masks import make_slices
from attnspec.plan import Case, Image, Plan, compile_plan
from attnspec.plan.structure import example_documents
from attnspec.sample.packs import max_piece
from attnspec.slices import area
from attnspec.spec import KernelSweep, Spec, SpecFile
from attnspec.spec.load import text_at
from attnspec.support import Device
from attnspec.units import format_count


def planned(
    held: SpecFile, spec: Spec, *, device: Device | None, images: Sequence[Image], env: Mapping[str, str]
) -> Plan:
    """The plan of `spec`, which is `held.spec` with another runner or shrunk.

    Raises SpecError where what planning refuses stands in the file, else InputError.
    """
    try:
        return compile_plan(spec, device=device, images=images, env=env)
    except SpecError:
        raise
    except InputError:
        problems = list(refusals(held))
        if not problems:
            raise
        raise SpecError(problems) from None


def planned_on(held: SpecFile, spec: Spec) -> tuple[Runner, Plan]:
    """The same for the device, images and environment that the runner of `spec` expects, and that runner."""
    runner = load_runner(spec.runner, search_folders(cwd=Path.cwd(), environ=os.environ))
    images = plan_images(choices_of(runner, cwd=Path.cwd(), environ=os.environ))
    return runner, planned(held, spec, device=runner.expected_device(), images=images, env=runner.env)


def runner_findings(value: Any) -> list[Finding]:
    """What is wrong with the runner that a spec file names."""
    runner = text_at(value, "runner")
    try:
        if runner is not None:
            load_runner(runner, search_folders(cwd=Path.cwd(), environ=os.environ))
    except InputError as error:
        return [Finding(message="; ".join(str(error).split("\n")), loc=("runner",))]
    return []


def place_of(held: SpecFile, case: Case) -> str:
    """Where a case's kernel or strategy stands in its spec: file, line and path."""
    sweep = held.spec.sweeps[case.sweep]
    key, items = ("kernels", sweep.kernels) if isinstance(sweep, KernelSweep) else ("strategies", sweep.strategies)
    asked = [(item.implementation, item.env) for item in items]
    return str(held.problem("", "sweeps", case.sweep, key, asked.index((case.implementation, case.env))))


def refusals(held: SpecFile) -> Iterator[Problem]:
    """Masks that refuse their parameters or documents at a length of their sweep: the first such length of each."""
    fraction = held.spec.data.max_doc_fraction
    for number, sweep in enumerate(held.spec.sweeps):
        if isinstance(sweep, KernelSweep):
            seqlens = sweep.seqlen
        else:
            seqlens = tuple(cp_size * share for cp_size in sweep.cp_size for share in sweep.seqlen_per_rank)
        for index, item in enumerate(sweep.masks):
            module = plugins.load("masks", item.name)
            params = plugins.make_params(module, item.params)
            for seqlen in seqlens:
                try:
                    if module.USES_DOCUMENTS:
                        max_piece(seqlen, fraction)
                    docs = example_documents(seqlen, fraction) if module.USES_DOCUMENTS else [seqlen]
                    area(make_slices(module, params, docs, seqlen))
                except InputError as error:
                    yield held.problem(
                        f"{item.name} at {format_count(seqlen)} tokens: {error}", "sweeps", number, "masks", index
                    )
                    break
