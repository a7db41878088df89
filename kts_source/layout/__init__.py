"""Layouts of tiers. A layout finds the segments of a tier and describes them."""
