"""Compares the kernel's size bound of a zstd frame with that of the readable parser. The kernel may
also report an unknown bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from segment_format.errors import DecompressionError
from segment_format.kernels.decompress import zstd_bound
from segment_format.record.compression import decompress, scan_frames
from segment_format.testing import CODEC_NUMBERS, compress
from tests import log_strategies as strategies
from tests.segment_format.kernels.test_decompress import UNHURRIED, texts
from tests.segment_format.kernels.test_memory_safety import GuardedPages

if TYPE_CHECKING:
    from collections.abc import Callable

PAGES = GuardedPages(1 << 20)


@numba.njit
def _bound(data: Any) -> Any:  # noqa: ANN401
    return zstd_bound(np.uint64(data.ctypes.data), np.uint64(data.size))


bound_of: Callable[..., int] = _bound


def in_kernel(payload: bytes) -> int:
    """Returns the kernel's size bound for a payload that ends before an inaccessible page."""
    return bound_of(PAGES.ending_with(payload))


def readable(payload: bytes) -> int:
    """Returns the readable parser's size bound for a payload, or −1 if the payload is not exactly
    one frame or the frame states its content size.
    """
    try:
        frames = scan_frames(memoryview(payload))
    except DecompressionError:
        return -1
    if len(frames) != 1 or frames[0].content_size is not None:
        return -1
    if (frames[0].start, frames[0].stop) != (0, len(payload)):
        return -1
    return frames[0].max_output


def test_zstd_size_bound_of_producer_payload_matches_parser() -> None:
    for text in filter(None, texts()):
        stored = compress("zstd", text)
        assert in_kernel(stored) == readable(stored) >= len(text)


def test_zstd_size_bound_with_checksum_or_small_window_matches_parser() -> None:
    text = texts()[4]
    for window_log in range(10, 22):
        settings = zstandard.ZstdCompressionParameters(
            window_log=window_log, write_checksum=window_log % 2, write_content_size=0
        )
        frames = zstandard.ZstdCompressor(compression_params=settings).compressobj()
        stored = frames.compress(text) + frames.flush()
        assert in_kernel(stored) == readable(stored) >= len(text)


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(zstandard.compress(b"stated size " * 9), id="content size"),
        pytest.param(compress("zstd", b"two") * 2, id="two frames"),
        pytest.param(compress("zstd", b"cut" * 50)[:-1], id="truncated"),
        pytest.param(compress("zstd", b"more" * 50) + b"\0", id="a byte after the frame"),
        pytest.param(b"\x50\x2a\x4d\x18\x04\0\0\0abcd", id="skippable"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_zstd_size_bound_is_unknown_unless_payload_is_one_frame_without_size(stored: bytes) -> None:
    assert in_kernel(stored) == -1


def test_zstd_size_bound_of_truncated_or_changed_frame_matches_or_is_unknown() -> None:
    stored = compress("zstd", texts()[4][:3000])
    bounded = 0
    for position in range(len(stored)):
        assert in_kernel(stored[:position]) == -1
        for value in (0, 1, 4, 0x0F, 0x7F, 0xF0, 0xFF, stored[position] ^ 4):
            changed = stored[:position] + bytes([value]) + stored[position + 1 :]
            assert in_kernel(changed) in (-1, readable(changed))
            bounded += in_kernel(changed) >= 0
    assert bounded > 1000


@UNHURRIED
@given(st.lists(strategies.payloads(), max_size=5).map(b"".join), st.data())
def test_zstd_size_bound_of_corrupt_frame_matches_or_is_unknown(
    text: bytes, data: st.DataObject
) -> None:
    stored = data.draw(strategies.mutations(compress("zstd", text)))
    assert in_kernel(stored) in (-1, readable(stored))


def test_zstd_size_bound_does_not_change_output() -> None:
    number = CODEC_NUMBERS["zstd"]
    for text in texts():
        stored = compress("zstd", text)
        assert decompress(number, stored, zstd_bound=in_kernel(stored)) == text
        assert decompress(number, stored) == text
