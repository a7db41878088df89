"""Brokers beside the tier: how they are reached, spoken to and read."""
