"""Sampling: length distributions, packs."""
