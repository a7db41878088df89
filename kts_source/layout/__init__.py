"""Layouts of tiers: storage locations and descriptions of segments."""
