"""Tests the headers that Confluent's serializers write."""

from __future__ import annotations

import random
import uuid

import numpy as np
import pyarrow as pa
import pytest

from segment_format.values.registry_framing import (
    ID_0,
    NO_MAGIC,
    TOO_SHORT,
    leading_bytes,
    read_confluent_header,
    read_confluent_headers,
    without_headers,
)

GUID = uuid.UUID("9a3cde12-0000-ffff-8001-0102030405ff")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\0\0\0\1\2", (258, 5)),
        (b"\0\xff\xff\xff\xff\0", (2**32 - 1, 5)),
        (b"\1" + GUID.bytes, (str(GUID), 17)),
        (b"\1" + GUID.bytes + b"x", (str(GUID), 17)),
        (b"\1" + bytes(15), NO_MAGIC),
        (b"\2" + bytes(16), NO_MAGIC),
        (b"\0\0\0\0\0\1", ID_0),
        (b"\0\0\0\0", TOO_SHORT),
    ],
)
def test_confluent_header_is_read_or_refused_with_a_reason(
    value: bytes, expected: tuple[int | str, int] | str
) -> None:
    assert header_or_reason(value) == expected


def header_or_reason(value: bytes) -> tuple[int | str, int] | str:
    """Returns the header, or the error text if the value has no valid header."""
    try:
        return read_confluent_header(value)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(40))
def test_vectorized_header_reader_equals_reader_of_single_values(seed: int) -> None:
    chance = random.Random(seed)
    max_byte = chance.choice([1, 2, 255])
    values = [
        bytes(
            chance.randrange(min(max_byte, 2) + 1)
            if position == 0
            else chance.choice([0, 0, 1, max_byte])
            for position in range(chance.choice([0, 4, 5, 6, 16, 17, 18]))
        )
        for _ in range(chance.randrange(2, 40))
    ]
    values[::7] = [b"\0\0\0\0" + bytes([chance.randrange(3)]) for _ in values[::7]]
    first = chance.randrange(len(values))
    array = pa.array([*values, b"\0\0\0\0\1"], pa.binary()).slice(first, len(values) - first)
    result = read_confluent_headers(array)
    expected = [header_or_reason(value) for value in values[first:]]
    sizes = [0 if isinstance(header, str) else header[1] for header in expected]
    assert result.sizes.tolist() == sizes
    for number, header in zip(result.schema_of.tolist(), expected, strict=True):
        assert result.invalid.get(number) == (header if isinstance(header, str) else None)
        assert isinstance(header, str) or result.schemas[number] == header[0]
    assert len(set(result.schemas)) == len(result.schemas)
    kept = np.array([size > 0 and chance.random() < 0.9 for size in sizes])
    contents = without_headers(array, result.sizes, kept)
    contents.validate(full=True)
    assert contents.to_pylist() == [
        value[size:] if keep else None
        for value, size, keep in zip(values[first:], sizes, kept, strict=True)
    ]


def test_empty_values_have_no_headers() -> None:
    assert read_confluent_headers(pa.array([], pa.binary())).sizes.tolist() == []
    result = read_confluent_headers(pa.array([None, b""], pa.binary()))
    assert [result.invalid[number] for number in result.schema_of] == [TOO_SHORT] * 2


@pytest.mark.parametrize("seed", range(20))
def test_leading_bytes_of_short_values_are_zero(seed: int) -> None:
    chance = random.Random(seed)
    values = [
        None if chance.random() < 0.1 else chance.randbytes(chance.randrange(6))
        for _ in range(chance.randrange(30))
    ]
    size, start = chance.randrange(1, 6), chance.randrange(3)
    result = leading_bytes(pa.array(values, pa.binary()).slice(start), size)
    assert [leading.tobytes() for leading in result] == [
        value[:size] if value is not None and len(value) >= size else bytes(size)
        for value in values[start:]
    ]
