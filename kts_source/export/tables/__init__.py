"""The tables that an export commits to, and the stores they stand in."""
