"""Reads the files that Kafka stores next to a log segment: indexes, producer snapshots and
checkpoints.
"""
