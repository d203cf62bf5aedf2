"""Records: statuses, table schemas, the journal and what is derived from it."""
