"""What every user of flash_attn.cute wants: FlashAttention 4 itself, and FlexAttention's FLASH backend over it."""

from __future__ import annotations

ENVIRONMENT = {"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1"}
"""Compiled kernels are kept on disk, by a key without lengths (cache_utils.py of 4.0.0b36); off by default there."""
