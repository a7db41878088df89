"""Layouts of tiers: where segments are stored, and how they are described."""
