"""Many records of `__remote_log_metadata` at once: each field is read in all of them by one step.

A step reads from a position per record and moves it. A record whose bytes run out, that holds what
no broker writes, or that is unusual (tagged fields within ids and epochs, more than four at its
end) is given up: the readable parser, `parse_metadata_record`, decides about it, so a record has
the same meaning or the same error here as there. `remote_log_segment_metadata` has the layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from segment_format.errors import InvalidMetadataError
from segment_format.metadata.column_records import columns_of
from segment_format.metadata.columns import (
    PARTITION_DELETE,
    RECORD_TYPES,
    SEGMENT,
    SNAPSHOT,
    UPDATE,
    MetadataColumns,
    concatenated,
    no_rows,
    ragged_places,
)
from segment_format.metadata.model import RemoteLogSegmentState, RemotePartitionDeleteState
from segment_format.metadata.positions import Positions
from segment_format.metadata.record_writer import FRAME_VERSION, TXN_INDEX_EMPTY_TAG
from segment_format.metadata.remote_log_segment_metadata import (
    RECORD_VERSIONS,
    parse_metadata_record,
)

if TYPE_CHECKING:
    from segment_format.metadata.columns import Integers

_EPOCH_BYTES = 4 + 8 + 1
_MOST_TAGGED_FIELDS = 4
_ROWS_AT_ONCE = 8192
"""What a step reads and writes then stays in the processor's cache."""
_NUMBERS = (
    "partition",
    "start_offset",
    "end_offset",
    "max_timestamp_ms",
    "broker_id",
    "event_timestamp_ms",
    "segment_size_in_bytes",
    "state",
)


def parse_metadata_columns(
    values: pa.BinaryArray | pa.LargeBinaryArray, offsets: Integers | None = None
) -> MetadataColumns:
    """What `parse_metadata_record` finds in each value, as columns, in the order of the values.

    Args:
        values: Values of records, without nulls, as `iter_arrow` gives them; null values
            (tombstones) are the caller's to drop.
        offsets: Kafka offsets of the records, for errors to name.

    Returns:
        One row a value. Memory is bounded by a small multiple of the bytes and number of values.

    Raises:
        InvalidMetadataError: As of `parse_metadata_record`, for the first value that it refuses.
        ValueError: There are nulls among the values.
    """
    if values.null_count:
        raise ValueError(f"{values.null_count} null values of {len(values)}; drop them first")
    parts = [no_rows()]
    for first in range(0, len(values), _ROWS_AT_ONCE):
        kafka_offsets = None if offsets is None else offsets[first : first + _ROWS_AT_ONCE]
        parts.append(_parse_some(values.slice(first, _ROWS_AT_ONCE), kafka_offsets, first))
    return concatenated(parts)


def _parse_some(
    values: pa.BinaryArray | pa.LargeBinaryArray, offsets: Integers | None, first: int
) -> MetadataColumns:
    heads = _positions(values)
    heads.require(heads.byte() == FRAME_VERSION)
    record_type = heads.byte()
    heads.require(np.isin(heads.byte(), RECORD_VERSIONS))
    parts, places = [], []
    for wanted in range(RECORD_TYPES):
        found = np.flatnonzero(heads.good & (record_type == wanted))
        if len(found):
            part, kept = _parse_type(wanted, heads.only(found))
            parts.append(part)
            places.append(found[kept])
    missing = np.ones(len(values), np.bool_)
    for read in places:
        missing[read] = False
    if missing.any():
        places.append(np.flatnonzero(missing))
        parts.append(_read_one_by_one(values, places[-1], offsets, first))
    order = np.concatenate(places)
    return concatenated(parts).rows(np.argsort(order))


def _positions(values: pa.BinaryArray | pa.LargeBinaryArray) -> Positions:
    large = pa.types.is_large_binary(values.type)
    if not large and not pa.types.is_binary(values.type):
        raise TypeError(f"binary values wanted, not {values.type}")
    _, borders, data = values.buffers()
    every = np.frombuffer(borders, np.int64 if large else np.int32)
    ends: Integers = every[values.offset : values.offset + len(values) + 1].astype(np.int64)
    held = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    ends -= ends[0]
    return Positions.within(held, ends[:-1], ends[1:])


def _read_one_by_one(
    values: pa.BinaryArray | pa.LargeBinaryArray,
    places: Integers,
    offsets: Integers | None,
    first: int,
) -> MetadataColumns:
    records = []
    for place in places.tolist():
        try:
            records.append(parse_metadata_record(values[place].as_py()))
        except InvalidMetadataError as error:
            if offsets is not None:
                raise error.at(error.position, int(offsets[place])) from error
            text = f"value {first + place}: {error.message}"
            raise InvalidMetadataError(text, position=error.position) from error
    return columns_of(records)


def _parse_type(record_type: int, at: Positions) -> tuple[MetadataColumns, Integers]:
    """The records of one type that are good, and their places among those at `at`."""
    nothing = np.zeros(len(at), np.int64)
    absent = nothing - 1
    no_id = np.zeros((len(at), 2), np.uint64)
    found: dict[str, Any] = dict.fromkeys(_NUMBERS, absent)
    found |= {"record_type": absent + record_type + 1, "topic_id": no_id, "segment_id": no_id}
    topic = custom_metadata = (nothing, absent)
    epochs = (nothing, nothing)
    has_body = record_type in (SEGMENT, SNAPSHOT)

    if record_type != SNAPSHOT:
        topic = at.compact_bytes()
        at.require(topic[1] >= 0)
        found["topic_id"] = at.uuid()
        found["partition"] = at.i32()
        at.require(found["partition"] >= 0)
        at.no_tagged_fields()
    if record_type != PARTITION_DELETE:
        found["segment_id"] = at.uuid()
    if record_type in (SEGMENT, UPDATE):
        at.no_tagged_fields()
    if has_body:
        found["start_offset"], found["end_offset"] = at.i64(), at.i64()
        at.require((found["start_offset"] >= 0) & (found["start_offset"] <= found["end_offset"]))
    found["broker_id"] = at.i32()
    if has_body:
        found["max_timestamp_ms"] = at.i64()
    found["event_timestamp_ms"] = at.i64()
    if has_body:
        count = at.uvarint() - 1
        at.require(count >= 1)
        epochs = at.take(_EPOCH_BYTES * np.maximum(count, 0)), count
        found["segment_size_in_bytes"] = at.i32()
        at.require(found["segment_size_in_bytes"] >= 0)
    if record_type != PARTITION_DELETE:
        custom_metadata = at.compact_bytes()
    found["state"] = at.byte()
    states = (
        RemoteLogSegmentState if record_type != PARTITION_DELETE else RemotePartitionDeleteState
    )
    at.require(found["state"] < len(states))
    found["txn_index_empty"] = _tagged_fields(at, has_remark=has_body)
    at.require(at.at == at.stop)

    found["topic"] = _names(at, *topic)
    found["epoch_count"], found["epoch"], found["epoch_start_offset"] = _epochs(at, *epochs)
    found["custom_metadata"] = at.pieces(*custom_metadata)
    columns = MetadataColumns(**found)
    good = np.flatnonzero(at.good)
    return columns if len(good) == len(at) else columns.rows(good), good


def _tagged_fields(at: Positions, *, has_remark: bool) -> Integers:
    """Reads over the fields at the end of the records; gives what TxnIndexEmpty says, or −1."""
    remark = np.full(len(at), -1, np.int64)
    count = at.uvarint()
    at.require(count <= _MOST_TAGGED_FIELDS)
    previous = remark.copy()
    for number in range(_MOST_TAGGED_FIELDS):
        here = np.flatnonzero(at.good & (count > number))
        if not len(here):
            break
        some = at.only(here)
        tag = some.uvarint()
        some.require(tag > previous[here])
        size = some.uvarint()
        data = some.take(size)
        if has_remark:
            is_remark = tag == TXN_INDEX_EMPTY_TAG
            value = some.entries(">u1", data)
            some.require(~is_remark | ((size == 1) & (value <= 1)))
            remark[here] = np.where(is_remark, value, remark[here])
        previous[here] = tag
        at.put(here, some)
    return remark


def _names(at: Positions, start: Integers, length: Integers) -> pa.LargeStringArray:
    """Texts; gives up the records that have other bytes."""
    names = at.pieces(start, length)
    try:
        return names.cast(pa.large_string())
    except pa.ArrowInvalid:
        at.require(np.array([_is_text(name) for name in names.to_pylist()]))
    return at.pieces(start, length).cast(pa.large_string())


def _is_text(name: bytes | None) -> bool:
    try:
        (name or b"").decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _epochs(at: Positions, start: Integers, count: Integers) -> tuple[Integers, Integers, Integers]:
    """How many leader epochs each record has, the epochs, and the first offset of each.

    Gives up the records that have tagged fields among them, or epochs no broker writes.
    """
    count = np.where(at.good, count, 0)
    places = ragged_places(start, count, _EPOCH_BYTES)
    owner = np.repeat(np.arange(len(at)), count)
    epoch = at.entries(">i4", places)
    offset = at.entries(">i8", places + 4)
    tags = at.entries(">u1", places + _EPOCH_BYTES - 1)
    same = owner[1:] == owner[:-1]
    if (same & (epoch[1:] < epoch[:-1])).any():  # Kafka writes them in hash order
        order = np.lexsort((epoch, owner))
        epoch, offset, tags = epoch[order], offset[order], tags[order]
    wrong = (epoch < 0) | (offset < 0) | (tags != 0)
    wrong[1:] |= same & ((epoch[1:] == epoch[:-1]) | (offset[1:] < offset[:-1]))
    if wrong.any():
        at.good[owner[wrong]] = False
        kept = at.good[owner]
        epoch, offset = epoch[kept], offset[kept]
    return np.where(at.good, count, 0), epoch, offset
