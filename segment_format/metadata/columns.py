"""Parses many records of `__remote_log_metadata` at once. Returns columns with one row per record.

The fields are those of `segment_format.metadata.model`. If the type of a record does not have a
field, the field is −1 in columns of numbers, zero in columns of ids, and null in Arrow columns.
Without field `segment_leader_epochs`, the row has no leader epochs.

Each step of the parser reads one field of all records. The parser stores for each record the
position of its next field. A step rejects a record in three cases: the record has too few bytes, it
has a value that no broker writes, or it has unusual tagged fields (within ids or epochs, or more
than four at its end). Rejected records are parsed again by `parse_metadata_record`, the readable
parser, so the values and errors of both parsers are equal. Module `remote_log_segment_metadata`
documents the layout of records.

To read numbers, the bytes are viewed as an array with one number for each byte position;
neighboring numbers overlap. So one indexed read returns a field of all records, and the field need
not be aligned.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from segment_format._cursor import MAX_INT32
from segment_format.errors import InvalidMetadataError
from segment_format.index.checkpoints import EpochEntry
from segment_format.metadata.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDelete,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from segment_format.metadata.remote_log_segment_metadata import (
    FRAME_VERSION,
    RECORD_VERSIONS,
    TXN_INDEX_EMPTY_TAG,
    parse_metadata_record,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from segment_format.metadata.model import MetadataRecord

    Integers: TypeAlias = NDArray[np.int64]
    Ids: TypeAlias = NDArray[np.uint64]
    Flags: TypeAlias = NDArray[np.bool_]

RECORD_TYPES: Final = 4
SEGMENT, UPDATE, PARTITION_DELETE, SNAPSHOT = range(RECORD_TYPES)
"""Values of `MetadataColumns.record_type`: Kafka's api keys."""


@dataclass(frozen=True, slots=True, eq=False)
class MetadataColumns:
    """Columns with one row per record. Only `epoch` and `epoch_start_offset` have another length.

    Attributes:
        record_type: 0 segment, 1 update, 2 partition delete, 3 snapshot.
        topic: Name of the topic; an Arrow `large_string` array.
        topic_id: Id of the topic: two unsigned 64-bit halves per row, the more significant half
            first.
        segment_id: Id of the segment, in the form of `topic_id`.
        end_offset: Last offset, inclusive.
        max_timestamp_ms: Largest timestamp of a record in the segment, ms since 1970.
        broker_id: Broker that wrote the record.
        event_timestamp_ms: Time of the event, ms since 1970.
        segment_size_in_bytes: Size of the `.log` file.
        state: Number of the segment's state, or of the partition's state in a partition delete.
        txn_index_empty: 1 if the segment has no transaction index, else 0; −1 if the record does
            not state it.
        custom_metadata: Bytes of the storage plugin, or null; an Arrow `large_binary` array.
        epoch_count: Number of leader epochs of the row.
        epoch: Leader epochs of all rows, concatenated; ascending within a row.
        epoch_start_offset: First offset of each entry of `epoch` within its segment.
    """

    record_type: Integers
    topic: pa.LargeStringArray
    topic_id: Ids
    partition: Integers
    segment_id: Ids
    start_offset: Integers
    end_offset: Integers
    max_timestamp_ms: Integers
    broker_id: Integers
    event_timestamp_ms: Integers
    segment_size_in_bytes: Integers
    state: Integers
    txn_index_empty: Integers
    custom_metadata: pa.LargeBinaryArray
    epoch_count: Integers
    epoch: Integers
    epoch_start_offset: Integers

    def __len__(self) -> int:
        return len(self.record_type)

    def rows(self, numbers: Integers) -> MetadataColumns:
        """Returns the rows with the row numbers `numbers`, in the order of `numbers`. The columns
        are copies.
        """
        first_entry = np.cumsum(self.epoch_count) - self.epoch_count
        count = self.epoch_count[numbers]
        entries = ragged_ranges(first_entry[numbers], count)
        chosen: dict[str, object] = {"epoch": self.epoch[entries]}
        chosen["epoch_start_offset"] = self.epoch_start_offset[entries]
        indices = int64_array(numbers)
        for field in fields(self):
            column = getattr(self, field.name)
            if field.name not in chosen:
                arrow = isinstance(column, pa.Array)
                chosen[field.name] = column.take(indices) if arrow else column[numbers]
        return MetadataColumns(**chosen)  # type: ignore[arg-type]


def concatenated(tables: Sequence[MetadataColumns]) -> MetadataColumns:
    """Concatenates the rows of one or more tables."""
    joined: dict[str, object] = {}
    for field in fields(MetadataColumns):
        columns = [getattr(table, field.name) for table in tables]
        arrow = isinstance(columns[0], pa.Array)
        joined[field.name] = pa.concat_arrays(columns) if arrow else np.concatenate(columns)
    return MetadataColumns(**joined)  # type: ignore[arg-type]


def no_rows() -> MetadataColumns:
    """Returns columns of length 0."""
    empty: dict[str, object] = {
        field.name: np.empty(0, np.int64) for field in fields(MetadataColumns)
    }
    empty["topic_id"] = empty["segment_id"] = np.empty((0, 2), np.uint64)
    empty["topic"] = pa.nulls(0, pa.large_string())
    empty["custom_metadata"] = pa.nulls(0, pa.large_binary())
    return MetadataColumns(**empty)  # type: ignore[arg-type]


def ragged_ranges(starts: Integers, counts: Integers, step: int = 1) -> Integers:
    """Returns the concatenation of arithmetic sequences. Sequence `i` has `counts[i]` numbers. It
    begins with `starts[i]` and increases by `step`.
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - step * (ends - counts), counts) + step * np.arange(total)


def int64_array(values: Integers, present: NDArray[np.bool_] | None = None) -> pa.Int64Array:
    """Returns an Arrow array that uses the memory of `values`. An entry is null if `present` is
    false for it.

    This does not call `pa.array`, which would import pandas.
    """
    valid = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(values), [valid, data])


_NO_ID = uuid.UUID(int=0)
_HALF = 64
_BODY = (
    "start_offset",
    "end_offset",
    "max_timestamp_ms",
    "broker_id",
    "event_timestamp_ms",
    "segment_size_in_bytes",
)


def metadata_records(columns: MetadataColumns) -> Iterator[MetadataRecord]:
    """Converts each row to an object of the class for its record type, and yields it.

    Args:
        columns: Result of `parse_metadata_columns` or `LiveSegments.segments`.
    """
    numbers = {name: getattr(columns, name).tolist() for name in (*_BODY, "state", "partition")}
    topic_ids, segment_ids = _uuids(columns.topic_id), _uuids(columns.segment_id)
    topics, customs = columns.topic.to_pylist(), columns.custom_metadata.to_pylist()
    counts, flags = columns.epoch_count.tolist(), columns.txn_index_empty.tolist()
    entries = map(EpochEntry, columns.epoch.tolist(), columns.epoch_start_offset.tolist())
    for row, record_type in enumerate(columns.record_type.tolist()):
        epochs = tuple(itertools.islice(entries, counts[row]))
        broker, event_time, state = (
            numbers[name][row] for name in ("broker_id", "event_timestamp_ms", "state")
        )
        partition = TopicIdPartition(topics[row], topic_ids[row], numbers["partition"][row])
        if record_type == UPDATE:
            yield RemoteLogSegmentMetadataUpdate(
                RemoteLogSegmentId(partition, segment_ids[row]),
                broker,
                event_time,
                customs[row],
                RemoteLogSegmentState(state),
            )
        elif record_type == PARTITION_DELETE:
            yield RemotePartitionDelete(
                partition, broker, event_time, RemotePartitionDeleteState(state)
            )
        else:
            body = (
                *(numbers[name][row] for name in _BODY[:5]),
                epochs,
                numbers["segment_size_in_bytes"][row],
                customs[row],
                RemoteLogSegmentState(state),
                None if flags[row] < 0 else bool(flags[row]),
            )
            if record_type == SEGMENT:
                segment_id = RemoteLogSegmentId(partition, segment_ids[row])
                yield RemoteLogSegmentMetadata(segment_id, *body)
            else:
                yield RemoteLogSegmentMetadataSnapshot(segment_ids[row], *body)


def columns_of(records: Sequence[MetadataRecord]) -> MetadataColumns:
    """Converts record objects to columns. This is the inverse of `metadata_records`."""
    types = [
        RemoteLogSegmentMetadata,
        RemoteLogSegmentMetadataUpdate,
        RemotePartitionDelete,
        RemoteLogSegmentMetadataSnapshot,
    ]
    ids = [_ids_of(record) for record in records]
    epochs = [getattr(record, "segment_leader_epochs", ()) for record in records]
    flags = [getattr(record, "txn_index_empty", None) for record in records]
    entries = [entry for row in epochs for entry in row]
    body = {
        name: _numbers([getattr(record, name, -1) for record in records])
        for name in (*_BODY, "state")
    }
    return MetadataColumns(
        record_type=_numbers([types.index(type(record)) for record in records]),
        topic=pa.array([topic for topic, *_ in ids], pa.large_string()),
        topic_id=_halves([topic_id for _, topic_id, *_ in ids]),
        partition=_numbers([partition for *_, partition, _ in ids]),
        segment_id=_halves([segment_id for *_, segment_id in ids]),
        txn_index_empty=_numbers([-1 if flag is None else int(flag) for flag in flags]),
        custom_metadata=pa.array(
            [getattr(record, "custom_metadata", None) for record in records], pa.large_binary()
        ),
        epoch_count=_numbers([len(row) for row in epochs]),
        epoch=_numbers([entry.epoch for entry in entries]),
        epoch_start_offset=_numbers([entry.start_offset for entry in entries]),
        **body,
    )


def _ids_of(record: MetadataRecord) -> tuple[str | None, uuid.UUID, int, uuid.UUID]:
    if isinstance(record, RemoteLogSegmentMetadataSnapshot):
        return None, _NO_ID, -1, record.id
    if isinstance(record, RemotePartitionDelete):
        partition, segment_id = record.topic_id_partition, _NO_ID
    else:
        partition, segment_id = record.segment_id.topic_id_partition, record.segment_id.id
    return partition.topic, partition.topic_id, partition.partition, segment_id


def _numbers(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def _halves(ids: Sequence[uuid.UUID]) -> Ids:
    low = (1 << _HALF) - 1
    return np.array([(value.int >> _HALF, value.int & low) for value in ids], np.uint64).reshape(
        -1, 2
    )


def _uuids(ids: Ids) -> list[uuid.UUID]:
    return [uuid.UUID(int=high << _HALF | low) for high, low in ids.tolist()]


_PADDING = 8
_UVARINT_BYTES = 5


class Positions:
    """Reads fields of many messages at once. A method such as `i32` reads the next field of all
    messages, and returns one value per message.

    For a rejected message, the methods return arbitrary values, but never access memory after
    `data`.

    Attributes:
        data: All messages, followed by eight more bytes.
        at: Position of the first unread byte of each message.
        stop: End of each message, exclusive. No message contains one of the last eight bytes of
            `data`.
        good: Mask of the messages that were not rejected.
    """

    __slots__ = ("at", "data", "good", "stop")

    def __init__(
        self, data: NDArray[np.uint8], start: Integers, stop: Integers, good: Flags
    ) -> None:
        self.data = data
        self.at = start
        self.stop = stop
        self.good = good

    @classmethod
    def within(cls, data: NDArray[np.uint8], starts: Integers, stops: Integers) -> Self:
        """Returns positions at the starts of the messages in `data`. Copies `data` and adds eight
        bytes to the copy.

        Args:
            data: All messages.
            starts: Start of each message in `data`.
            stops: End of each message, exclusive.
        """
        padded = np.zeros(len(data) + _PADDING, np.uint8)
        padded[: len(data)] = data
        return cls(padded, starts, stops, np.ones(len(starts), np.bool_))

    def __len__(self) -> int:
        return len(self.at)

    def only(self, rows: Integers) -> Positions:
        """Returns the positions of the messages with the numbers `rows`, as a copy."""
        return Positions(self.data, self.at[rows], self.stop[rows], self.good[rows])

    def put(self, rows: Integers, moved: Positions) -> None:
        """Sets the positions of the messages with the numbers `rows` to `moved`: the result of
        `only(rows)`, after fields were read from it.
        """
        self.at[rows] = moved.at
        self.good[rows] = moved.good

    def require(self, condition: Flags) -> None:
        """Rejects each message for which `condition` is false."""
        self.good &= condition

    def take(self, size: Integers | int) -> Integers:
        """Skips `size` (>= 0) bytes in each message. Returns the position of the first skipped byte
        of each message. If a message has fewer bytes left, rejects it and returns 0 for it.
        """
        self.good &= size <= self.stop - self.at
        start: Integers = np.where(self.good, self.at, 0)
        self.at = start + size
        return start

    def _numbers(self, kind: str, start: Integers) -> NDArray[Any]:
        size = np.dtype(kind).itemsize
        count = len(self.data) - size + 1
        return np.ndarray((count,), kind, self.data, strides=(1,))[start]

    def byte(self) -> Integers:
        """Reads an unsigned byte. If the field is a signed byte, negative values are returned as
        128 to 255.
        """
        return self.data[self.take(1)].astype(np.int64)

    def i32(self) -> Integers:
        """Reads a big-endian signed 32-bit integer."""
        return self._numbers(">i4", self.take(4)).astype(np.int64)

    def i64(self) -> Integers:
        """Reads a big-endian signed 64-bit integer."""
        return self._numbers(">i8", self.take(8)).astype(np.int64)

    def uuid(self) -> Ids:
        """Reads a UUID as two unsigned 64-bit halves per message, the more significant half
        first.
        """
        start = self.take(16)
        halves = np.empty((len(start), 2), np.uint64)
        halves[:, 0] = self._numbers(">u8", start)
        halves[:, 1] = self._numbers(">u8", start + np.where(self.good, 8, 0))
        return halves

    def uvarint(self) -> Integers:
        """Reads an unsigned varint. Rejects messages in which the number has more than 31 bits."""
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
        """Reads the length of a compact bytes field, and skips its bytes. Returns two arrays: the
        position of the first byte in each message, and the length, which is −1 for null.
        """
        length = self.uvarint() - 1
        return self.take(np.maximum(length, 0)), length

    def no_tagged_fields(self) -> None:
        """Reads the number of tagged fields, and rejects the messages in which it is not 0."""
        self.require(self.byte() == 0)

    def entries(self, kind: str, starts: Integers) -> Integers:
        """Reads a number of NumPy type `kind` at each of the positions `starts`. The positions must
        be results of `take`, or within bytes that `take` skipped.
        """
        return self._numbers(kind, starts).astype(np.int64)

    def pieces(self, start: Integers, length: Integers) -> pa.LargeBinaryArray:
        """Returns a copy of the bytes that `compact_bytes` skipped. An entry is null if its length
        is −1 or its message was rejected.
        """
        present = self.good & (length >= 0)
        # Items of this array cover all of `data`. Odd items are the wanted bytes, even items are
        # the bytes between them.
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
"""Rows that are parsed together. Their data fit into the CPU cache."""
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
    """Parses values of records, like `parse_metadata_record`. Returns columns with one row per
    value, in the order of `values`. The caller must drop null values (tombstones). `offsets` are
    the Kafka offsets of the records, for errors.

    Raises:
        InvalidMetadataError: A value is invalid. The error names the first invalid value.
        ValueError: Some values are null.
    """
    if values.null_count:
        raise ValueError(
            f"{values.null_count} of {len(values)} values are null; "
            "drop null values (tombstones) first"
        )
    tables = [no_rows()]
    for first in range(0, len(values), _ROWS_AT_ONCE):
        kafka_offsets = None if offsets is None else offsets[first : first + _ROWS_AT_ONCE]
        tables.append(_parse_some(values.slice(first, _ROWS_AT_ONCE), kafka_offsets, first))
    return concatenated(tables)


def _parse_some(
    values: pa.BinaryArray | pa.LargeBinaryArray, offsets: Integers | None, first: int
) -> MetadataColumns:
    heads = _positions(values)
    heads.require(heads.byte() == FRAME_VERSION)
    record_type = heads.byte()
    heads.require(np.isin(heads.byte(), RECORD_VERSIONS))
    tables, rows = [], []
    for wanted in range(RECORD_TYPES):
        of_type = np.flatnonzero(heads.good & (record_type == wanted))
        if len(of_type):
            table, kept = _parse_type(wanted, heads.only(of_type))
            tables.append(table)
            rows.append(of_type[kept])
    missing = np.ones(len(values), np.bool_)
    for parsed in rows:
        missing[parsed] = False
    if missing.any():
        rows.append(np.flatnonzero(missing))
        tables.append(_parse_individually(values, rows[-1], offsets, first))
    order = np.concatenate(rows)
    return concatenated(tables).rows(np.argsort(order))


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


def _parse_type(record_type: int, positions: Positions) -> tuple[MetadataColumns, Integers]:
    """Parses records of one type. Returns two values: the columns of the records that were not
    rejected, and the indexes of these records in `positions`.
    """
    nothing = np.zeros(len(positions), np.int64)
    absent = nothing - 1
    no_id = np.zeros((len(positions), 2), np.uint64)
    values: dict[str, Any] = dict.fromkeys(_NUMBERS, absent)
    values |= {"record_type": absent + record_type + 1, "topic_id": no_id, "segment_id": no_id}
    topic = custom_metadata = (nothing, absent)
    epochs = (nothing, nothing)
    has_body = record_type in (SEGMENT, SNAPSHOT)

    if record_type != SNAPSHOT:
        topic = positions.compact_bytes()
        positions.require(topic[1] >= 0)
        values["topic_id"] = positions.uuid()
        values["partition"] = positions.i32()
        positions.require(values["partition"] >= 0)
        positions.no_tagged_fields()
    if record_type != PARTITION_DELETE:
        values["segment_id"] = positions.uuid()
    if record_type in (SEGMENT, UPDATE):
        positions.no_tagged_fields()
    if has_body:
        values["start_offset"], values["end_offset"] = positions.i64(), positions.i64()
        positions.require(
            (values["start_offset"] >= 0) & (values["start_offset"] <= values["end_offset"])
        )
    values["broker_id"] = positions.i32()
    if has_body:
        values["max_timestamp_ms"] = positions.i64()
    values["event_timestamp_ms"] = positions.i64()
    if has_body:
        count = positions.uvarint() - 1
        positions.require(count >= 1)
        epochs = positions.take(_EPOCH_BYTES * np.maximum(count, 0)), count
        values["segment_size_in_bytes"] = positions.i32()
        positions.require(values["segment_size_in_bytes"] >= 0)
    if record_type != PARTITION_DELETE:
        custom_metadata = positions.compact_bytes()
    values["state"] = positions.byte()
    states = (
        RemoteLogSegmentState if record_type != PARTITION_DELETE else RemotePartitionDeleteState
    )
    positions.require(values["state"] < len(states))
    values["txn_index_empty"] = _tagged_fields(positions, has_txn_index_empty=has_body)
    positions.require(positions.at == positions.stop)

    values["topic"] = _names(positions, *topic)
    values["epoch_count"], values["epoch"], values["epoch_start_offset"] = _epochs(
        positions, *epochs
    )
    values["custom_metadata"] = positions.pieces(*custom_metadata)
    columns = MetadataColumns(**values)
    good = np.flatnonzero(positions.good)
    return columns if len(good) == len(positions) else columns.rows(good), good


def _tagged_fields(positions: Positions, *, has_txn_index_empty: bool) -> Integers:
    """Reads the tagged fields at the end of the records. Returns the value of `TxnIndexEmpty` (0 or
    1) for each record; −1 if a record does not have this field.
    """
    txn_index_empty = np.full(len(positions), -1, np.int64)
    count = positions.uvarint()
    positions.require(count <= _MAX_TAGGED_FIELDS)
    previous = txn_index_empty.copy()
    for number in range(_MAX_TAGGED_FIELDS):
        here = np.flatnonzero(positions.good & (count > number))
        if not len(here):
            break
        some = positions.only(here)
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
        positions.put(here, some)
    return txn_index_empty


def _names(positions: Positions, start: Integers, length: Integers) -> pa.LargeStringArray:
    """Returns the topic name of each record: the `length` bytes at the positions `start`. Rejects
    records whose topic name is not valid UTF-8.
    """
    names = positions.pieces(start, length)
    try:
        return names.cast(pa.large_string())
    except pa.ArrowInvalid:
        positions.require(np.array([_is_text(name) for name in names.to_pylist()]))
    return positions.pieces(start, length).cast(pa.large_string())


def _is_text(name: bytes | None) -> bool:
    try:
        (name or b"").decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _epochs(
    positions: Positions, start: Integers, count: Integers
) -> tuple[Integers, Integers, Integers]:
    """Reads the leader epochs of the records. Returns three arrays: the number of epochs of each
    record, the epochs of all records (ascending within a record), and the first offset of each
    epoch.

    Rejects records with tagged fields in the epochs, or with epochs that no broker writes.
    """
    count = np.where(positions.good, count, 0)
    entry_rows = ragged_ranges(start, count, _EPOCH_BYTES)
    owner = np.repeat(np.arange(len(positions)), count)
    epoch = positions.entries(">i4", entry_rows)
    offset = positions.entries(">i8", entry_rows + 4)
    tags = positions.entries(">u1", entry_rows + _EPOCH_BYTES - 1)
    same = owner[1:] == owner[:-1]
    if (same & (epoch[1:] < epoch[:-1])).any():  # Kafka writes them in hash order
        order = np.lexsort((epoch, owner))
        epoch, offset, tags = epoch[order], offset[order], tags[order]
    wrong = (epoch < 0) | (offset < 0) | (tags != 0)
    wrong[1:] |= same & ((epoch[1:] == epoch[:-1]) | (offset[1:] < offset[:-1]))
    if wrong.any():
        positions.good[owner[wrong]] = False
        kept = positions.good[owner]
        epoch, offset = epoch[kept], offset[kept]
    return np.where(positions.good, count, 0), epoch, offset
