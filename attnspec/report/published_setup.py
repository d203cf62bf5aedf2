"""What differs between the published page's set-up and attnspec's, in words, for one pair of points. Pure.

Sources: the page itself, and its public scripts (MagiAttention's `exps/` folder) as they stood in May 2026.
"""

from __future__ import annotations

from collections.abc import Mapping

from attnspec.drawing.look import Row
from attnspec.drawing.page_numbering import page_device
from attnspec.launch.known_devices import known_device, known_devices

_PAGE_PROVIDERS = {
    "fa2": ("flash-attn", "FlashAttention 2's own package"),
    "fa3": ("flash-attn-3", "FlashAttention 3's own package"),
    "fa4": ("flash-attn-4", "FlashAttention 4's own package"),
    "cudnn": ("transformer-engine", "TransformerEngine's fused attention"),
}
_RING = ("ring_p2p", "ring_allgather", "usp", "loongtrain")
_WINDOW_OR_BLOCK = ("sliding_window_causal", "varlen_block_causal")


def differences(row: Row) -> list[str]:
    """What else differs, beside the code's age, between a measured row and the page's point of the same place."""
    if row["level"] == "kernel":
        return [*_device(row), *_provider(row), *_kernel_script(row)]
    return [*_device(row), *_provider(row), *_distributed_script(row)]


def _device(row: Row) -> list[str]:
    device = known_device(row["device"])
    theirs = page_device(device)
    if device is None or theirs in (None, device.key):
        return []
    page = next(known for known in known_devices() if known.key == theirs)
    speeds = f"{device.bandwidth_gb_s / 1000:g} TB/s of memory bandwidth in place of {page.bandwidth_gb_s / 1000:g}"
    return [f"{device.title} in place of {page.title}: the same bf16 peak, {speeds}"]


def _provider(row: Row) -> list[str]:
    known = _PAGE_PROVIDERS.get(row["kernel"])
    if known is not None and row["provider"] not in (None, known[0]):
        return [f"{row['kernel']} runs from {_named(row)} here, from {known[1]} there"]
    if row["kernel"] == "sdpa":
        return [f"sdpa runs on torch's {row['backend']} backend here; the page does not name its own"]
    return []


def _named(row: Mapping[str, object]) -> str:
    return f"{row['provider']} {row['provider_version']}" if row["provider_version"] else str(row["provider"])


def _kernel_script(row: Row) -> list[str]:
    hopper = page_device(known_device(row["device"])) == "h100"
    told = []
    if row["kernel"] == "flex" and row["mask"] in _WINDOW_OR_BLOCK:
        told.append("on this mask the page's flex falls back to a dense score mod; here it skips masked blocks")
    if row["mask"].startswith("varlen"):
        told.append("the page takes the mean of the packs' rates; here total work over total time")
    if hopper and row["mask"].startswith("varlen"):
        told.append("the page's script draws other lengths for each kernel, unseeded and without the quarter cap")
    if hopper:
        told.append("the page's script runs heads 48:8, its text says 64:8")
    if hopper and row["mask"] == "sliding_window_causal":
        told.append("the page's kernels see 1,025 keys and its FLOPs count 1,024")
    return told


def _distributed_script(row: Row) -> list[str]:
    strategy, told = row["strategy"] or "", []
    if strategy == "ulysses":
        told.append("the page repeats K and V outside the timed region; here that is timed")
    if strategy in _RING and row["kernel"] == "cudnn":
        told.append("the page repeats K and V to all heads inside the timed region")
    if strategy in ("usp", "loongtrain"):
        equal = ", so that at 8 GPUs it equals ulysses" if row["cp_size"] == 8 else ""
        told.append(f"the page's ulysses degree is min(cp_size, 8){equal}; here it is {row['mesh'] or 'not recorded'}")
    if strategy == "hybrid_dcp":
        told.append("the page keeps 8K tokens a rank whatever the length and does not re-shard samples")
    if strategy.startswith("magi_attn"):
        told.append("the page ran with experimental features switched on")
    if row["pass"] == "bwd":
        share = "about 3" if row["mask"].startswith("varlen") else "0.4"
        told.append(f"the page's timed backward holds projection gradients ({share} percent of the FLOPs)")
    if row["mask"].startswith("varlen"):
        told.append("the page takes the mean of the packs' rates; here total work over total time")
    return told
