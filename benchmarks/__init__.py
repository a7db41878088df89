"""Speed, measured against physical bounds and other libraries in the same run; see `python -m
benchmarks --help`.
"""
