"""Writes the rows of topics into a folder of Parquet files, a Delta table or an Iceberg table. Each
offset is written exactly once.
"""
