"""What every user of flash_attn.cute wants: FlashAttention 4 itself, and FlexAttention's FLASH backend over it."""

from __future__ import annotations

import os
import tempfile

from attnspec.support import Provider

PROVIDER = Provider(
    name="flash-attn-4",
    distribution="flash-attn-4",
    module="flash_attn.cute.interface",
    requires=">=4.0.0b30",
    fix="pip install 'flash-attn-4[cu13]>=4.0.0b30' (nvidia-cutlass-dsl and its parts of one version)",
)
ENVIRONMENT = {
    "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": f"{tempfile.gettempdir()}/flash_attention_cute_dsl_cache-{os.getuid()}",
}
"""Compiled kernels are kept on disk, by a key without lengths (cache_utils.py of 4.0.0b36); off by default there.

The folder is one per user ID: the library's own is by name, and in a container all users have the same.
"""
