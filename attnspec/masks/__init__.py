"""Mask plug-ins: one file each; the file's name is the mask's name in a spec."""
