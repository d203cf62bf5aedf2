"""A workload's inputs: slices from the run folder, tensors from its id."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import torch

from attnspec.errors import InputError, WireError
from attnspec.execute.tensors import Tensors, make_tensors
from attnspec.slices import AttnSlices, from_arrow
from attnspec.wire import WorkloadRequest


def read_slices(run_dir: str, workload: WorkloadRequest) -> list[AttnSlices]:
    """The slices of all packs. Raises InputError for a file that cannot be read, WireError for one of other sizes."""
    path = Path(run_dir) / workload.slices
    try:
        with pa.OSFile(str(path)) as file:
            packs = from_arrow(pa.ipc.open_file(file).read_all())
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: slices cannot be read: {error}") from error
    wanted = (workload.seqlen_q, workload.seqlen_k)
    if any((pack.seqlen_q, pack.seqlen_k) != wanted for pack in packs):
        raise WireError(f"{path}: slices are not over {wanted[0]} x {wanted[1]} tokens, as the request says")
    return packs


def tensors_of(workload: WorkloadRequest, device: torch.device, *, needs_backward: bool) -> Tensors:
    """q, k, v and dout of a workload; all its packs share them."""
    return make_tensors(
        workload.workload_id,
        workload.shape,
        seqlen_q=workload.seqlen_q,
        seqlen_k=workload.seqlen_k,
        needs_backward=needs_backward,
        device=device,
    )
