"""Schemas that values name by their id: from a schema registry or a folder, asked for once."""
