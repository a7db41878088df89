from __future__ import annotations

import google_crc32c
import numpy as np

from segment_format.record.batch_header import crc32c


def test_crc32c_library_is_compiled() -> None:
    assert google_crc32c.implementation == "c"


def test_crc32c_of_any_buffer_matches_kafka() -> None:
    text = b"Some String"

    for data in (text, bytearray(text), memoryview(text), np.frombuffer(text, np.uint8)):
        assert crc32c(data) == 608512271
    assert crc32c(memoryview(b"x" + text + b"y")[1:-1]) == 608512271
    assert crc32c(b"") == 0
