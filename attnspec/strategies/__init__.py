"""Context-parallel strategy plug-ins: one file each; the file's name is its name in a spec."""
