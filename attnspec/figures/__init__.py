"""Figure plug-ins: one file each."""
