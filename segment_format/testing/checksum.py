"""CRC-32C (Castagnoli) of record batches and producer snapshots, by the C library."""

from __future__ import annotations


def crc32c(data: bytes) -> int:
    """CRC-32C of `data`, unsigned; `Some String` gives 608512271."""
    import google_crc32c

    return int(google_crc32c.value(data))
