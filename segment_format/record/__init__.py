"""Parses Kafka's log format: record batches of magic 2, message sets of magic 0 and 1, and their
compression.
"""
