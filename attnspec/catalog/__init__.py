"""What plug-ins exist, and the generic validation of their parameters."""
