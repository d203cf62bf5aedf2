"""Plans: the compiled graph of sample, mask, run and collect nodes."""
