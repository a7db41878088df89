"""CRC-32C (Castagnoli), the checksum of magic-2 batches and of producer snapshots.

Not CRC-32: that one (`zlib.crc32`) guards the entries of magic 0 and 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from segment_format._cursor import BytesLike


def crc32c(data: BytesLike) -> int:
    """The unsigned CRC-32C of `data`, any contiguous buffer, without a copy."""
    # The library refuses memoryview and bytearray but takes numpy arrays.
    value: int = google_crc32c.value(np.frombuffer(data, dtype=np.uint8))
    return value
