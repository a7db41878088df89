"""Kafka's on-disk formats and the storage plugin's objects, read and written without Kafka: bytes in, values out."""
