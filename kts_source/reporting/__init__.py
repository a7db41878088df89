"""Creates a report of a tier: collects the facts, packs them, and writes one HTML page."""
