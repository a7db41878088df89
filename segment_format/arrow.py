"""Decodes log bytes to Arrow record batches with the column types of Spark's Kafka source.

`iter_arrow` takes a buffer of complete entries. `RecordDecoder` takes the bytes of entries in
pieces of any size, and needs limited memory. Both use compiled kernels. For given bytes, they
return the rows, or raise the class of error, of the pure Python decoder
`segment_format.record.records.iter_batches`.

| column | type | meaning |
|---|---|---|
| key, value | binary | null is Kafka's null; empty is empty |
| offset | int64 | |
| timestamp | timestamp[us, UTC] | create time or append time of the record; −1 ms if unknown |
| timestampType | int32 | 0 CreateTime, 1 LogAppendTime, −1 none (magic 0) |
| headers | list of struct (key string, value binary) | in stored order; empty if there are none |
| leaderEpoch | int32 | of the batch; null if it has none, as in the columns below |
| producerId, producerEpoch, sequence | int64, int32, int32 | of the idempotent producer |
| isTransactional | bool | |
| batchBaseOffset | int64 | first offset of the stored batch |
| codec | string | none, gzip, snappy, lz4, zstd |

The records of control batches are never returned. Source of the rules: `CompletedFetch`,
`DefaultRecordBatch` in Kafka.
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
"""Columns of a record; the caller adds topic and partition."""
LINEAGE_COLUMNS: Final = (
    "leaderEpoch",
    "producerId",
    "producerEpoch",
    "sequence",
    "isTransactional",
    "batchBaseOffset",
    "codec",
)
"""Columns of the batch and the producer of a record."""


def record_schema(columns: Iterable[str] = RECORD_COLUMNS) -> pa.Schema:
    """Returns the schema of batches with these columns, in this order. All columns are nullable.

    Raises:
        ValueError: A name is unknown or repeated.
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
    """Yields the records of complete entries as Arrow batches.

    Uses memory for a few Arrow batches and one decompressed Kafka batch of at most
    `DEFAULT_MAX_BATCH_BYTES`. An Arrow batch has at most `max_rows` rows and 4 MiB; a larger record
    is a batch of its own.

    Args:
        buffer: Entries of magic 0, 1 and 2, one after the other as in a `.log` file.
        columns: Names in `RECORD_COLUMNS` and `LINEAGE_COLUMNS`; `RECORD_COLUMNS` by default. Most
            fields of other columns are skipped without decoding.
        start_offset: First offset to return, inclusive; None if there is no lower bound.
        stop_offset: End of the offsets to return, exclusive; None if there is no upper bound.
        aborted: Aborted transactions, whose batches are skipped (`read_committed`).
        check_crcs: True to verify each entry's checksum.
        max_rows: Maximum number of rows in a batch.

    Yields:
        Batches with the schema `record_schema(columns)`. Rows are in stored order. The batches do
        not refer to the memory of `buffer`.

    Raises:
        SegmentFormatError: The bytes are invalid. The `position` of the error counts from the start
            of `buffer`. Rows before the error may be missing.
        ValueError: A column is unknown or a bound out of range.
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
