"""Libraries that bring strategies of their own, which adapters run for comparison. Plain data.

An adapter names its library in PROVIDERS: doctor and the worker import it before anything else, so one that is missing
or broken makes its cases unsupported with its own message, and its version is part of a result's key. KERNEL_PROVIDER
names the provider of its kernel that the library calls, which is tried like that of any kernel.
"""

from __future__ import annotations

from attnspec.support import Provider

TRANSFORMER_ENGINE = Provider(
    name="transformer-engine",
    distribution="transformer-engine",
    module="transformer_engine.pytorch",
    requires=">=2.20",
    fix="pip install --no-build-isolation 'transformer-engine[core_cu13,pytorch]>=2.20' (compiles C++)",
)
MAGI_ATTENTION = Provider(
    name="magi-attention",
    distribution="magi-attention",
    module="magi_attention",
    requires=">=1.1",
    fix="build tag v1.1.1 of github.com/SandAI-org/MagiAttention (pip install --no-build-isolation .)",
)
RING_FLASH_ATTN = Provider(
    name="ring-flash-attn",
    distribution="ring-flash-attn",
    module="ring_flash_attn",
    requires=">=0.1.8",
    fix="pip install 'ring-flash-attn>=0.1.8' 'transformers<5', after flash-attn",
)
YUNCHANG = Provider(
    name="yunchang",
    distribution="yunchang",
    module="yunchang",
    requires=">=0.6.4",
    fix="pip install 'yunchang>=0.6.4', after flash-attn",
)
