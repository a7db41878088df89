"""Searches for records, with a certificate of completeness."""
