"""What batch headers and markers tell of transactions, in the order of the log.

Source: `ProducerAppendInfo`, `ProducerStateManager.completeTxn` in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from segment_format.index.transaction_index import AbortedTxn
from segment_format.record.control_record import ControlRecordType, parse_control_record_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from segment_format.record.batch_header import RecordBatchHeader
    from segment_format.record.records import DecodedBatch


class TransactionReplay:
    """Follows the transactions of a log.

    Args:
        open_before: Producer id to first offset of the transactions open where it begins.

    Attributes:
        open: The same after the batches seen so far.
        aborted: Transactions whose abort marker was seen.
    """

    def __init__(self, open_before: Mapping[int, int]) -> None:
        self.open = dict(open_before)
        self.aborted: list[AbortedTxn] = []

    def see(
        self, batch: DecodedBatch | RecordBatchHeader, marker: ControlRecordType | None
    ) -> None:
        """Takes the next batch into account; `marker` is what `marker_of` says of a control
        batch.
        """
        if batch.is_control_batch:
            first = self.open.pop(batch.producer_id, None) if marker is not None else None
            if first is not None and marker is ControlRecordType.ABORT:
                at = batch.base_offset
                stable = min([at + 1, *self.open.values()])
                self.aborted.append(AbortedTxn(batch.producer_id, first, at, stable))
        elif batch.is_transactional:
            self.open.setdefault(batch.producer_id, batch.base_offset)


def marker_of(batch: DecodedBatch) -> ControlRecordType | None:
    """ABORT or COMMIT where a control batch ends a transaction; a compacted one may be empty."""
    if not batch.is_control_batch or not batch.records:
        return None
    kind = parse_control_record_type(batch.records[0].key or b"")
    return kind if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT) else None
