"""Searches for records, and certifies which offsets were searched."""
