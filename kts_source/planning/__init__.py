"""Plans scans: converts options to tasks in five steps (discovery, lineage, bounds, isolation,
slicing). Does not use Spark.
"""
