"""Layouts of tiers: locate and describe segments."""
