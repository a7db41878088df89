from __future__ import annotations

import base64
import itertools
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format._cursor import TaggedField, write_uvarint
from segment_format.arrow import iter_arrow
from segment_format.errors import InvalidMetadataError
from segment_format.metadata import columns as columns_module
from segment_format.metadata.columns import metadata_records, parse_metadata_columns
from segment_format.metadata.remote_log_segment_metadata import parse_metadata_record
from tests.golden_data import GOLDEN
from tests.quick import examples
from tests.segment_format.metadata.any_records import Written, written_records, written_values
from tests.segment_format.metadata.test_records import COPY_STARTED, EXPECTED, RECORDS, VALUES
from tests.segment_format.metadata.writers import WireDetails, write_metadata_record

if TYPE_CHECKING:
    from segment_format.metadata.model import MetadataRecord

REAL = [base64.b64decode(line["value"]) for line in RECORDS]


def read(values: list[bytes], kind: pa.DataType | None = None) -> list[MetadataRecord]:
    return list(metadata_records(parse_metadata_columns(pa.array(values, kind or pa.binary()))))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_records_written_by_kafka_parse_without_the_readable_parser(
    monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    expected = [parse_metadata_record(value) for value in REAL] + list(EXPECTED.values())
    monkeypatch.setattr(columns_module, "parse_metadata_record", None)
    assert read(REAL + [VALUES[name] for name in EXPECTED], kind) == expected


def test_metadata_topic_of_broker_parses_from_its_log() -> None:
    rows = []
    for partition in range(3):
        folder = GOLDEN / "metadata-topic" / f"__remote_log_metadata-{partition}"
        log = (folder / "00000000000000000000.log").read_bytes()
        for batch in iter_arrow(log, columns=["offset", "value"]):
            columns = parse_metadata_columns(batch["value"], batch["offset"].to_numpy())
            for offset, record in zip(
                batch["offset"].to_pylist(), metadata_records(columns), strict=True
            ):
                rows.append((partition, offset, record))
    expected = [
        (line["partition"], line["offset"], parse_metadata_record(value))
        for line, value in zip(RECORDS, REAL, strict=True)
    ][: len(rows)]
    assert len(rows) == 271
    assert sorted(rows, key=lambda row: row[:2]) == sorted(expected, key=lambda row: row[:2])


@settings(deadline=None, max_examples=examples(200))
@given(
    st.lists(written_records, max_size=12),
    st.sampled_from([pa.binary(), pa.large_binary()]),
    st.data(),
)
def test_columns_match_readable_parser(
    written: list[Written], kind: pa.DataType, data: st.DataObject
) -> None:
    expected = [record for record, _ in written]
    values = pa.array([value for _, value in written], kind)
    start = data.draw(st.integers(0, len(expected)))
    records_read = list(metadata_records(parse_metadata_columns(values.slice(start))))
    assert records_read == expected[start:]


def outcome(value: bytes) -> MetadataRecord | InvalidMetadataError:
    try:
        return parse_metadata_record(value)
    except InvalidMetadataError as error:
        return error


def damaged(value: bytes, data: st.DataObject) -> bytes:
    changed = bytearray(value)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del changed[data.draw(st.integers(0, len(changed))) :]
    return bytes(changed) + data.draw(st.sampled_from([b"", b"", b"\0"]))


@settings(deadline=None, max_examples=examples(150))
@given(
    st.lists(
        written_values | st.sampled_from(REAL),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
def test_damaged_records_match_readable_parser(values: list[bytes], data: st.DataObject) -> None:
    values = [damaged(value, data) for value in values]
    outcomes = [outcome(value) for value in values]
    refused = [
        position
        for position, result in enumerate(outcomes)
        if isinstance(result, InvalidMetadataError)
    ]
    if not refused:
        assert read(values) == outcomes
        return
    offsets = np.arange(100, 100 + len(values))
    with pytest.raises(InvalidMetadataError) as caught:
        parse_metadata_columns(pa.array(values, pa.binary()), offsets)
    expected = outcomes[refused[0]]
    assert isinstance(expected, InvalidMetadataError)
    assert str(caught.value) == str(expected.at(expected.position, 100 + refused[0]))


def test_changed_bytes_match_readable_parser() -> None:
    readable, expected = [], []
    for position, byte in itertools.product(
        range(len(REAL[0])), (0, 1, 2, 3, 4, 14, 127, 128, 255)
    ):
        value = REAL[0][:position] + bytes([byte]) + REAL[0][position + 1 :]
        result = outcome(value)
        if isinstance(result, InvalidMetadataError):
            with pytest.raises(InvalidMetadataError):
                read([value])
        else:
            readable.append(value)
            expected.append(result)
    assert len(readable) > 100
    assert read(readable) == expected


def test_overlong_varints_parse() -> None:
    value = write_metadata_record(COPY_STARTED)
    longer = b"\x81\x80\0" + b"\x80\x80\x80\x80\0" + value[2:]
    assert value[3] == len("foo") + 1
    longest = value[:3] + b"\x84\x80\x80\x80\0" + value[4:]
    assert read([longer, value, longest]) == [COPY_STARTED] * 3


def test_records_with_tags_or_unordered_epochs_parse_between_plain_records() -> None:
    many = tuple(TaggedField(tag, bytes([tag])) for tag in range(1, 9))
    unusual: list[tuple[MetadataRecord, bytes]] = [
        (COPY_STARTED, write_metadata_record(COPY_STARTED, wire))
        for wire in (
            WireDetails(record_tags=many),
            WireDetails(segment_id_tags=many[:1]),
            WireDetails(epochs=((2, many[:1]), (0, ()))),
            WireDetails(1, many[:3], epochs=((2, ()), (0, ()))),
        )
    ]
    partition = replace(COPY_STARTED.segment_id.topic_id_partition, topic="ü" * 100)
    segment_id = replace(COPY_STARTED.segment_id, topic_id_partition=partition)
    long = replace(COPY_STARTED, segment_id=segment_id, custom_metadata=bytes(20_000))
    usual = [(record, write_metadata_record(record)) for record in (*EXPECTED.values(), long)]
    written = [*usual, *unusual, *usual] * 3
    assert read([value for _, value in written]) == [record for record, _ in written]


def test_columns_keep_order_of_many_records() -> None:
    expected = [
        replace(COPY_STARTED, broker_id=number) if number % 3 else EXPECTED["type2"]
        for number in range(20_000)
    ]
    values = {id(record): write_metadata_record(record) for record in expected}
    assert read([values[id(record)] for record in expected]) == expected


def test_error_of_value_without_offset_names_its_index() -> None:
    with pytest.raises(InvalidMetadataError, match=r"value 9001: .*at byte"):
        read([REAL[0]] * 9001 + [REAL[0][:-1]])


def test_invalid_arrays_raise() -> None:
    with pytest.raises(ValueError, match="1 of 2 values are null"):
        parse_metadata_columns(pa.array([REAL[0], None], pa.binary()))
    with pytest.raises(TypeError, match="expected binary values, not string"):
        parse_metadata_columns(pa.array(["a"]))
    assert read([]) == []


HUGE = write_uvarint(2**31 - 1)
HEAD = VALUES["type0"][: VALUES["type0"].index(bytes.fromhex("03000000000000000000000000"))]


@pytest.mark.parametrize(
    "value",
    [
        b"\1\0\0" + HUGE + bytes(200),
        HEAD + HUGE + bytes(200),
        VALUES["type0"][:-3] + HUGE + bytes(200),
        VALUES["type0"][:-1] + HUGE + bytes(200),
        VALUES["type0"][:-1] + b"\1\5" + HUGE + bytes(200),
    ],
    ids=["topic", "epochs", "custom metadata", "tagged fields", "tagged field"],
)
def test_huge_lengths_in_records_allocate_no_memory(value: bytes) -> None:
    values = pa.array([REAL[0]] * 999 + [value], pa.binary())
    pool = pa.default_memory_pool().bytes_allocated()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidMetadataError):
            parse_metadata_columns(values)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000  # from 0.15 MB of values
    assert pa.default_memory_pool().bytes_allocated() - pool < 1_000_000


def test_memory_is_proportional_to_a_long_epoch_list() -> None:
    epochs = tuple(
        replace(COPY_STARTED.segment_leader_epochs[0], epoch=number, start_offset=number)
        for number in range(10_000)
    )
    record = replace(COPY_STARTED, segment_leader_epochs=epochs)
    values = pa.array([REAL[0]] * 1000 + [write_metadata_record(record)], pa.binary())
    tracemalloc.start()
    columns = parse_metadata_columns(values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert columns.epoch_count[-1] == 10_000
    assert peak < 20 * values.nbytes


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("00000002" + "0000000000000050", "00000000" + "0000000000000050", "occurs twice"),
        ("0000000000000050" + "00", "8000000000000050" + "00", "starts before"),
    ],
)
def test_repeated_or_negative_leader_epochs_raise(old: str, new: str, reason: str) -> None:
    value = VALUES["type0"].replace(bytes.fromhex(old), bytes.fromhex(new))
    with pytest.raises(InvalidMetadataError, match=reason):
        read([value])


@pytest.mark.parametrize("tags", ["0205000400", "0205000500"])
def test_tags_out_of_order_raise(tags: str) -> None:
    with pytest.raises(InvalidMetadataError, match="follows tag 5"):
        read([VALUES["type0"][:-1] + bytes.fromhex(tags)])
