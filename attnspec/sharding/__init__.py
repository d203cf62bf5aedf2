"""The algebra of context parallelism: which rank holds, computes, sends and receives what. Pure; numpy only."""
