"""cuDNN's fused attention through the graph API of nvidia-cudnn-frontend.

A graph holds one sdpa (or sdpa_backward) node and is built once per call of the plan; executing it names its tensors
by number. Packed sequences are batch entries with ragged offsets, in elements, and lengths of their own. The band
around the diagonal reaches left_bound - 1 keys to the left and right_bound to the right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnspec.errors import UnsupportedError
from attnspec.kernels._calls import Grads, LseLayout
from attnspec.support import Device, Problem
from attnspec.support.kernel_names import CUDNN, ExpectedKernels
from attnspec.support.varlen import VarlenCall

if TYPE_CHECKING:
    from torch import Tensor


class Uid(IntEnum):
    """Numbers of the tensors in both graphs."""

    Q = 1
    K = 2
    V = 3
    OUT = 4
    STATS = 5
    DOUT = 6
    DQ = 7
    DK = 8
    DV = 9
    LENGTHS_Q = 10
    LENGTHS_K = 11
    STARTS_Q = 12
    STARTS_K = 13
    STARTS_STATS = 14


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """A built graph with its workspace and the tensors that never change."""

    graph: Any
    workspace: Tensor
    fixed: dict[int, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arguments:
    """Graphs of one call. filled: every query (key) belongs to a sequence, so that outputs need no clearing."""

    packed: bool
    forward: Graph
    backward: Graph | None
    rows_filled: bool
    keys_filled: bool

    @property
    def lse_layout(self) -> LseLayout:
        """Of this call."""
        return LseLayout.TOKENS_ONE if self.packed else LseLayout.BATCH_HEADS_ONE


class Frontend:
    """The Library."""

    expected_kernels: ExpectedKernels = CUDNN

    def __init__(self, problem: Problem, device: Device) -> None:
        import cudnn

        self._cudnn: Any = cudnn
        self._handle = cudnn.create_handle()
        self._problem = problem
        self._device = device.type
        self._dtype = cudnn.data_type.BFLOAT16 if problem.shape.dtype == "bfloat16" else cudnn.data_type.HALF

    def prepare(self, call: VarlenCall, num_rows: int, num_keys: int) -> Arguments:
        """Both graphs, built; raises UnsupportedError with cuDNN's own reason."""
        packed = not (
            call.is_rectangle(num_rows, num_keys)
            and call.q_start[0] == 0
            and (call.kind != "window" or num_rows <= num_keys)
        )
        builder = _Builder(self._cudnn, self._handle, self._problem, self._dtype, call, (num_rows, num_keys), packed)
        try:
            forward = builder.forward(self._device)
            backward = builder.backward(self._device) if self._problem.needs_backward else None
        except self._cudnn.cudnnGraphNotSupportedError as error:
            version = self._cudnn.backend_version()
            raise UnsupportedError("backend", f"cuDNN {version} has no plan for this call: {error}") from error
        return Arguments(
            packed=packed,
            forward=forward,
            backward=backward,
            rows_filled=not packed or call.covers_rows(num_rows),
            keys_filled=not packed or call.covers_keys(num_keys),
        )

    def forward(self, arguments: Arguments, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One forward."""
        import torch

        batch, num_rows, num_heads, _ = q.shape
        size = (batch * num_rows, num_heads, 1) if arguments.packed else (batch, num_heads, num_rows, 1)
        if arguments.rows_filled:
            out, stats = torch.empty_like(q), torch.empty(size, dtype=torch.float32, device=q.device)
        else:
            out = torch.zeros_like(q)
            stats = torch.full(size, -math.inf, dtype=torch.float32, device=q.device)
        self._execute(arguments.forward, {Uid.Q: q, Uid.K: k, Uid.V: v, Uid.OUT: out, Uid.STATS: stats})
        return out, stats

    def backward(
        self, arguments: Arguments, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, native_lse: Tensor
    ) -> Grads:
        """One backward."""
        import torch

        assert arguments.backward is not None
        for_rows = torch.empty_like if arguments.rows_filled else torch.zeros_like
        for_keys = torch.empty_like if arguments.keys_filled else torch.zeros_like
        dq, dk, dv = for_rows(q), for_keys(k), for_keys(v)
        self._execute(
            arguments.backward,
            {
                Uid.Q: q,
                Uid.K: k,
                Uid.V: v,
                Uid.OUT: out,
                Uid.DOUT: dout,
                Uid.STATS: native_lse,
                Uid.DQ: dq,
                Uid.DK: dk,
                Uid.DV: dv,
            },
        )
        return dq, dk, dv

    def _execute(self, graph: Graph, tensors: dict[Uid, Tensor]) -> None:
        import torch

        self._cudnn.set_stream(handle=self._handle, stream=torch.cuda.current_stream().cuda_stream)
        named = {int(uid): tensor for uid, tensor in tensors.items()}
        graph.graph.execute({**named, **graph.fixed}, graph.workspace, handle=self._handle)


class _Builder:
    """Builds the graphs of one call."""

    def __init__(
        self,
        cudnn: Any,
        handle: Any,
        problem: Problem,
        dtype: Any,
        call: VarlenCall,
        lengths: tuple[int, int],
        packed: bool,
    ) -> None:
        shape = problem.shape
        self._cudnn, self._handle, self._dtype, self._packed = cudnn, handle, dtype, packed
        self._scale = 1 / math.sqrt(shape.head_dim)
        self._heads = (shape.num_heads_q, shape.num_heads_kv)
        self._head_dim = shape.head_dim
        self._total = tuple(shape.batch * length for length in lengths)
        self._placed = call.placed(*lengths, shape.batch)
        self._batch = len(self._placed.lengths_q) if packed else shape.batch
        longest = (int(self._placed.lengths_q.max()), int(self._placed.lengths_k.max()))
        self._length = longest if packed else lengths
        alignment = cudnn.diagonal_alignment
        self._band = {
            "diagonal_alignment": alignment.TOP_LEFT if call.square else alignment.BOTTOM_RIGHT,
            "diagonal_band_left_bound": None if call.left is None else call.left + 1,
            "diagonal_band_right_bound": call.right,
        }

    def forward(self, device: str) -> Graph:
        """The forward, with stats."""
        graph = self._graph()
        starts = self._starts(graph)
        q, k, v = (self._input(graph, uid, starts) for uid in (Uid.Q, Uid.K, Uid.V))
        out, stats = graph.sdpa(
            name="sdpa",
            q=q,
            k=k,
            v=v,
            generate_stats=True,
            attn_scale=self._scale,
            **self._padding(graph),
            **self._band,
        )
        self._output(out, Uid.OUT, starts)
        self._output(stats, Uid.STATS, starts)
        return self._built(graph, device)

    def backward(self, device: str) -> Graph:
        """The backward from (out, stats)."""
        graph = self._graph()
        starts = self._starts(graph)
        inputs = (Uid.Q, Uid.K, Uid.V, Uid.OUT, Uid.DOUT, Uid.STATS)
        q, k, v, out, dout, stats = (self._input(graph, uid, starts) for uid in inputs)
        total = {"max_total_seq_len_q": self._total[0], "max_total_seq_len_kv": self._total[1]} if starts else {}
        dq, dk, dv = graph.sdpa_backward(
            name="sdpa_backward",
            q=q,
            k=k,
            v=v,
            o=out,
            dO=dout,
            stats=stats,
            attn_scale=self._scale,
            **self._padding(graph),
            **self._band,
            **total,
        )
        for part, uid in ((dq, Uid.DQ), (dk, Uid.DK), (dv, Uid.DV)):
            self._output(part, uid, starts)
        return self._built(graph, device)

    def _graph(self) -> Any:
        return self._cudnn.pygraph(
            io_data_type=self._dtype,
            intermediate_data_type=self._cudnn.data_type.FLOAT,
            compute_data_type=self._cudnn.data_type.FLOAT,
            handle=self._handle,
        )

    def _layout(self, uid: Uid) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Size and strides (batch, heads, length, last) of tokens-first memory; of stats, their own."""
        of_keys = _starts_of(uid) is Uid.STARTS_K
        heads, length, dim = self._heads[of_keys], self._length[of_keys], self._head_dim
        if uid is Uid.STATS:
            stride = (heads * length, 1, heads, 1) if self._packed else (heads * length, length, 1, 1)
            return (self._batch, heads, length, 1), stride
        return (self._batch, heads, length, dim), (length * heads * dim, dim, heads * dim, 1)

    def _input(self, graph: Any, uid: Uid, starts: dict[Uid, Any]) -> Any:
        size, stride = self._layout(uid)
        dtype = self._cudnn.data_type.FLOAT if uid is Uid.STATS else self._dtype
        made = graph.tensor(uid=int(uid), dim=size, stride=stride, data_type=dtype)
        if starts:
            made.set_ragged_offset(starts[_starts_of(uid)])
        return made

    def _output(self, made: Any, uid: Uid, starts: dict[Uid, Any]) -> None:
        size, stride = self._layout(uid)
        made.set_uid(int(uid)).set_output(True).set_dim(size).set_stride(stride)
        if uid is Uid.STATS:
            made.set_data_type(self._cudnn.data_type.FLOAT)
        if starts:
            made.set_ragged_offset(starts[_starts_of(uid)])

    def _starts(self, graph: Any) -> dict[Uid, Any]:
        """Offsets of queries, keys and stats; none where sequences are not packed."""
        if not self._packed:
            return {}
        uids = (Uid.STARTS_Q, Uid.STARTS_K, Uid.STARTS_STATS)
        return {uid: self._column(graph, uid, self._batch + 1, self._cudnn.data_type.INT64) for uid in uids}

    def _padding(self, graph: Any) -> dict[str, Any]:
        """Lengths of packed sequences."""
        if not self._packed:
            return {}
        dtype = self._cudnn.data_type.INT32
        return {
            "use_padding_mask": True,
            "seq_len_q": self._column(graph, Uid.LENGTHS_Q, self._batch, dtype),
            "seq_len_kv": self._column(graph, Uid.LENGTHS_K, self._batch, dtype),
        }

    @staticmethod
    def _column(graph: Any, uid: Uid, length: int, dtype: Any) -> Any:
        return graph.tensor(uid=int(uid), dim=(length, 1, 1, 1), stride=(1, 1, 1, 1), data_type=dtype)

    def _built(self, graph: Any, device: str) -> Graph:
        import torch

        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self._cudnn.heur_mode.A, self._cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device=device)
        return Graph(graph=graph, workspace=workspace, fixed=self._fixed(device))

    def _fixed(self, device: str) -> dict[int, Tensor]:
        import torch

        if not self._packed:
            return {}
        placed = self._placed
        token_q, token_k = (heads * self._head_dim for heads in self._heads)

        def column(values: NDArray[np.int32], times: int = 1, dtype: type = np.int64) -> Tensor:
            return torch.from_numpy(values.astype(dtype) * times).to(device).view(-1, 1, 1, 1)

        return {
            int(Uid.LENGTHS_Q): column(placed.lengths_q, dtype=np.int32),
            int(Uid.LENGTHS_K): column(placed.lengths_k, dtype=np.int32),
            int(Uid.STARTS_Q): column(placed.starts_q, token_q),
            int(Uid.STARTS_K): column(placed.starts_k, token_k),
            int(Uid.STARTS_STATS): column(placed.starts_q, self._heads[0]),
        }


def _starts_of(uid: Uid) -> Uid:
    """Which offsets a tensor has when sequences are packed."""
    if uid is Uid.STATS:
        return Uid.STARTS_STATS
    return Uid.STARTS_K if uid in (Uid.K, Uid.V, Uid.DK, Uid.DV) else Uid.STARTS_Q
