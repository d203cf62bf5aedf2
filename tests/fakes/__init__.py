"""Stand-ins for attention libraries.

Each has the signatures of the real one (copied from the source that the adapter's docstring names), computes on the CPU
what its documentation says for the arguments it gets, and knows nothing of masks or slices. What the library leaves
unwritten is NaN here. An adapter that wires its arguments wrongly gives wrong numbers, or fails.
"""
