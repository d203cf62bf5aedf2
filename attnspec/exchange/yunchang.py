"""yunchang's own context parallelism: heads exchanged inside, a ring across (USP), over flash-attn (FlashAttention 2).

Read: hybrid/attn_layer.py, globals.py, comm/, ring/ and kernels/ of yunchang 0.6.4. Its process groups are global to
the process and read when a layer is made; its own function to make them takes the default backend, so ours are put
there. Of its kernels only flash-attn's counts: those of FlashAttention 3 leave the causal flag out, those of torch have
no backward, and their log-sum-exp is rounded to the inputs' type or zero.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnspec.exchange.groups import mesh_groups
from attnspec.exchange.library_attention import LibraryAttention
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import Transport
from attnspec.sharding.adapted import Adapted
from attnspec.support import Device
from attnspec.support.kernel_names import FLASH_ATTENTION_2


def bind_yunchang(plan: Adapted, transport: Transport, device: Device, *, needs_backward: bool) -> LibraryAttention:
    """The plan of one rank, ready to run."""
    from yunchang import LongContextAttention
    from yunchang.globals import PROCESS_GROUP
    from yunchang.kernels import AttnType

    causal = plan.sequences.causal
    PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG = mesh_groups(transport, plan.degrees)
    layer: Any = LongContextAttention(ring_impl_type="zigzag" if causal else "basic", attn_type=AttnType.FA)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, None]:
        return layer(q, k, v, causal=causal), None

    return LibraryAttention(
        attend,
        Slots(plan.layout.slots(transport.rank), plan.layout.num_slots, device.type),
        packed=False,
        needs_backward=needs_backward,
        frees_graph=False,
        expected_kernels=FLASH_ATTENTION_2,
    )
