"""Kernel plug-ins: one file each; the file's name is the kernel's name in a spec."""
