"""Implements the Spark data source: a thin layer between Spark's Python data source API and a
scan.
"""
