"""The process inside a runner that executes one job."""
