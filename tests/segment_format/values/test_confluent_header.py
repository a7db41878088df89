"""Confluent's header: what has one, and why others have none."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from segment_format.values.confluent_header import BY_GUID, NO_MAGIC, REASONS, refused, schema_ids


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\0\0\0\1\2", None),
        (b"\1" + bytes(16), BY_GUID),
        (b"\1" + bytes(15), NO_MAGIC),
        (b"\2" + bytes(16), NO_MAGIC),
    ],
)
def test_what_is_no_id(value: bytes, reason: str | None) -> None:
    assert refused(value) == reason


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_is_told_as_each_value_is(seed: int) -> None:
    chance = random.Random(seed)
    values = [
        bytes(chance.choice([0, 0, 1, 2, 255]) for _ in range(chance.choice([0, 4, 5, 6, 16, 17])))
        for _ in range(40)
    ]
    values[::7] = [b"\0\0\0\0" + bytes([chance.randrange(3)]) for _ in values[::7]]
    ids = schema_ids(pa.array(values, pa.binary()).slice(3, 30)).tolist()
    assert [REASONS.get(one) for one in ids] == [refused(value) for value in values[3:33]]
    for one, value in zip(ids, values[3:33], strict=True):
        assert one in REASONS or one == int.from_bytes(value[1:5])
