"""Rebuilds the side files of a segment from its batch headers, as Kafka's recovery does.

An entry of the offset index contains the last offset and the position of a batch. The distance
between entries is at least `index.interval.bytes`. It is greater for large segments, to limit the
memory of an index.

Source: `LogSegment.recover`, `ProducerStateManager.completeTxn`, `ProducerAppendInfo` in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from segment_format.index.checkpoints import EpochEntry
from segment_format.index.producer_snapshot import ProducerStateEntry, write_producer_snapshot
from segment_format.index.sparse_indexes import OffsetIndex, TimeIndex
from segment_format.index.transaction_index import AbortedTxn, write_transaction_index
from segment_format.record.control_record import ControlRecordType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from segment_format.record.batch_header import RecordBatchHeader
    from segment_format.record.records import DecodedBatch
    from segment_format.record.recovery import WholeBatch

_MAX_ENTRIES: Final = 4096
_INTERVAL_BYTES: Final = 4096  # `index.interval.bytes`


class TransactionReplay:
    """Tracks the transactions of a log, batch by batch.

    Args:
        open_before: Transactions that are open before the first batch, as a mapping from producer
            id to first offset.

    Attributes:
        open: Transactions that are open after the last applied batch, as a mapping from producer id
            to first offset.
        aborted: Transactions whose abort marker was applied.
    """

    def __init__(self, open_before: Mapping[int, int]) -> None:
        self.open = dict(open_before)
        self.aborted: list[AbortedTxn] = []

    def apply(
        self, batch: DecodedBatch | RecordBatchHeader, marker: ControlRecordType | None
    ) -> None:
        """Applies the next batch. `marker` is the result of `marker_of` for a control batch, and
        `None` for data.
        """
        if batch.is_control_batch:
            first = self.open.pop(batch.producer_id, None) if marker is not None else None
            if first is not None and marker is ControlRecordType.ABORT:
                offset = batch.base_offset
                stable = min([offset + 1, *self.open.values()])
                self.aborted.append(AbortedTxn(batch.producer_id, first, offset, stable))
        elif batch.is_transactional:
            self.open.setdefault(batch.producer_id, batch.base_offset)


class RebuiltSideFiles:
    """Builds the side files of one segment from its batches.

    Args:
        size: Size of the segment's log in bytes.
        open_before: Transactions that are open at the base offset, as a mapping from producer id to
            first offset.

    Attributes:
        max_timestamp: Largest timestamp of the records in ms; −1 if no record has a timestamp.
        epochs: Leader epochs of the batches, with their first offsets.
    """

    def __init__(self, base_offset: int, size: int, open_before: Mapping[int, int]) -> None:
        self._base_offset = base_offset
        self._interval = max(_INTERVAL_BYTES, -(-size // _MAX_ENTRIES))
        self._transactions = TransactionReplay(open_before)
        self._offsets: list[tuple[int, int]] = []
        self._times: list[tuple[int, int]] = []
        self._last_position = 0
        self._max_offset = base_offset
        self.max_timestamp = -1
        self.epochs: list[EpochEntry] = []

    def add(self, batch: WholeBatch) -> None:
        """Adds the next batch of the segment."""
        header = batch.header
        self.apply(header, batch.marker)
        self.add_entry(
            batch.position,
            header.base_offset,
            header.last_offset,
            header.max_timestamp,
            header.partition_leader_epoch,
        )

    def apply(self, header: RecordBatchHeader, marker: ControlRecordType | None) -> None:
        """Updates the open and aborted transactions with a transactional or control batch. Call it
        before `add_entry` of the batch.
        """
        self._transactions.apply(header, marker)

    def add_entry(
        self, position: int, base_offset: int, last_offset: int, max_timestamp: int, epoch: int
    ) -> None:
        """Adds the next batch to the offset index, the time index and the leader epochs."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self._max_offset = max_timestamp, last_offset
        if position - self._last_position >= self._interval:
            self._last_position = position
            self._offsets.append((last_offset, position))
            self._add_time()
        if epoch >= 0 and (not self.epochs or epoch > self.epochs[-1].epoch):
            self.epochs.append(EpochEntry(epoch, base_offset))

    @property
    def open_after(self) -> Mapping[int, int]:
        """Transactions that are open after the last added batch, as a mapping from producer id to
        first offset.
        """
        return self._transactions.open

    def offset_index(self) -> bytes:
        """Returns the content of the `.index` file."""
        columns = np.array(self._offsets, dtype=np.int64).reshape(-1, 2)
        return OffsetIndex(self._base_offset, columns[:, 0], columns[:, 1]).to_bytes()

    def time_index(self) -> bytes:
        """Returns the content of the `.timeindex` file."""
        self._add_time()
        columns = np.array(self._times, dtype=np.int64).reshape(-1, 2)
        return TimeIndex(self._base_offset, columns[:, 0], columns[:, 1]).to_bytes()

    def transaction_index(self) -> bytes:
        """Returns the content of the `.txnindex` file."""
        return write_transaction_index(self._transactions.aborted)

    def snapshot(self) -> bytes:
        """Returns the content of a `.snapshot` file that has only the producers with open
        transactions.
        """
        return write_producer_snapshot(
            ProducerStateEntry(producer, -1, -1, -1, 0, -1, -1, first)
            for producer, first in self.open_after.items()
        )

    def _add_time(self) -> None:
        if self.max_timestamp >= 0 and (not self._times or self.max_timestamp > self._times[-1][0]):
            self._times.append((self.max_timestamp, self._max_offset))
