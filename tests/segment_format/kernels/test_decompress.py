"""Tests the kernels' own decompressors: their output must equal the libraries' output.

For any payload, the kernels may use the libraries instead. Another test checks that they do not for
payloads that producers usually write.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import cramjam
import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segment_format.kernels.contract import COPY_SLACK
from segment_format.kernels.decompress import (
    decompress_lz4,
    decompress_snappy,
    lz4_bound,
    snappy_bound,
)
from segment_format.record.compression import decompress
from segment_format.testing import CODEC_NUMBERS, compress
from tests import log_strategies as strategies
from tests.quick import examples
from tests.segment_format.kernels.test_memory_safety import GuardedPages

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = 0x5A
BOUND = 4 << 20
UNHURRIED = settings(
    deadline=None,
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@numba.njit
def _bound(is_lz4: bool, data: Any) -> Any:  # noqa: ANN401
    if is_lz4:
        return lz4_bound(np.uint64(data.ctypes.data), np.uint64(data.size))
    return snappy_bound(np.uint64(data.ctypes.data), np.uint64(data.size))


@numba.njit
def _fill(is_lz4: bool, data: Any, target: Any) -> Any:  # noqa: ANN401
    if is_lz4:
        return decompress_lz4(np.uint64(data.ctypes.data), np.uint64(target.ctypes.data))
    return decompress_snappy(
        np.uint64(data.ctypes.data), np.uint64(data.size), np.uint64(target.ctypes.data)
    )


bound_of: Callable[..., int] = _bound
fill: Callable[..., int] = _fill
PAGES = GuardedPages(1 << 20)


def in_kernel(codec: str, payload: bytes) -> bytes | None:
    """Decompresses a payload that ends at a guard page, that is, at memory without access rights.
    Returns None if the kernel leaves this payload to the library.
    """
    data = PAGES.ending_with(payload)
    bound = bound_of(codec == "lz4", data)
    if bound < 0 or bound > BOUND:
        return None
    target = np.full(bound + COPY_SLACK + 32, MARK, np.uint8)
    size = fill(codec == "lz4", data, target)
    if (target[bound + COPY_SLACK :] != MARK).any():
        raise AssertionError("written after the slack")
    if size < 0:
        return None
    assert size <= bound
    return target[:size].tobytes()


CODECS = ["lz4", "snappy", "raw snappy"]


def compressed(codec: str, text: bytes) -> bytes:
    """Compresses as Kafka's Java producer does or, with `raw snappy`, as librdkafka does."""
    if codec == "raw snappy":
        return bytes(cramjam.snappy.compress_raw(text))
    return compress(codec, text)


def texts() -> list[bytes]:
    chance = random.Random(1)
    words = [b"order", b"status", b"customer", b'{"id":', b"pending", b","]
    prose = b" ".join(chance.choice(words) for _ in range(20_000))
    noise = chance.randbytes(100_000)
    texts = [b"", b"a", b"ab" * 7, bytes(1 << 20), prose, noise, noise[:50] * 3000]
    texts += [bytes(range(period)) * 500 for period in range(1, 34)]
    texts += [prose[:size] for size in (15, 16, 17, 4095, 65535, 65536, 65537, 140_000)]
    return texts + [noise[:size] + prose[:5000] for size in (3, 60, 61, 255, 256, 257, 70_000)]


@pytest.mark.parametrize("codec", CODECS)
def test_kernel_decompresses_payloads_of_producers(codec: str) -> None:
    for text in texts():
        stored = compressed(codec, text)
        if text or codec != "snappy":
            assert in_kernel(codec, stored) == text


@pytest.mark.parametrize("codec", CODECS)
def test_kernel_matches_library_on_truncated_or_changed_payload(codec: str) -> None:
    text = texts()[4][:3000] + bytes(100) + random.Random(2).randbytes(300)
    stored = compressed(codec, text)
    decompressed = 0
    for position in range(len(stored)):
        cut = in_kernel(codec, stored[:position])
        assert cut is None or cut == reference(codec, stored[:position])
        for value in (0, 1, 0x0F, 0x7F, 0xF0, 0xFF, stored[position] ^ 4):
            changed = stored[:position] + bytes([value]) + stored[position + 1 :]
            content = in_kernel(codec, changed)
            decompressed += content is not None
            assert content is None or content == reference(codec, changed)
    assert decompressed > 1000


@UNHURRIED
@given(
    st.sampled_from(CODECS),
    st.lists(strategies.payloads(), max_size=5).map(b"".join),
    st.data(),
)
def test_kernel_output_of_corrupt_payload_matches_library(
    codec: str, text: bytes, data: st.DataObject
) -> None:
    stored = data.draw(strategies.mutations(compressed(codec, text)))
    content = in_kernel(codec, stored)
    assert content is None or content == reference(codec, stored)


@UNHURRIED
@given(st.binary(min_size=1, max_size=60), st.integers(0, 200))
def test_kernel_output_of_random_snappy_elements_matches_library(
    elements: bytes, size: int
) -> None:
    prefix = bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])
    block = prefix + elements
    stored = compress("snappy", b"x")[:16] + len(block).to_bytes(4, "big") + block
    content = in_kernel("snappy", stored)
    assert content is None or content == reference("snappy", stored)
    assert in_kernel("raw snappy", block) == content


@UNHURRIED
@given(st.binary(min_size=1, max_size=60))
def test_kernel_output_of_random_lz4_sequences_matches_library(sequences: bytes) -> None:
    stored = compress("lz4", b"")[:7] + len(sequences).to_bytes(4, "little") + sequences + bytes(4)
    content = in_kernel("lz4", stored)
    assert content is None or content == reference("lz4", stored)


def reference(codec: str, stored: bytes) -> bytes:
    number = CODEC_NUMBERS[codec.removeprefix("raw ")]
    content = bytes(decompress(number, stored, max_output_bytes=BOUND))
    if codec == "raw snappy":
        assert content == bytes(cramjam.snappy.decompress_raw(stored))
    return content
