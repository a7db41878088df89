"""Plans scans, from options to tasks: discovery, lineage, bounds, isolation, slicing. Does not use
Spark.
"""
