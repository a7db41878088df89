"""Reads tasks into Arrow: original segment bytes, slice boundaries, decoding, filtering."""
