"""The rows as Arrow for any engine: one scan, and thin adapters on top of it."""
