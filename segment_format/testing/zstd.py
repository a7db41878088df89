"""Compresses with zstd: the module of Python 3.14, or its backport for earlier versions."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdCompressor as ZstdCompressor
    from compression.zstd import compress as compress
else:
    from backports.zstd import ZstdCompressor as ZstdCompressor
    from backports.zstd import compress as compress
