"""Audits: proves that a tier is complete, or lists every fault."""
