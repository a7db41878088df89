"""Looks up schemas by id in a schema registry or a folder, each once."""
