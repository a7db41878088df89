"""A range of offsets to read from brokers, as stored in a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class BrokerRange:
    """Offsets of one partition that are read from brokers.

    Attributes:
        topic_id: Id of the topic when the range was planned. If the topic was deleted and created
            again, its id differs, and the read fails instead of returning rows of the new topic.
        leader_epoch: Leader epoch of the partition when the range was planned. A new leader must
            still have the records of this epoch up to the end of the range.
        start_offset: First offset, inclusive.
        stop_offset: One past the last offset. The log had all offsets below it when the range was
            planned.
        read_committed: True if brokers report aborted transactions, so that their records are
            skipped. If False, the records of all batches are returned.
        nominal_bytes: Estimated size of the range in bytes.
    """

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    start_offset: int
    stop_offset: int
    read_committed: bool
    nominal_bytes: int

    @property
    def work(self) -> int:
        """Estimated work to read the range: the number of bytes of an uncompressed and unencrypted
        segment that take about as long to read.
        """
        return self.nominal_bytes

    def part(self, start_offset: int, stop_offset: int) -> BrokerRange:
        """Returns the part of the range with offsets [`start_offset`, `stop_offset`). Its estimated
        bytes are a proportional share of those of the range.
        """
        offsets = self.stop_offset - self.start_offset
        share = self.nominal_bytes * (stop_offset - start_offset) // max(offsets, 1)
        return replace(
            self,
            start_offset=start_offset,
            stop_offset=stop_offset,
            nominal_bytes=max(share, 1),
        )

    def between(self, start_offset: int, stop_offset: int) -> BrokerRange:
        """Returns a copy of the range with offsets [`start_offset`, `stop_offset`). The estimated
        bytes do not change.
        """
        return replace(self, start_offset=start_offset, stop_offset=stop_offset)

    def from_offset(self, offset: int) -> BrokerRange:
        """Returns the part of the range that begins at `offset`. If the range already begins at or
        after `offset`, returns the whole range.
        """
        return self if offset <= self.start_offset else self.part(offset, self.stop_offset)
