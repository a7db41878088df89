"""Compares the kernel's size bound of a zstd frame with that of the readable parser. The kernel may
also report an unknown bound.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from segment_format.errors import DecompressionError
from segment_format.kernels import decoder
from segment_format.kernels.decompress import zstd_bound
from segment_format.record.batch_header import HEADER_SIZE
from segment_format.record.compression import decompress, scan_frames
from segment_format.testing import (
    CODEC_NUMBERS,
    SimpleRecord,
    compress,
    frame_batch,
    write_batch,
)
from tests import log_strategies as strategies
from tests.segment_format.kernels.test_decompress import UNHURRIED, texts
from tests.segment_format.kernels.test_memory_safety import GuardedPages
from tests.segment_format.kernels.yardstick import actual, expected

if TYPE_CHECKING:
    from collections.abc import Callable

PAGES = GuardedPages(1 << 20)


def sized(content: bytes) -> bytes:
    """Compresses as librdkafka does: the frame states the size of its content."""
    return zstandard.compress(content)


def streamed(content: bytes) -> bytes:
    """Compresses as Kafka's Java producer does: the frame has no content size."""
    return compress("zstd", content)


@numba.njit
def _bound(data: Any) -> Any:  # noqa: ANN401
    return zstd_bound(np.uint64(data.ctypes.data), np.uint64(data.size))


bound_of: Callable[..., int] = _bound


def in_kernel(payload: bytes) -> int:
    """Returns the kernel's size bound for a payload that ends before an inaccessible page."""
    return bound_of(PAGES.ending_with(payload))


def readable(payload: bytes) -> int:
    """Returns the readable parser's size bound for a payload, or −1 if the payload is not exactly
    one frame.
    """
    try:
        frames = scan_frames(memoryview(payload))
    except DecompressionError:
        return -1
    if len(frames) != 1:
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


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 65_791, 65_792, 200_000, 3 << 20])
@pytest.mark.parametrize("is_single_segment", [False, True])
def test_zstd_content_size_of_any_width_is_the_bound(size: int, *, is_single_segment: bool) -> None:
    settings = zstandard.ZstdCompressionParameters(
        window_log=27 if is_single_segment else 10, write_checksum=size % 2
    )
    stored = zstandard.ZstdCompressor(compression_params=settings).compress(b"x" * size)
    assert bool(stored[4] & 0x20) is (is_single_segment or size <= 1024)
    assert in_kernel(stored) == readable(stored) == size


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(compress("zstd", b"two") * 2, id="two frames"),
        pytest.param(compress("zstd", b"cut" * 50)[:-1], id="truncated"),
        pytest.param(compress("zstd", b"more" * 50) + b"\0", id="a byte after the frame"),
        pytest.param(b"\x50\x2a\x4d\x18\x04\0\0\0abcd", id="skippable"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_zstd_size_bound_is_unknown_unless_payload_is_one_frame(stored: bytes) -> None:
    assert in_kernel(stored) == -1


@pytest.mark.parametrize("compressed", [sized, streamed])
def test_zstd_size_bound_of_truncated_or_changed_frame_matches_or_is_unknown(
    compressed: Callable[[bytes], bytes],
) -> None:
    stored = compressed(texts()[4][:3000])
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
    compressed = data.draw(st.sampled_from([sized, streamed]))
    stored = data.draw(strategies.mutations(compressed(text)))
    assert in_kernel(stored) in (-1, readable(stored))


def test_zstd_size_bound_does_not_change_output() -> None:
    number = CODEC_NUMBERS["zstd"]
    for text in texts():
        stored = compress("zstd", text)
        assert decompress(number, stored, zstd_bound=in_kernel(stored)) == text
        assert decompress(number, stored) == text


def count_calls_of_python(monkeypatch: pytest.MonkeyPatch, log: bytes) -> int:
    """Decodes a log. Returns how many batches Python decompressed."""
    calls = []

    def counted(codec: int, payload: Any, **options: Any) -> Any:  # noqa: ANN401
        calls.append(codec)
        return decompress(codec, payload, **options)

    monkeypatch.setattr(decoder, "decompress", counted)
    assert actual(log) == expected(log)
    return len(calls)


@pytest.mark.parametrize("compressor", [sized, streamed])
def test_kernel_decompresses_zstd_batches_unless_optimizations_are_off(
    compressor: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = b"".join(
        write_batch(
            [SimpleRecord(b"value" * size)] * 3,
            base_offset=3 * size,
            codec="zstd",
            compressor=compressor,
        )
        for size in (0, 1, 1000, 8_000)
    )
    monkeypatch.setenv("KTS_TUNING", "on")
    assert count_calls_of_python(monkeypatch, log) == 0
    monkeypatch.setenv("KTS_TUNING", "off")
    assert count_calls_of_python(monkeypatch, log) == 4


def test_python_decompresses_zstd_batch_that_could_expand_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = write_batch([SimpleRecord(b"\0" * (9 << 20))], base_offset=0, codec="zstd")
    assert len(log) < 1 << 20
    assert count_calls_of_python(monkeypatch, log) == 1


@UNHURRIED
@given(st.lists(strategies.payloads(), min_size=1, max_size=5), st.data())
def test_corrupt_zstd_batch_after_valid_ones_matches_reference(
    values: list[bytes], data: st.DataObject
) -> None:
    compressor = data.draw(st.sampled_from([sized, streamed]))
    records = [SimpleRecord(value) for value in values]
    content = compressor(write_batch(records, base_offset=0)[HEADER_SIZE:])
    batch = partial(
        frame_batch,
        record_count=len(values),
        last_offset_delta=len(values) - 1,
        attributes=CODEC_NUMBERS["zstd"],
    )
    log = batch(content, base_offset=5) + batch(content, base_offset=50)
    log += batch(data.draw(strategies.mutations(content)), base_offset=500)
    assert actual(log) == expected(log)
