"""A benchmark spec: what to measure, read from YAML and checked as a whole."""

from attnspec.spec.items import ImplementationItem, MaskItem
from attnspec.spec.load import SpecFile, load_spec, read_spec
from attnspec.spec.models import Spec
from attnspec.spec.sweeps import DistributedSweep, KernelSweep, Sweep

__all__ = [
    "DistributedSweep",
    "ImplementationItem",
    "KernelSweep",
    "MaskItem",
    "Spec",
    "SpecFile",
    "Sweep",
    "load_spec",
    "read_spec",
]
