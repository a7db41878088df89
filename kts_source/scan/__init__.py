"""From options to rows: discover, lineage, isolation, plan, execute; no Spark."""
