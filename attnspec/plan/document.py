"""A plan as `plan.json`: each fact once, cases as rows, written piece by piece. Pure.

10^5 cases take a second and no second copy of the plan in memory. Cases refer to workloads, workloads to mask nodes,
mask nodes to sample nodes, each by its id; implementations and environments are numbered.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from attnspec.ids import canonical_json
from attnspec.plan.identity import collect_id, implementation_content, shape_content
from attnspec.plan.model import Case, Image, Job, Plan

T = TypeVar("T")
FORMAT = 1
CASE_COLUMNS = ("case_id", "workload", "implementation", "pass", "level", "cp_size", "env", "sweep")


class _Numbered:
    """Distinct JSON values in the order of their first use."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._by_text: dict[str, int] = {}
        self._by_object: dict[int, int] = {}

    def number(self, source: T, content: Callable[[T], Any]) -> int:
        """The number of `content(source)`; asked once per object, so `source` must outlive this one."""
        if id(source) not in self._by_object:
            value = content(source)
            number = self._by_text.setdefault(canonical_json(value), len(self.values))
            if number == len(self.values):
                self.values.append(value)
            self._by_object[id(source)] = number
        return self._by_object[id(source)]


def json_chunks(plan: Plan) -> Iterator[str]:
    """The text of plan.json in pieces of at most one case, job or node each, one a line."""
    implementations, envs = _Numbered(), _Numbered()
    head = {
        "attnspec_plan": FORMAT,
        "name": plan.name,
        "runner": plan.runner,
        "images": list(map(dataclasses.asdict, plan.images)),
        "device": None if plan.device is None else dataclasses.asdict(plan.device),
        "measure": dataclasses.asdict(plan.measure),
        "collect": collect_id(case.case_id for case in plan.cases),
        "case_columns": CASE_COLUMNS,
    }
    yield "{\n" + ",\n".join(f"{_text(key)}: {_text(value)}" for key, value in head.items())
    yield from _object(
        "samples",
        (
            (
                key,
                {
                    "lengths": node.lengths,
                    "data_sha256": node.data_sha256,
                    "seqlen": node.seqlen,
                    "num_packs": node.num_packs,
                    "max_doc_fraction": None if node.max_doc_fraction is None else str(node.max_doc_fraction),
                    "seed": node.seed,
                },
            )
            for key, node in plan.samples.items()
        ),
    )
    yield from _object(
        "masks",
        (
            (
                key,
                {
                    "sample": node.sample.sample_id,
                    "mask": node.mask,
                    "params": dict(node.params),
                    "seqlen_q": node.seqlen_q,
                    "seqlen_k": node.seqlen_k,
                },
            )
            for key, node in plan.masks.items()
        ),
    )
    yield from _object(
        "workloads",
        (
            (key, {"mask": work.mask_node.mask_id, "shape": shape_content(work.shape), "seed": work.seed})
            for key, work in plan.workloads.items()
        ),
    )
    yield from _array("cases", (_case_row(case, implementations, envs) for case in plan.cases))
    yield from _array("implementations", implementations.values)
    yield from _array("envs", envs.values)
    yield from _array("jobs", map(_job, plan.jobs))
    yield from _object("unsupported", ((key, [why.reason_code, why.reason]) for key, why in plan.unsupported.items()))
    yield "\n}\n"


def _case_row(case: Case, implementations: _Numbered, envs: _Numbered) -> list[Any]:
    return [
        case.case_id,
        case.workload.workload_id,
        implementations.number(case.implementation, implementation_content),
        case.pass_,
        case.level,
        case.cp_size,
        envs.number(case.env, dict),
        case.sweep,
    ]


def _job(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "image": job.image,
        "world_size": job.world_size,
        "env": dict(job.env),
        "apart": job.apart,
        "cases": [case.case_id for case in job.cases],
    }


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _object(name: str, items: Iterable[tuple[str, Any]]) -> Iterator[str]:
    return _lines(name, "{}", (f"{_text(key)}:{_text(value)}" for key, value in items))


def _array(name: str, items: Iterable[Any]) -> Iterator[str]:
    return _lines(name, "[]", map(_text, items))


def _lines(name: str, brackets: str, items: Iterable[str]) -> Iterator[str]:
    yield f",\n{_text(name)}: {brackets[0]}"
    for index, item in enumerate(items):
        yield f"{',' if index else ''}\n{item}"
    yield brackets[1]


def read_images(content: Mapping[str, Any]) -> tuple[Image, ...]:
    """The images that a plan's JSON, or what provenance.json keeps of it, names.

    >>> read_images({"images": [{"name": "cpu", "kernels": ["sdpa"], "strategies": None}]})
    (Image(name='cpu', kernels=('sdpa',), strategies=None, providers=None),)
    """
    return tuple(
        Image(
            name=one["name"],
            kernels=None if one["kernels"] is None else tuple(one["kernels"]),
            strategies=None if one["strategies"] is None else tuple(one["strategies"]),
            providers=None if one.get("providers") is None else tuple(one["providers"]),
        )
        for one in content.get("images", ())
    )
