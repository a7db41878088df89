"""Interfaces that users implement to transform rows and to reject individual rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that cannot be transformed.

    Attributes:
        row: Number of the row in the batch, counted from 0.
        reason: Message for users.
    """

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class Transformed:
    """The result of a transform for one batch.

    Attributes:
        rows: Transformed rows, in order. If no row remains, return an empty batch with all columns
            if possible, because a table can be created from its columns. Otherwise return `None`.
        rejected: Rows that could not be transformed.
    """

    rows: pa.RecordBatch | None
    rejected: tuple[Rejected, ...]


@runtime_checkable
class RowTransform(Protocol):
    """Interface of a transform that can reject individual rows. Rejected rows are written to the
    dead letters.
    """

    @property
    def fingerprint(self) -> str:
        """A text that identifies the transform. Change it whenever the transform would return
        different rows.
        """
        ...

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        """Transforms the rows of a batch. Rejects rows that it cannot transform."""
        ...
