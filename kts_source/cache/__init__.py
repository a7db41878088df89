"""Caches on the local disk of the driver and of the executors."""
