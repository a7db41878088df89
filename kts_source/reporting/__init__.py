"""Reports a tier as one HTML page: collects facts, packs them and writes the page."""
