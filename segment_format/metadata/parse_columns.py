"""Many records of `__remote_log_metadata` at once: each field is read in all of them by one step.

A step reads from a position per record and moves it. A record whose bytes run out, that holds what
no broker writes, or that is unusual (tagged fields within ids and epochs, more than four at its
end) is given up: the readable parser, `parse_metadata_record`, decides about it, so a record has
the same meaning or the same error here as there. `remote_log_segment_metadata` has the layout.

Positions in many messages at once; `segment_format.metadata.protocol` has the wire types.

Numbers are read through overlapping views, one element a byte of the data, so that a field is one
indexed read whatever its alignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

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
    ragged_places,
)
from segment_format.metadata.model import RemoteLogSegmentState, RemotePartitionDeleteState
from segment_format.metadata.protocol import MAX_INT32
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
    """Where the next field of each message begins.

    A message that has been given up reads as zeros or as any other bytes of the data from then on,
    never as bytes beyond it.

    Args:
        data: All messages, followed by eight bytes more.
        at: First byte of what is left of each message.
        stop: End of each message, exclusive, within `data` without its last eight bytes.
        good: Which messages have not been given up.
    """

    __slots__ = ("at", "data", "good", "stop")

    def __init__(self, data: NDArray[np.uint8], at: Integers, stop: Integers, good: Flags) -> None:
        self.data = data
        self.at = at
        self.stop = stop
        self.good = good

    @classmethod
    def within(cls, held: NDArray[np.uint8], starts: Integers, stops: Integers) -> Self:
        """The beginnings of messages in `held`, which is copied."""
        data = np.zeros(len(held) + _PADDING, np.uint8)
        data[: len(held)] = held
        return cls(data, starts, stops, np.ones(len(starts), np.bool_))

    def __len__(self) -> int:
        return len(self.at)

    def only(self, places: Integers) -> Positions:
        """Some of the messages, to read on in them alone."""
        return Positions(self.data, self.at[places], self.stop[places], self.good[places])

    def put(self, places: Integers, moved: Positions) -> None:
        """Takes over how far `only(places)` has been read since."""
        self.at[places] = moved.at
        self.good[places] = moved.good

    def require(self, true: Flags) -> None:
        """Gives up the messages for which this is not true."""
        self.good &= true

    def take(self, size: Integers | int) -> Integers:
        """Where the next `size` bytes begin, none negative; 0 in a message that has fewer left."""
        self.good &= size <= self.stop - self.at
        start: Integers = np.where(self.good, self.at, 0)
        self.at = start + size
        return start

    def _numbers(self, kind: str, start: Integers) -> NDArray[Any]:
        size = np.dtype(kind).itemsize
        count = len(self.data) - size + 1
        return np.ndarray((count,), kind, self.data, strides=(1,))[start]

    def byte(self) -> Integers:
        """An unsigned byte; a negative number of the format is one above 127 here."""
        return self.data[self.take(1)].astype(np.int64)

    def i32(self) -> Integers:
        """A big-endian signed 32-bit integer."""
        return self._numbers(">i4", self.take(4)).astype(np.int64)

    def i64(self) -> Integers:
        """A big-endian signed 64-bit integer."""
        return self._numbers(">i8", self.take(8)).astype(np.int64)

    def uuid(self) -> Ids:
        """Two unsigned halves a message, the most significant first."""
        start = self.take(16)
        halves = np.empty((len(start), 2), np.uint64)
        halves[:, 0] = self._numbers(">u8", start)
        halves[:, 1] = self._numbers(">u8", start + np.where(self.good, 8, 0))
        return halves

    def uvarint(self) -> Integers:
        """An unsigned number of at most 31 bits."""
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
        """Where length-prefixed bytes begin, and how many they are; −1 for null."""
        length = self.uvarint() - 1
        return self.take(np.maximum(length, 0)), length

    def no_tagged_fields(self) -> None:
        """Gives up the messages that have any here."""
        self.require(self.byte() == 0)

    def entries(self, kind: str, starts: Integers) -> Integers:
        """Numbers anywhere in the data, from positions that `take` gave."""
        return self._numbers(kind, starts).astype(np.int64)

    def pieces(self, start: Integers, length: Integers) -> pa.LargeBinaryArray:
        """Copies of bytes that `compact_bytes` found; null in messages given up, too."""
        present = self.good & (length >= 0)
        # Every second item of an array over all the data; the others are what lies between.
        borders = np.zeros(2 * len(start) + 1, np.int64)
        borders[1::2] = np.where(present, start, 0)
        borders[2::2] = np.where(present, start + length, 0)
        borders = np.maximum.accumulate(borders)  # nothing for those that are not there
        buffers = [None, pa.py_buffer(borders), pa.py_buffer(self.data)]
        items = pa.Array.from_buffers(pa.large_binary(), 2 * len(start), buffers)
        return items.take(int64_array(np.arange(1, 2 * len(start), 2), present))


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
