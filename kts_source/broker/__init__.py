"""Kafka brokers: connections, what a cluster tells of its topics, and ranges of offsets as bytes.

The messages are kafka-python's (extra `kafka`); sockets, leaders and retries are here.
"""
