"""Libraries that bring strategies of their own, which adapters run for comparison. Plain data.

An adapter names its library in PROVIDERS: doctor and the worker import it before anything else, so one that is missing
or broken makes its cases unsupported with its own message, and its version is part of a result's key.
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
