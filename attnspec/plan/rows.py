"""From a case to the row that it has in cells.parquet before anything ran. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from attnspec.flops import attention_flops
from attnspec.ids import canonical_json
from attnspec.plan.model import Case, Plan
from attnspec.record.schema import Cell
from attnspec.record.status import Status


def base_row(plan: Plan, case: Case, areas: Sequence[int] | None = None) -> Cell:
    """The descriptive columns of a case, and what is known of its outcome: `unsupported`, else `skipped`, `not_run`.

    areas: allowed pairs of each pack, once the mask node has run; without them mask_area and flops are null.
    """
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
        mask=node.mask,
        mask_params=canonical_json(dict(node.params)),
        seqlen=node.seqlen_q,
        cp_size=case.cp_size,
        seqlen_per_rank=node.seqlen_q // case.cp_size,
        mesh=None if asked.strategy is None else canonical_json(dict(asked.strategy_params)),
        env=canonical_json(dict(case.env)),
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
