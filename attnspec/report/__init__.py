"""Reports from run folders."""
