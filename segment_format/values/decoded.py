"""What every decoder of values gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value that is not what its schema says.

    Attributes:
        row: Which of the values, from 0 on.
        path: Names of the fields down to where it went wrong, joined by dots; empty at the top.
        reason: What is wrong there.
    """

    row: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """Values as a column.

    Attributes:
        array: As many as there were values, of the decoder's type. Null where the value is null
            and where it is bad.
        bad: The bad ones, by ascending row, each once.
    """

    array: pa.Array
    bad: tuple[BadValue, ...] = ()


class ValueDecoder(Protocol):
    """Decodes values of one reader's schema.

    Many threads may use one decoder at a time.
    """

    @property
    def type(self) -> pa.DataType:
        """Of the columns that `decode` gives."""
        ...

    def decode(self, values: pa.Array) -> DecodedValues:
        """Decodes values; `values` is a `pa.binary()` array, which may be a slice and have nulls.

        One bad value costs one row: it is named in `bad`, and the others are not touched.
        """
        ...
