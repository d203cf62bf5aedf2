"""toy_plain: a kernel without parameters and backends; computes nothing."""

PLUGIN_KIND = "kernels"
PROVIDERS = ()
