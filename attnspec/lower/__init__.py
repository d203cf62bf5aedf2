"""Lowering: slices to each library's own description of a mask. Pure numpy."""
