"""How the tasks of one scan decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.read.fetch import ReadAhead

if TYPE_CHECKING:
    from kts_source.broker.settings import BrokerSettings
    from kts_source.options import ScanOptions
    from kts_source.options.value_formats import ColumnFormat
    from kts_source.predicate.model import Predicate
    from segment_format.key_set import KeySet


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch of rows is full.

    Attributes:
        rows: Most rows.
        size: Most bytes of keys, values and headers; a record larger than that is a batch of its
            own.
    """

    rows: int
    size: int


FOR_SPARK: Final = BatchLimits(8192, 2 << 20)
"""What its Arrow reader takes fastest: many records, since each batch has the same fixed cost, but
no more bytes than the processor's cache holds.
"""


FOR_ENGINES: Final = BatchLimits(65536, 8 << 20)
"""What readers in threads hand over: so few batches that they seldom wait for Python's lock."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How tasks of one scan decode.

    Attributes:
        columns: Columns of the table, in order.
        check_crcs: Whether checksums of batches are verified.
        max_batch_bytes: Bound on one record batch, stored or decompressed.
        where: Rows for which it is not true are left out.
        fail_on_data_loss: Whether an object that has gone since planning is an error.
        batches: How large batches grow.
        brokers: How brokers are reached; `None` = the tier alone is read.
        broker_fallback: Whether brokers finish a slice that the tier does not give.
        formats: How keys and values are decoded; what is not named stays bytes.
        keys: Records with other keys are left out; `None` wants all.
        read_committed: Whether aborted transactions are left out; their intervals are then compared
            with the markers of the log.
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
        """The settings that the options of a `load()` ask for."""
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
