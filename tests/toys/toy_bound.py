"""toy_bound: a strategy of a library that runs its own kernel only; computes nothing."""

PLUGIN_KIND = "strategies"
KERNELS = ("toy_kernel",)
