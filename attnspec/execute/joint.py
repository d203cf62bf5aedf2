"""Several ranks as one: a failure of any of them becomes the same failure on all of them, at the same point.

All control messages are exchanges in lockstep, in which a rank gives either a value or its failure. Between them a rank
whose kernel failed goes on exchanging data (`attnspec.exchange.guard`), so that nobody waits for it in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch.distributed as dist
from torch import Tensor

from attnspec.errors import AttnspecError, StrandedError
from attnspec.exchange.bound import Grads, RankKernel
from attnspec.exchange.groups import Ranks
from attnspec.exchange.guard import Guard, NoRoomError
from attnspec.exchange.transport import SilentTransport, Transport
from attnspec.execute.clock import Sample, Timer, checked
from attnspec.execute.findings import Finding
from attnspec.execute.sent import Sent, WatchedTransport
from attnspec.support import Forward

MEET_S = 10.0
"""How long a rank without memory for its messages waits for others that have none either."""
P = ParamSpec("P")
T = TypeVar("T")


class JointFailure(AttnspecError):  # noqa: N818  (it stands for the error of another rank too)
    """What went wrong on the first rank that failed. failure: as that rank describes it."""

    def __init__(self, rank: int, failure: Any) -> None:
        super().__init__(f"rank {rank}: {failure}")
        self.rank, self.failure = rank, failure


class Agreement:
    """What the ranks of a job agree on. describe: an exception as something that travels and means an outcome."""

    def __init__(self, ranks: Ranks, describe: Callable[[Exception], Any]) -> None:
        self.ranks, self._describe = ranks, describe

    def exchange(self, value: T) -> list[T]:
        """The value of each rank. Raises JointFailure when one of them failed."""
        return self._settled(self.ranks.share((True, value)), None)

    def fail(self, error: Exception) -> NoReturn:
        """Tell the others at their next exchange; raises the same as they."""
        if self.ranks.size == 1:
            raise error
        self._settled(self.ranks.share((False, self._describe(error))), error)
        raise AssertionError("a failure was shared and nobody saw it")

    def give_up(self, error: NoRoomError) -> NoReturn:
        """As `fail`, for a rank that has left messages unsent: the others may have, too, at the same point.

        Raises StrandedError where they have not, for then they wait for these messages and hear nothing else.
        """
        cause = error.cause
        if not self.ranks.meet_within(MEET_S):
            raise StrandedError(
                f"rank {self.ranks.rank} cannot send what other ranks wait for: {type(cause).__name__}: {cause}"
            ) from cause
        self.fail(cause)

    def together(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `act` returns here, once it has succeeded on all ranks. Raises JointFailure when it failed on any."""
        try:
            made = act(*args, **kwargs)
        except JointFailure:
            raise
        except Exception as error:  # noqa: BLE001  (every failure is told to the other ranks and raised again)
            self.fail(error)
        self.exchange(None)
        return made

    def largest(self, numbers: Sequence[float]) -> list[float]:
        """The elementwise maximum over ranks. No rank may fail between the last exchange and this."""
        return self.ranks.largest(list(numbers))

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Elementwise, whether it is so on any rank."""
        return [any(column) for column in zip(*self.exchange(list(flags)), strict=True)]

    def meet(self) -> None:
        """Wait for all ranks. Raises JointFailure when one of them failed."""
        self.exchange(None)
        self.ranks.meet()

    def worst(self, found: Finding) -> Finding:
        """The worst finding of all ranks, a failed one before all others."""
        every = self.exchange(found)
        worst = every[0]
        for one in every[1:]:
            if (one.failed and not worst.failed) or (one.failed == worst.failed and one.exceeds(worst)):
                worst = one
        return worst

    def total(self, partial: Tensor) -> Tensor:
        """The sum over ranks."""
        if self.ranks.size == 1:
            return partial
        shared = partial.cpu().contiguous()  # before all are well: what the device fails at shows here
        self.exchange(None)
        dist.all_reduce(shared)
        return shared.to(partial.device)

    def _settled(self, told: list[tuple[bool, Any]], own: Exception | None) -> list[Any]:
        for rank, (succeeded, value) in enumerate(told):
            if not succeeded:
                raise JointFailure(rank, value) from own
        return [value for _, value in told]


class JointStrategy:
    """A BoundKernel that fails on all ranks when it fails on one. Final.

    Outside timing that shows after each call. While `timing`, or counting, calls of a rank that has failed exchange
    messages and compute nothing; `settle` tells, or `raise_held` inside what all ranks do together.
    """

    explicit_backward = False

    def __init__(self, bound: RankKernel, agreement: Agreement) -> None:
        self._bound, self._agreement = bound, agreement
        self._error: Exception | None = None
        self.timing = False
        self.frees_graph, self.expected_kernels = bound.frees_graph, bound.expected_kernels
        self.backend, self.lse_tolerance = bound.backend, bound.lse_tolerance

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Any:
        """As the strategy does."""
        return self._agreement.together(self._bound.load, q_BTND, k_BSGD, v_BSGD)

    def load_dout(self, dout_BTND: Tensor) -> Any:
        """As the strategy does."""
        return self._agreement.together(self._bound.load_dout, dout_BTND)

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Never called, as the strategy's."""
        return self._bound.load_forward(out_BTND, lse_BNT)

    def forward(self, inputs: Any) -> Forward:
        """One forward."""
        return self._served(self._bound.forward_with, inputs)

    def backward(self, inputs: Any, forward: Forward, dout: Any) -> Any:
        """One backward."""
        return self._served(self._bound.backward_with, inputs, forward, dout)

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """As the strategy does; all ranks together. An lse that one rank has not is none."""
        out_BTND, lse_BNT = self._agreement.together(self._canonical_out, forward)
        return out_BTND, lse_BNT if all(self._agreement.exchange(lse_BNT is not None)) else None

    def canonical_grads(self, grads: Any) -> Grads:
        """As the strategy does."""
        return self._agreement.together(self._bound.canonical_grads, grads)

    @property
    def can_be_silent(self) -> bool:
        """Whether `silent` works: not where a library exchanges tensors itself."""
        return self._bound.transport is not None

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Exchange nothing inside: for timing the computation alone."""
        transport = self._bound.transport
        assert transport is not None, "a library exchanges tensors itself"
        with self._through(SilentTransport(transport.rank, transport.size)):
            yield

    @contextmanager
    def counted(self) -> Iterator[Sent]:
        """Count what is sent inside. A failure inside shows at its end, and the ranks' own control is not counted.

        Where a library exchanges tensors itself all operators of the calls are looked at.
        """
        sent, transport = Sent(), self._bound.transport
        self.timing = True
        try:
            with sent if transport is None else self._through(WatchedTransport(transport, sent)):
                yield sent
        finally:
            self.timing = False
        self.settle()

    def settle(self) -> None:
        """Raise on all ranks what went wrong on any while timing."""
        self._agreement.together(self.raise_held)

    def raise_held(self) -> None:
        """Raise what went wrong on this rank while timing. The others know nothing of it yet."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    @contextmanager
    def _through(self, other: Transport) -> Iterator[None]:
        transport = self._bound.transport
        self._bound.transport = other
        try:
            yield
        finally:
            self._bound.transport = transport

    def _served(self, call: Callable[..., T], *args: Any) -> T:
        """One call, which exchanges all its messages whatever goes wrong, as long as there is room for them."""
        guard = Guard(self._error)
        try:
            made = call(*args, guard)
        except NoRoomError as error:
            self._error = None
            self._agreement.give_up(error)
        self._error = guard.error
        if not self.timing:
            self.settle()
        return made

    def _canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        try:
            return self._bound.canonical_out(forward)
        except NoRoomError as error:
            self._agreement.give_up(error)


class JointTimer:
    """A Timer whose rounds succeed on all ranks or fail on all."""

    def __init__(self, timer: Timer, bound: JointStrategy, agreement: Agreement) -> None:
        self._timer, self._bound, self._agreement = timer, bound, agreement

    @property
    def held(self) -> bool:
        """As the device's own timer says."""
        return self._timer.held

    @property
    def settle_ns(self) -> int:
        """As the device's own timer says."""
        return self._timer.settle_ns

    def round(self, iterations: int, *, ahead: int = 0) -> list[Sample]:
        """One round of the rank's own samples."""
        self._bound.timing = True
        try:
            return self._agreement.together(self._round, iterations, ahead)
        finally:
            self._bound.timing = False

    def _round(self, iterations: int, ahead: int) -> list[Sample]:
        try:
            taken = self._timer.round(iterations, ahead=ahead)
        except Exception:
            self._bound.raise_held()  # the first cause, and none that waits for the next case
            raise
        self._bound.raise_held()
        return checked(taken)
