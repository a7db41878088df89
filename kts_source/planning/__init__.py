"""From options to tasks: discover, lineage, bounds, isolation, slicing; no Spark."""
