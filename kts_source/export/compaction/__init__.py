"""The latest record of every key, and what a compacted table holds already."""
