"""Drawing: what all figures share."""
