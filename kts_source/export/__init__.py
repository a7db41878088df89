"""Writes the rows of topics into Parquet files, Delta or Iceberg tables. Each offset is written
exactly once.
"""
