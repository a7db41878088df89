"""Parses many records of `__remote_log_metadata` at once, field by field.

Each step reads one field of all records, from a position per record. A record is given up if its
bytes run out, if no broker writes its values, or if it is unusual (tagged fields within ids and
epochs, more than four at its end). The readable parser, `parse_metadata_record`, then parses it, so
both parsers return the same values and errors. `remote_log_segment_metadata` has the layout.

Numbers are read through overlapping views with one element per byte of the data, so a field is one
indexed read whatever its alignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from segment_format._cursor import MAX_INT32
from segment_format.errors import InvalidMetadataError
from segment_format.metadata.columns import (
    PARTITION_DELETE,
    RECORD_TYPES,
    SEGMENT,
    SNAPSHOT,
    UPDATE,
    MetadataColumns,
    columns_of,
    concatenated,
    int64_array,
    no_rows,
    ragged_ranges,
)
from segment_format.metadata.model import RemoteLogSegmentState, RemotePartitionDeleteState
from segment_format.metadata.remote_log_segment_metadata import (
    FRAME_VERSION,
    RECORD_VERSIONS,
    TXN_INDEX_EMPTY_TAG,
    parse_metadata_record,
)

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

    from segment_format.metadata.columns import Ids, Integers

    Flags = NDArray[np.bool_]


_PADDING = 8
_UVARINT_BYTES = 5


class Positions:
    """The position of the next field in each message.

    A message that was given up reads as arbitrary bytes of the data, never as bytes after it.

    Args:
        data: All messages, followed by eight more bytes.
        at: First unread byte of each message.
        stop: End of each message, exclusive, within `data` without its last eight bytes.
        good: Which messages were not given up.
    """

    __slots__ = ("at", "data", "good", "stop")

    def __init__(self, data: NDArray[np.uint8], at: Integers, stop: Integers, good: Flags) -> None:
        self.data = data
        self.at = at
        self.stop = stop
        self.good = good

    @classmethod
    def within(cls, held: NDArray[np.uint8], starts: Integers, stops: Integers) -> Self:
        """Returns the starts of messages in `held`, which is copied."""
        data = np.zeros(len(held) + _PADDING, np.uint8)
        data[: len(held)] = held
        return cls(data, starts, stops, np.ones(len(starts), np.bool_))

    def __len__(self) -> int:
        return len(self.at)

    def only(self, rows: Integers) -> Positions:
        """Returns the positions of some messages, to be read separately."""
        return Positions(self.data, self.at[rows], self.stop[rows], self.good[rows])

    def put(self, rows: Integers, moved: Positions) -> None:
        """Copies back the positions of `only(rows)`."""
        self.at[rows] = moved.at
        self.good[rows] = moved.good

    def require(self, true: Flags) -> None:
        """Gives up the messages for which this is false."""
        self.good &= true

    def take(self, size: Integers | int) -> Integers:
        """Skips `size` bytes, not negative, and returns their start; 0 if fewer are left."""
        self.good &= size <= self.stop - self.at
        start: Integers = np.where(self.good, self.at, 0)
        self.at = start + size
        return start

    def _numbers(self, kind: str, start: Integers) -> NDArray[Any]:
        size = np.dtype(kind).itemsize
        count = len(self.data) - size + 1
        return np.ndarray((count,), kind, self.data, strides=(1,))[start]

    def byte(self) -> Integers:
        """Reads an unsigned byte; negative numbers of the format are above 127 here."""
        return self.data[self.take(1)].astype(np.int64)

    def i32(self) -> Integers:
        """Reads a big-endian signed 32-bit integer."""
        return self._numbers(">i4", self.take(4)).astype(np.int64)

    def i64(self) -> Integers:
        """Reads a big-endian signed 64-bit integer."""
        return self._numbers(">i8", self.take(8)).astype(np.int64)

    def uuid(self) -> Ids:
        """Reads two unsigned halves per message, the most significant first."""
        start = self.take(16)
        halves = np.empty((len(start), 2), np.uint64)
        halves[:, 0] = self._numbers(">u8", start)
        halves[:, 1] = self._numbers(">u8", start + np.where(self.good, 8, 0))
        return halves

    def uvarint(self) -> Integers:
        """Reads an unsigned number of at most 31 bits."""
        value = self.byte()
        longer = np.flatnonzero(self.good & (value > 0x7F))
        if not len(longer):
            return value
        rest = self.only(longer)
        long_value = value[longer] & 0x7F
        more = rest.good.copy()
        for shift in range(7, 7 * _UVARINT_BYTES, 7):
            here = np.flatnonzero(more)
            some = rest.only(here)
            byte = some.byte()
            rest.put(here, some)
            long_value[here] |= (byte & 0x7F) << shift
            more[here] = some.good & (byte > 0x7F)
        rest.require(~more & (long_value <= MAX_INT32))
        self.put(longer, rest)
        value[longer] = np.where(rest.good, long_value, 0)
        return value

    def compact_bytes(self) -> tuple[Integers, Integers]:
        """Skips length-prefixed bytes; returns their starts and lengths, −1 for null."""
        length = self.uvarint() - 1
        return self.take(np.maximum(length, 0)), length

    def no_tagged_fields(self) -> None:
        """Gives up the messages that have tagged fields here."""
        self.require(self.byte() == 0)

    def entries(self, kind: str, starts: Integers) -> Integers:
        """Reads numbers at positions that `take` returned."""
        return self._numbers(kind, starts).astype(np.int64)

    def pieces(self, start: Integers, length: Integers) -> pa.LargeBinaryArray:
        """Copies bytes that `compact_bytes` skipped; null also in messages given up."""
        present = self.good & (length >= 0)
        # Every second item of an array over all the data; the others are the bytes in between.
        borders = np.zeros(2 * len(start) + 1, np.int64)
        borders[1::2] = np.where(present, start, 0)
        borders[2::2] = np.where(present, start + length, 0)
        borders = np.maximum.accumulate(borders)  # empty items for null
        buffers = [None, pa.py_buffer(borders), pa.py_buffer(self.data)]
        items = pa.Array.from_buffers(pa.large_binary(), 2 * len(start), buffers)
        return items.take(int64_array(np.arange(1, 2 * len(start), 2), present))


_EPOCH_BYTES = 4 + 8 + 1
_MAX_TAGGED_FIELDS = 4
_ROWS_AT_ONCE = 8192
"""Keeps the data of a step in the processor's cache."""
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
    """Parses values like `parse_metadata_record`, to columns in the order of the values.

    Args:
        values: Values of records from `iter_arrow`. The caller drops null values (tombstones).
        offsets: Kafka offsets of the records, for errors.

    Returns:
        One row per value. Memory is bounded by a small multiple of the bytes and number of values.

    Raises:
        InvalidMetadataError: `parse_metadata_record` refuses a value; raised for the first one.
        ValueError: Some values are null.
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
    parts, rows = [], []
    for wanted in range(RECORD_TYPES):
        of_type = np.flatnonzero(heads.good & (record_type == wanted))
        if len(of_type):
            part, kept = _parse_type(wanted, heads.only(of_type))
            parts.append(part)
            rows.append(of_type[kept])
    missing = np.ones(len(values), np.bool_)
    for parsed in rows:
        missing[parsed] = False
    if missing.any():
        rows.append(np.flatnonzero(missing))
        parts.append(_parse_individually(values, rows[-1], offsets, first))
    order = np.concatenate(rows)
    return concatenated(parts).rows(np.argsort(order))


def _positions(values: pa.BinaryArray | pa.LargeBinaryArray) -> Positions:
    large = pa.types.is_large_binary(values.type)
    if not large and not pa.types.is_binary(values.type):
        raise TypeError(f"expected binary values, not {values.type}")
    _, borders, data = values.buffers()
    every = np.frombuffer(borders, np.int64 if large else np.int32)
    ends: Integers = every[values.offset : values.offset + len(values) + 1].astype(np.int64)
    held = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    ends -= ends[0]
    return Positions.within(held, ends[:-1], ends[1:])


def _parse_individually(
    values: pa.BinaryArray | pa.LargeBinaryArray,
    rows: Integers,
    offsets: Integers | None,
    first: int,
) -> MetadataColumns:
    records = []
    for row in rows.tolist():
        try:
            records.append(parse_metadata_record(values[row].as_py()))
        except InvalidMetadataError as error:
            if offsets is not None:
                raise error.at(error.position, int(offsets[row])) from error
            text = f"value {first + row}: {error.message}"
            raise InvalidMetadataError(text, position=error.position) from error
    return columns_of(records)


def _parse_type(record_type: int, at: Positions) -> tuple[MetadataColumns, Integers]:
    """Parses records of one type; returns those not given up, and their numbers."""
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
    found["txn_index_empty"] = _tagged_fields(at, has_txn_index_empty=has_body)
    at.require(at.at == at.stop)

    found["topic"] = _names(at, *topic)
    found["epoch_count"], found["epoch"], found["epoch_start_offset"] = _epochs(at, *epochs)
    found["custom_metadata"] = at.pieces(*custom_metadata)
    columns = MetadataColumns(**found)
    good = np.flatnonzero(at.good)
    return columns if len(good) == len(at) else columns.rows(good), good


def _tagged_fields(at: Positions, *, has_txn_index_empty: bool) -> Integers:
    """Skips the fields at the end of the records; returns TxnIndexEmpty, or −1."""
    txn_index_empty = np.full(len(at), -1, np.int64)
    count = at.uvarint()
    at.require(count <= _MAX_TAGGED_FIELDS)
    previous = txn_index_empty.copy()
    for number in range(_MAX_TAGGED_FIELDS):
        here = np.flatnonzero(at.good & (count > number))
        if not len(here):
            break
        some = at.only(here)
        tag = some.uvarint()
        some.require(tag > previous[here])
        size = some.uvarint()
        data = some.take(size)
        if has_txn_index_empty:
            is_txn_index_empty = tag == TXN_INDEX_EMPTY_TAG
            value = some.entries(">u1", data)
            some.require(~is_txn_index_empty | ((size == 1) & (value <= 1)))
            txn_index_empty[here] = np.where(is_txn_index_empty, value, txn_index_empty[here])
        previous[here] = tag
        at.put(here, some)
    return txn_index_empty


def _names(at: Positions, start: Integers, length: Integers) -> pa.LargeStringArray:
    """Returns texts; gives up the records with invalid UTF-8."""
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
    """Returns the number of leader epochs of each record, the epochs, and their first offsets.

    Gives up the records with tagged fields among them, or with epochs that no broker writes.
    """
    count = np.where(at.good, count, 0)
    places = ragged_ranges(start, count, _EPOCH_BYTES)
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
