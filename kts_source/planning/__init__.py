"""Plans scans: turns options into tasks by discovery, lineage, bounds, isolation and slicing. Does
not use Spark.
"""
