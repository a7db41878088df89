"""Bytes of a log to Arrow record batches, in the column types of Spark's Kafka source.

`iter_arrow` takes a buffer of whole entries; `RecordDecoder` takes the same bytes cut anywhere,
with bounded memory. Both run on the compiled kernels; `segment_format.record.records.iter_batches`
is the readable decoder that they are held to: the same rows, or the same class of error.

| column | type | meaning |
|---|---|---|
| key, value | binary | null is Kafka's null; empty is empty |
| offset | int64 | |
| timestamp | timestamp[us, UTC] | the record's, or the append time; −1 ms where Kafka has none |
| timestampType | int32 | 0 CreateTime, 1 LogAppendTime, −1 none (magic 0) |
| headers | list of struct (key string, value binary) | in stored order; none: an empty list |
| leaderEpoch | int32 | of the batch; null where it states none, as in the columns below |
| producerId, producerEpoch, sequence | int64, int32, int32 | of the idempotent producer |
| isTransactional | bool | |
| batchBaseOffset | int64 | first offset of the stored batch |
| codec | string | none, gzip, snappy, lz4, zstd |

Control batches never become rows. Source of the rules: `CompletedFetch`, `DefaultRecordBatch` in
Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from segment_format.isolation import AbortedIntervals
from segment_format.kernels.columns import COLUMNS, column_names
from segment_format.kernels.decoder import (
    DEFAULT_MAX_ROWS,
    MAX_OFFSET,
    MIN_OFFSET,
    DecodeCounters,
    RecordDecoder,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from segment_format._cursor import BytesLike
    from segment_format.index.transaction_index import AbortedTxn

__all__ = [
    "LINEAGE_COLUMNS",
    "RECORD_COLUMNS",
    "DecodeCounters",
    "RecordDecoder",
    "iter_arrow",
    "record_schema",
]

RECORD_COLUMNS: Final = ("key", "value", "offset", "timestamp", "timestampType", "headers")
"""Columns that a record has by itself; topic and partition are the caller's to add."""
LINEAGE_COLUMNS: Final = (
    "leaderEpoch",
    "producerId",
    "producerEpoch",
    "sequence",
    "isTransactional",
    "batchBaseOffset",
    "codec",
)
"""Columns that say where a record came from."""


def record_schema(columns: Iterable[str] = RECORD_COLUMNS) -> pa.Schema:
    """The schema of batches with these columns, in this order; all nullable.

    Raises:
        ValueError: A name that is neither in `RECORD_COLUMNS` nor in `LINEAGE_COLUMNS`, or twice.
    """
    return pa.schema([(name, COLUMNS[name].type) for name in column_names(columns)])


def iter_arrow(
    buffer: BytesLike,
    *,
    columns: Iterable[str] | None = None,
    start_offset: int | None = None,
    stop_offset: int | None = None,
    aborted: AbortedIntervals | Iterable[AbortedTxn] = (),
    check_crcs: bool = True,
    max_rows: int = DEFAULT_MAX_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The records of whole entries as Arrow batches.

    Memory: a few batches of at most `max_rows` rows and 4 MiB (one record larger than that is a
    batch of its own), and one decompressed batch of at most `DEFAULT_MAX_BATCH_BYTES`.

    Args:
        buffer: Entries of magic 0, 1 and 2 as they stand in a `.log`, one after the other.
        columns: Names of `RECORD_COLUMNS` and `LINEAGE_COLUMNS`; the former by default. What is not
            asked for is neither copied nor, where it can be stepped over, looked at.
        start_offset: First offset wanted, None for all.
        stop_offset: First offset not wanted any more, None for all.
        aborted: Transactions whose batches are left out (`read_committed`).
        check_crcs: Whether each entry's checksum is compared with its bytes.
        max_rows: Most rows of a batch.

    Yields:
        Batches of `record_schema(columns)`, rows in stored order. They stay valid and unchanged for
        as long as they are held.

    Raises:
        SegmentFormatError: As `segment_format.iter_batches`; `position` counts from the start of
            `buffer`. Rows of earlier batches may not have been yielded by then.
        ValueError: Unknown columns or a bound out of range.
    """
    if not isinstance(aborted, AbortedIntervals):
        aborted = AbortedIntervals.from_txns(
            aborted, start_offset=MIN_OFFSET, stop_offset=MAX_OFFSET
        )
    decoder = RecordDecoder(
        columns=RECORD_COLUMNS if columns is None else columns,
        start_offset=MIN_OFFSET if start_offset is None else start_offset,
        stop_offset=MAX_OFFSET if stop_offset is None else stop_offset,
        aborted=aborted,
        check_crcs=check_crcs,
        max_rows=max_rows,
    )
    yield from decoder.feed(buffer)
    yield from decoder.finish()
