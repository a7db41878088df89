"""Micro-batches: which offsets each holds, as text in a checkpoint and as a plan; no Spark."""
