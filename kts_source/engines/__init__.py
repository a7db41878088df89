"""Arrow rows for any engine: one scan, and thin adapters for Polars, DuckDB and Ray."""
