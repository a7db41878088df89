"""Objects at a distance: stores, byte ranges, read-ahead, and layouts that name what is there."""
