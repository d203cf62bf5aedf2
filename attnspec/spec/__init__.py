"""A benchmark spec: what to measure, read from YAML and checked as a whole."""

from attnspec.spec.load import load_spec
from attnspec.spec.models import DistributedSweep, ImplementationItem, KernelSweep, MaskItem, Spec, Sweep

__all__ = ["DistributedSweep", "ImplementationItem", "KernelSweep", "MaskItem", "Spec", "Sweep", "load_spec"]
