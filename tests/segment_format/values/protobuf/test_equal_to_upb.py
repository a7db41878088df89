"""Compares random message types and values with Google's library."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segment_format.values.protobuf import decoder as decoder_module
from segment_format.values.protobuf.contract import REASONS, TOO_LARGE
from segment_format.values.protobuf.decoder import ProtobufDecoder
from tests.quick import examples
from tests.segment_format.values.nulls_below import check_nulls_below
from tests.segment_format.values.protobuf.generated import Writer, random_file
from tests.segment_format.values.protobuf.oracle import Oracle, Row, descriptor_set, rows_of

SEEDS = st.integers(0, 2**32 - 1)


def check(decoder: ProtobufDecoder, oracle: Oracle, values: list[bytes | None]) -> list[Row]:
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.array.validate(full=True)
    check_nulls_below(decoded.array)
    assert decoded.array.type == decoder.type
    rows = rows_of(decoded.array)
    too_large = {error.row for error in decoded.bad if error.reason == REASONS[TOO_LARGE]}
    expected = [
        None if value is None or row in too_large else oracle.row(value)
        for row, value in enumerate(values)
    ]
    for row, (actual, row_expected) in enumerate(zip(rows, expected, strict=True)):
        assert actual == row_expected, (row, values[row], decoded.bad)
    bad = [
        row
        for row, (value, row_expected) in enumerate(zip(values, expected, strict=True))
        if value is not None and row_expected is None
    ]
    assert [error.row for error in decoded.bad] == bad
    return rows


def damaged(random: Random, value: bytes) -> bytes:
    """Returns the value truncated or with one changed byte."""
    if not value or random.random() < 0.5:
        return value[: random.randrange(len(value) + 1)]
    position = random.randrange(len(value))
    return (
        value[:position]
        + bytes([value[position] ^ 1 << random.randrange(8)])
        + value[position + 1 :]
    )


def run(seed: int) -> None:
    random = Random(seed)
    file = random_file(random)
    oracle = Oracle(file, "t.Top")
    decoder = ProtobufDecoder(descriptor_set(file), "t.Top")
    writer = Writer(file, random, faults=0.05)
    values: list[bytes | None] = [writer.value() for _ in range(random.randrange(20))]
    values += [damaged(random, value) for value in values[:8] if value is not None]
    values.append(None)
    random.shuffle(values)
    with (
        patch.object(decoder_module, "_MIN_CAPACITY", random.choice((0, 1, 64))),
        patch.object(decoder_module, "MAX_BUFFER_BYTES", random.choice((200, 1 << 20, 1 << 20))),
        patch.object(decoder_module, "BYTES_PER_INPUT_BYTE", random.choice((0, 1, 8))),
    ):
        check(decoder, oracle, values)
        # Repeated values use the memory that the first ones allocated.
        check(decoder, oracle, values * 9)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(SEEDS)
def test_random_messages_match_upb(seed: int) -> None:
    run(seed)


@pytest.mark.fuzz
def test_many_random_messages_match_upb() -> None:
    first = Random().randrange(2**32)
    print(f"first seed {first}")  # noqa: T201 - to run it again
    for seed in range(first, first + 2000):
        try:
            run(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
