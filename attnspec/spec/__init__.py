"""Specs: YAML files that say what to measure."""
