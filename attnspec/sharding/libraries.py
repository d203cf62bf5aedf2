"""Libraries that bring strategies of their own, which adapters run for comparison. Plain data.

An adapter names its library in PROVIDERS: doctor and the worker import it before anything else, so one that is missing
or broken makes its cases unsupported with its own message, and its version is part of a result's key. KERNEL_PROVIDER
names the provider of its kernel that the library calls, which is tried like that of any kernel. Where environment
variables choose what the library does, `variables(kernel)` says which values the adapter means, "0" for none: those
that the case or its runner names must be these, and the process must have them.
"""

from __future__ import annotations

from collections.abc import Mapping

from attnspec.kernels import cudnn
from attnspec.kernels._magi import magi_provider
from attnspec.support import Provider

(TRANSFORMER_ENGINE,) = (one for one in cudnn.PROVIDERS if one.name == "transformer-engine")
MAGI_ATTENTION = magi_provider("pip install --no-build-isolation .")
MAGI_FA4, MAGI_NATIVE = "MAGI_ATTENTION_FA4_BACKEND", "MAGI_ATTENTION_NATIVE_GRPCOLL"
RING_FLASH_ATTN = Provider(
    name="ring-flash-attn",
    distribution="ring-flash-attn",
    module="ring_flash_attn",
    requires=">=0.1.8",
    fix="pip install 'ring-flash-attn>=0.1.8' 'transformers>=4.51,<5.4', after flash-attn",
)
YUNCHANG = Provider(
    name="yunchang",
    distribution="yunchang",
    module="yunchang",
    requires=">=0.6.4",
    fix="pip install 'yunchang>=0.6.4', after flash-attn",
)


def magi_variables(kernel: str, *, native: bool) -> Mapping[str, str]:
    """MagiAttention's, which name its kernel and its group collectives.

    >>> magi_variables("ffa", native=True)
    {'MAGI_ATTENTION_FA4_BACKEND': '0', 'MAGI_ATTENTION_NATIVE_GRPCOLL': '1'}
    """
    return {MAGI_FA4: "1" if kernel == "ffa_fa4" else "0", MAGI_NATIVE: "1" if native else "0"}
