"""Libraries that bring strategies of their own, which adapters run for comparison. Plain data.

An adapter names its library in PROVIDERS: doctor and the worker import it before anything else, so one that is missing
or broken makes its cases unsupported with its own message, and its version is part of a result's key. KERNEL_PROVIDER
names the provider of its kernel that the library calls, which is tried like that of any kernel.
"""

from __future__ import annotations

from attnspec.kernels import cudnn
from attnspec.kernels._magi import magi_provider
from attnspec.support import Provider

(TRANSFORMER_ENGINE,) = (one for one in cudnn.PROVIDERS if one.name == "transformer-engine")
MAGI_ATTENTION = magi_provider("pip install --no-build-isolation .")
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
