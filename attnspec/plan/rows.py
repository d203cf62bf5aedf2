"""From cases to the rows that they have in cells.parquet before anything ran. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from attnspec.flops import attention_flops
from attnspec.ids import canonical_json
from attnspec.plan.model import Case, Plan
from attnspec.record.schema import Cell
from attnspec.record.status import Status


def base_rows(plan: Plan, areas: Mapping[str, Sequence[int]] | None = None) -> Iterator[Cell]:
    """The rows of all cases of a plan, in order. `areas` is mask_id -> allowed pairs of each pack."""
    texts = _Texts()
    for case in plan.cases:
        known = None if areas is None else areas.get(case.workload.mask_node.mask_id)
        yield _row(plan, case, known, texts)


def base_row(plan: Plan, case: Case, areas: Sequence[int] | None = None) -> Cell:
    """The descriptive columns of a case, and what is known of its outcome: `unsupported`, else `skipped`, `not_run`.

    areas: allowed pairs of each pack, once the mask node has run; without them mask_area and flops are null.
    """
    return _row(plan, case, areas, _Texts())


class _Texts:
    """Canonical JSON of mappings that many cases share, by identity; they must outlive this object."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def __call__(self, content: Mapping[str, Any]) -> str:
        text = self._known.get(id(content))
        if text is None:
            text = self._known[id(content)] = canonical_json(dict(content))
        return text


def _row(plan: Plan, case: Case, areas: Sequence[int] | None, text: _Texts) -> Cell:
    node, shape, asked = case.workload.mask_node, case.workload.shape, case.implementation
    refused = plan.unsupported.get(case.case_id)
    area = None if areas is None else sum(areas)
    flops = None if area is None else attention_flops(area, shape.batch, shape.num_heads_q, shape.head_dim, case.pass_)
    return Cell(
        case_id=case.case_id,
        level=case.level,
        kernel=asked.kernel,
        strategy=asked.strategy,
        backend=asked.backend,
        provider=asked.provider,
        kernel_params=text(asked.kernel_params),
        mask=node.mask,
        mask_params=text(node.params),
        seqlen=node.seqlen_q,
        cp_size=case.cp_size,
        seqlen_per_rank=node.seqlen_q // case.cp_size,
        mesh=None if asked.strategy is None else text(asked.strategy_params),
        env=text(case.env),
        pass_=case.pass_,
        batch=shape.batch,
        num_heads_q=shape.num_heads_q,
        num_heads_kv=shape.num_heads_kv,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        num_packs=node.sample.num_packs,
        mask_area=area,
        flops=None if flops is None else Decimal(flops),
        status=(Status.SKIPPED if refused is None else Status.UNSUPPORTED).value,
        reason_code="not_run" if refused is None else refused.reason_code,
        reason="not measured yet" if refused is None else refused.reason,
        source="measured",
    )
