"""Brokers: options, authentication, connections and fetches."""
