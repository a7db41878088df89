"""Defines the settings for reading the tasks of a scan, and the schema of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.columns import PARTITION, SEGMENT_ID, TOPIC
from kts_source.read.fetch import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from kts_source.broker.settings import BrokerSettings
    from kts_source.options import ScanOptions
    from kts_source.options.value_formats import ColumnFormat
    from kts_source.predicate.model import Predicate
    from segment_format.key_set import KeySet


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Size limits of a batch of rows.

    Attributes:
        rows: Maximum number of rows.
        size: Maximum bytes of keys, values and headers. A larger record becomes a batch of one row.
    """

    rows: int
    size: int


FOR_SPARK: Final = BatchLimits(8192, 2 << 20)
"""Fastest limits for Spark's Arrow reader. Each batch has a fixed cost, and should fit into the CPU
cache.
"""
FOR_ENGINES: Final = BatchLimits(65536, 8 << 20)
"""Limits for reading in threads. Larger batches mean fewer batches, so threads rarely wait for the
GIL.
"""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Settings for reading the tasks of a scan.

    Attributes:
        columns: Columns of the table, in order.
        check_crcs: True to verify the checksums of record batches.
        max_batch_bytes: Maximum size of a record batch in bytes, before and after decompression.
        read_ahead: Limits of the read-ahead.
        where: Condition that returned rows must satisfy; `None` returns all rows.
        fail_on_data_loss: True to raise an error if an object was deleted after planning; False to
            skip its offsets.
        batches: Size limits of a batch of rows.
        brokers: Settings for connections to brokers; `None` = read only the tier.
        broker_fallback: True to read the rest of a slice from brokers if the tier fails.
        formats: Formats of keys and values. A column without a format stays binary.
        keys: Only records with these keys are returned; `None` = all records.
        read_committed: True to compare the planned aborted transactions with the markers in the
            log.
    """

    columns: tuple[str, ...]
    check_crcs: bool
    max_batch_bytes: int
    read_ahead: ReadAhead
    where: Predicate | None = None
    fail_on_data_loss: bool = True
    batches: BatchLimits = FOR_SPARK
    brokers: BrokerSettings | None = None
    broker_fallback: bool = True
    formats: tuple[ColumnFormat, ...] = ()
    keys: KeySet | None = None
    read_committed: bool = False

    @classmethod
    def of(cls, options: ScanOptions) -> ReadSettings:
        """Returns the settings that the options of a scan define."""
        ahead = ReadAhead(options.max_concurrent_requests, options.prefetch_bytes, slow_start=True)
        return cls(
            options.columns,
            options.check_crcs,
            options.max_batch_bytes,
            ahead,
            options.where,
            options.fail_on_data_loss,
            brokers=options.brokers,
            broker_fallback=options.broker_fallback,
            formats=options.formats,
            read_committed=options.read_committed,
        )


def read_schema(columns: Iterable[str], formats: Iterable[ColumnFormat] = ()) -> pa.Schema:
    """Returns the Arrow schema of the rows that tasks return; every column is nullable."""
    import pyarrow as pa

    from kts_source.options.value_formats import column_types
    from segment_format.arrow import record_schema

    names = tuple(columns)
    types = {TOPIC: pa.string(), PARTITION: pa.int32(), SEGMENT_ID: pa.string()}
    types |= column_types(formats)
    of_records = record_schema([name for name in names if name not in types])
    fields = [
        pa.field(name, types[name]) if name in types else of_records.field(name) for name in names
    ]
    return pa.schema(fields)
