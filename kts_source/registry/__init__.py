"""Looks up schemas by id in a schema registry or a folder. Each schema is requested only once."""
