"""Measures speed against physical bounds and other libraries in the same run.

See `python -m benchmarks --help`.
"""
