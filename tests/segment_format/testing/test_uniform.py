"""Compares `write_uniform_batches` with the batches of `LogBuilder`."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.testing import CODEC_NUMBERS, LogBuilder, SimpleRecord
from tests.uniform_batches import uniform_segment, write_uniform_batches


def values_of(data: bytes, sizes: list[int], key_size: int | None, value_size: int) -> list[bytes]:
    """Returns the values of uncompressed batches without headers, found by walking the varints."""

    def varint(position: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = data[position]
            value |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1), position

    values = []
    start = 0
    for size in sizes:
        position = start + 61
        while position < start + size:
            length, position = varint(position)
            end = position + length
            values.append(data[end - 1 - value_size : end - 1])
            position = end
        start += size
    return values


@settings(max_examples=40, deadline=None)
@given(
    batch_count=st.integers(1, 4),
    records_per_batch=st.sampled_from([1, 2, 63, 64, 65, 200]),
    value_size=st.sampled_from([0, 1, 40, 63, 64, 300]),
    key_size=st.sampled_from([None, 0, 3, 8, 20]),
    base_offset=st.integers(0, 1 << 40),
    payload=st.sampled_from(["random", "json"]),
)
def test_uniform_batches_match_log_builder(
    batch_count: int,
    records_per_batch: int,
    value_size: int,
    key_size: int | None,
    base_offset: int,
    payload: str,
) -> None:
    fast = write_uniform_batches(
        batch_count=batch_count,
        records_per_batch=records_per_batch,
        value_size=value_size,
        key_size=key_size,
        base_offset=base_offset,
        base_timestamp=1_000,
        leader_epoch=3,
        payload=payload,
        seed=1,
    )
    values = values_of(fast.data, fast.sizes.tolist(), key_size, value_size)
    builder = LogBuilder(start_offset=base_offset, leader_epoch=3)
    for batch in range(batch_count):
        builder.append(
            [
                SimpleRecord(
                    value=values[number],
                    key=None if key_size is None else key_of(base_offset + number, key_size),
                    timestamp=1_000 + number,
                )
                for number in range(batch * records_per_batch, (batch + 1) * records_per_batch)
            ]
        )
    (segment,) = builder.build().segments
    assert uniform_segment(fast, leader_epoch=3) == segment


def key_of(offset: int, size: int) -> bytes:
    return struct.pack(">q", offset)[max(0, 8 - size) :].ljust(size, b"\0")


@pytest.mark.parametrize("codec", [name for name in CODEC_NUMBERS if name != "none"])
def test_compressed_uniform_batches_match_log_builder(codec: str) -> None:
    fast = write_uniform_batches(
        batch_count=3, records_per_batch=70, value_size=90, codec=codec, payload="json"
    )
    plain = write_uniform_batches(
        batch_count=3, records_per_batch=70, value_size=90, payload="json"
    )
    values = values_of(plain.data, plain.sizes.tolist(), None, 90)
    builder = LogBuilder(codec=codec)
    for batch in range(3):
        numbers = range(batch * 70, (batch + 1) * 70)
        builder.append([SimpleRecord(values[n], timestamp=1_700_000_000_000 + n) for n in numbers])
    (segment,) = builder.build().segments
    assert uniform_segment(fast) == segment
    assert len(fast.data) < len(plain.data) / 2


def test_headers_are_repeated_on_every_record() -> None:
    headers = (("trace", b"abc"), ("none", None))
    fast = write_uniform_batches(
        batch_count=1, records_per_batch=2, value_size=0, key_size=0, headers=headers
    )
    builder = LogBuilder()
    builder.append(
        [
            SimpleRecord(b"", b"", headers, timestamp=1_700_000_000_000),
            SimpleRecord(b"", b"", headers, timestamp=1_700_000_000_001),
        ]
    )
    assert builder.build().segments[0].log == fast.data


def test_equal_seeds_give_equal_logs_and_different_seeds_give_different_logs() -> None:
    first, again, other = (
        write_uniform_batches(batch_count=2, records_per_batch=5, value_size=50, seed=seed).data
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_count": 0, "records_per_batch": 1, "value_size": 1},
        {"batch_count": 1, "records_per_batch": 0, "value_size": 1},
    ],
)
def test_batch_count_or_record_count_of_0_raises(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        write_uniform_batches(**arguments)  # type: ignore[arg-type]
