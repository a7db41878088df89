"""Arrow rows for any engine: a scan, and small adapters for Polars, DuckDB and Ray."""
