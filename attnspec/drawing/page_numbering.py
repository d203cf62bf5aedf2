"""Which figure of the published page a group of cases corresponds to. Pure.

Source: MagiAttention, "Long-Context Attention Benchmark" (2025): figure 19 is the distribution of document lengths, 20
to 43 are kernel level (H100, then B200), 44 to 59 distributed; within a device by mask, forward before backward.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attnspec.launch.known_devices import KnownDevice, known_devices, same_class

LENGTHS_FIGURE = 19
"""The page's figure of document lengths."""

PAGE_SHAPE = {"batch": 1, "num_heads_q": 64, "num_heads_kv": 8, "head_dim": 128, "dtype": "bfloat16"}
"""The shape that the page names for all its figures."""

PAGE_DEVICES = ("h100", "b200")

_MASKS = ("full", "causal", "varlen_full", "varlen_causal", "sliding_window_causal", "varlen_block_causal")
_FIRST = {"kernel": (20, 6), "distributed": (44, 4)}
_PASSES = ("fwd", "bwd")


def page_mask_params(mask: str, device: str) -> dict[str, int]:
    """The parameters of a mask on the page; the block differs by device in the page's own scripts.

    >>> page_mask_params("varlen_block_causal", "b200")
    {'block': 512}
    """
    if mask == "sliding_window_causal":
        return {"window": 1024}
    return {"block": 2048 if device == "h100" else 512} if mask == "varlen_block_causal" else {}


def page_device(device: KnownDevice | None) -> str | None:
    """The page's device of the same class: h100, b200 or None.

    >>> from attnspec.launch.known_devices import known_device
    >>> page_device(known_device("NVIDIA H200")), page_device(None)
    ('h100', None)
    """
    if device is None:
        return None
    ours = {known.key: known for known in known_devices() if known.key in PAGE_DEVICES}
    return next((key for key in PAGE_DEVICES if same_class(ours[key], device)), None)


def page_figure(level: str, device: KnownDevice | None, mask: str, mask_params: str, pass_: str) -> int | None:
    """The number of the page's figure, or None where the page shows nothing like it.

    >>> from attnspec.launch.known_devices import known_device
    >>> page_figure("kernel", known_device("NVIDIA H200"), "varlen_causal", "{}", "bwd")
    27
    >>> page_figure("distributed", known_device("NVIDIA B200"), "full", "{}", "fwd")
    52
    """
    place = page_device(device)
    if place is None or level not in _FIRST or mask not in _MASKS or pass_ not in _PASSES:
        return None
    first, num_masks = _FIRST[level]
    index = _MASKS.index(mask)
    if index >= num_masks or json.loads(mask_params) != page_mask_params(mask, place):
        return None
    return first + 2 * (PAGE_DEVICES.index(place) * num_masks + index) + _PASSES.index(pass_)


def is_page_shape(row: Mapping[str, Any]) -> bool:
    """Whether a row has the shape of the page's figures."""
    return all(row[name] == value for name, value in PAGE_SHAPE.items())
