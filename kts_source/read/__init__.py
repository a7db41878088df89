"""Reads tasks as Arrow batches: reads segment bytes, finds slice boundaries, decodes records and
filters rows.
"""
