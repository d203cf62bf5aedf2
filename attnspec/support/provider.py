"""Providers of a kernel: the packages that can run it, in order of preference. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

UNSET = "0"
"""What an environment variable that chooses what a library does is taken for where it is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A package that implements a kernel.

    name: as written under `provider:` in a spec and in the `provider` column.
    distribution: its name on the package index, for the version. module: what is imported.
    requires: a version specifier (PEP 440), empty for any. fix: what a user runs to get it.
    apart: no process can hold it beside another provider of the kernel, so its cases are jobs of their own.
    """

    name: str
    distribution: str
    module: str
    requires: str = ""
    fix: str = ""
    apart: bool = False
