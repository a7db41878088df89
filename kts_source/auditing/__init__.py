"""Audits a tier: proves that it is complete, or lists every fault."""
