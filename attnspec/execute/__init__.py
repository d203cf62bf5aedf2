"""Execution inside a worker: tensors, verification, timing."""
