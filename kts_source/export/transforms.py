"""Interfaces that users implement to change rows and to reject single rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that cannot be transformed.

    Attributes:
        row: Its number in the batch.
        reason: Message for users.
    """

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class Transformed:
    """The result of a transform for one batch.

    Attributes:
        rows: Transformed rows, in order. A batch without rows but with all columns is better than
            `None`: a table can be created from it.
        rejected: Rows that could not be transformed.
    """

    rows: pa.RecordBatch | None
    rejected: tuple[Rejected, ...]


@runtime_checkable
class RowTransform(Protocol):
    """A transform that rejects single rows, which then go to the dead letters."""

    @property
    def fingerprint(self) -> str:
        """A text that changes when the result of the transform does."""
        ...

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        """Transforms the rows of a batch and rejects those that it cannot transform."""
        ...
