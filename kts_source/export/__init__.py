"""Writes a topic's rows into Parquet files, Delta or Iceberg tables, each offset exactly once."""
