"""Launcher plug-ins: one file each; how a job's process is started."""
