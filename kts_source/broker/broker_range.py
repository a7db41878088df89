"""A range of offsets that brokers serve, as a plan stores it."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class BrokerRange:
    """Offsets of one partition that are read from brokers.

    Attributes:
        topic_id: Id of the incarnation, so that a re-created topic returns no rows.
        leader_epoch: Leader epoch when the range was planned. A leader of another epoch must still
            have the records of this epoch up to the end of the range.
        start_offset: First offset, inclusive.
        stop_offset: One past the last offset; the log reached it when it was planned.
        read_committed: True if brokers report aborted transactions; otherwise all batches count.
        nominal_bytes: Estimated bytes of the range.
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
        """Estimated work, in bytes of a plain segment."""
        return self.nominal_bytes

    def part(self, start_offset: int, stop_offset: int) -> BrokerRange:
        """Returns a part of the range, offsets [start, stop)."""
        offsets = self.stop_offset - self.start_offset
        share = self.nominal_bytes * (stop_offset - start_offset) // max(offsets, 1)
        return replace(
            self,
            start_offset=start_offset,
            stop_offset=stop_offset,
            nominal_bytes=max(share, 1),
        )

    def between(self, start_offset: int, stop_offset: int) -> BrokerRange:
        """Returns the range with other offsets, without scaling the estimate of bytes."""
        return replace(self, start_offset=start_offset, stop_offset=stop_offset)

    def from_offset(self, offset: int) -> BrokerRange:
        """Returns the part of the range from an offset on."""
        return self if offset <= self.start_offset else self.part(offset, self.stop_offset)
