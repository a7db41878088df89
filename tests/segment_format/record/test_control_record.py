from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segment_format.errors import CorruptRecordError
from segment_format.record.control_record import (
    ControlRecordType,
    batch_control_type,
    marker_of,
    parse_control_record_type,
)
from segment_format.record.records import iter_batches
from segment_format.testing import CONTROL_TYPES
from tests.segment_format.outcomes import assert_value_or_positioned_error
from tests.segment_format.record.vectors import record_set


@pytest.mark.parametrize(
    ("name", "kind"), [("abort", ControlRecordType.ABORT), ("commit", ControlRecordType.COMMIT)]
)
def test_marker_of_kafka_vector_parses(name: str, kind: ControlRecordType) -> None:
    (batch,) = iter_batches(record_set(name))
    (record,) = batch.records
    assert record.key is not None
    assert record.value is not None

    assert batch.is_control_batch
    assert batch_control_type(batch) is kind
    assert marker_of(batch) is kind


def test_data_batch_and_empty_control_batch_have_no_control_type() -> None:
    (data,) = iter_batches(record_set("v2-min"))
    emptied = bytearray(record_set("empty"))
    emptied[22] |= 0x20
    (control,) = iter_batches(emptied, check_crcs=False)

    assert control.is_control_batch
    assert not control.records
    assert batch_control_type(data) is None
    assert batch_control_type(control) is None


@pytest.mark.parametrize(("name", "number"), CONTROL_TYPES.items())
def test_parser_returns_named_control_type(name: str, number: int) -> None:
    key = struct.pack(">hh", 0, number)

    assert parse_control_record_type(key) is ControlRecordType[name.upper()]


@pytest.mark.parametrize("number", [7, 100, -1, -2, 32767])
def test_undefined_control_type_is_unknown(number: int) -> None:
    assert parse_control_record_type(struct.pack(">hh", 0, number)) is ControlRecordType.UNKNOWN


def test_control_key_of_later_version_parses_as_version_0() -> None:
    key = struct.pack(">hh", 3, 1) + b"more"

    assert parse_control_record_type(key) is ControlRecordType.COMMIT


@pytest.mark.parametrize("key", [b"", b"\0\0\0", struct.pack(">hh", -1, 0)])
def test_malformed_key_raises(key: bytes) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        parse_control_record_type(key)
    assert caught.value.position is not None


@given(st.binary(max_size=12))
def test_any_key_parses_or_raises(key: bytes) -> None:
    assert_value_or_positioned_error(lambda: parse_control_record_type(key), size=len(key))
