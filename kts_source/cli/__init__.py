"""Commands for people: `python -m kts_source.cli.<command>`."""
