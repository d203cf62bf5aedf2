"""Support: what a kernel is asked, what it declares, and the shape of a prepared kernel."""

from attnspec.shape import DTYPE_BYTES, DTYPES, PASSES, DType, Pass, Shape
from attnspec.support.bound import BoundKernel, Forward
from attnspec.support.kernel_names import ExpectedKernels, KernelNames
from attnspec.support.predicate import Support
from attnspec.support.problem import Device, Problem
from attnspec.support.provider import Provider

__all__ = [
    "DTYPES",
    "DTYPE_BYTES",
    "PASSES",
    "BoundKernel",
    "DType",
    "Device",
    "ExpectedKernels",
    "Forward",
    "KernelNames",
    "Pass",
    "Problem",
    "Provider",
    "Shape",
    "Support",
]
