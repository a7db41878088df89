"""Transforms with which the stored tables were first exported.

A table stores a digest of the name and the source text of its transform. So never change a function
or class in this file, not even a blank. Add new transforms at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from kts_source.export.transforms import Rejected, Transformed

if TYPE_CHECKING:
    from collections.abc import Callable


def with_length(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Adds the length of the value."""
    return batch.append_column("length", pc.binary_length(batch["value"]))


@dataclass(frozen=True)
class AtLeast:
    """Drops rows below an offset."""

    offset: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Applied to every batch."""
        return batch.filter(pc.greater_equal(batch["offset"], self.offset))

    def applied(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same as a method."""
        return self(batch)


def from_offset(offset: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """The same as a closure."""

    def kept(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.greater_equal(batch["offset"], offset))

    return kept


from_three = lambda batch: batch.filter(pc.greater_equal(batch["offset"], 3))  # noqa: E731


class RejectNotJson:
    """Rejects rows whose value does not begin as a JSON object."""

    fingerprint = "reject not JSON"

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        """Keeps null values."""
        is_good = [text is None or text.startswith(b"{") for text in batch["value"].to_pylist()]
        rejected = [Rejected(row, "no JSON") for row, good in enumerate(is_good) if not good]
        return Transformed(batch.filter(pa.array(is_good)), tuple(rejected))
