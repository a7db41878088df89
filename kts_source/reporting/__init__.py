"""A tier as one page that a browser draws: facts, their packing, the page."""
