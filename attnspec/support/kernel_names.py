"""What libraries call their device kernels, in each direction: the witness that the intended one ran.

Each pattern names the kernel that computes, not those that prepare, reduce or convert around it. Seen on H200, where
cases of the measured tables have them in `kernel_names`; MagiAttention's fork of FlashAttention 4 did not run there,
its names are those of its source.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attnspec.shape import Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelNames:
    """Regular expressions: one device kernel of every iteration that has the direction must match."""

    fwd: str
    bwd: str


ExpectedKernels = str | KernelNames | tuple[str | KernelNames, ...]
"""A plain expression is for every pass; an empty one expects nothing; of several each is expected."""

CUDNN = KernelNames(fwd="cudnn.*fprop", bwd="cudnn.*bprop")
FLASH_ATTENTION_2 = KernelNames(fwd="flash_fwd", bwd="flash_bwd_dq_dk_dv")
FLASH_ATTENTION_3 = KernelNames(fwd="FlashAttnFwdSm", bwd="FlashAttnBwdSm")
"""Of flash_mask and flex-flash-attention as well, which are made from it."""
FLASH_ATTENTION_4 = KernelNames(fwd="FlashAttentionForwardSm", bwd="FlashAttentionBackwardSm")
MAGI_FLASH_ATTENTION_4 = KernelNames(fwd="FlashAttentionForward", bwd="FlashAttentionBackward")


def every(expected: Iterable[ExpectedKernels]) -> ExpectedKernels:
    """What kernels expect that run together.

    >>> every(["triton", "", "triton"]), every([CUDNN, "triton"]) == (CUDNN, "triton"), every([])
    ('triton', True, '')
    """
    each = (one if isinstance(one, tuple) else (one,) for one in expected)
    distinct = tuple(dict.fromkeys(name for names in each for name in names if name))
    return distinct if len(distinct) > 1 else next(iter(distinct), "")


def patterns(expected: ExpectedKernels, pass_: Pass) -> tuple[str, ...]:
    """The expressions that an iteration of a pass must match, each by one kernel at least.

    >>> patterns(CUDNN, "fwd_bwd"), patterns("triton", "bwd"), patterns("", "fwd")
    (('cudnn.*fprop', 'cudnn.*bprop'), ('triton',), ())
    >>> patterns((CUDNN, "triton"), "fwd")
    ('cudnn.*fprop', 'triton')
    """
    if isinstance(expected, tuple):
        return tuple(dict.fromkeys(pattern for one in expected for pattern in patterns(one, pass_)))
    if isinstance(expected, KernelNames):
        return tuple(getattr(expected, direction) for direction in pass_.split("_"))
    return (expected,) if expected else ()
