"""A column that is no part of a record: what is known of the log, the same in every row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from segment_format.kernels.pool_memory import copied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Constant:
    """One value in as many rows as are asked for, built once and then shown by reference.

    Args:
        value: A string, a number that fits 32 bits, or `None` for a string that is null.
    """

    def __init__(self, value: str | int | None) -> None:
        self._value = value
        self.type = pa.int32() if isinstance(value, int) else pa.string()
        self._built = _repeated(value, 0)

    def rows(self, count: int) -> pa.Array:
        """The column of `count` rows."""
        if len(self._built) < count:
            self._built = _repeated(self._value, count)
        return self._built.slice(0, count)


def constants_at(
    columns: Sequence[str], values: Mapping[str, str | int | None]
) -> list[tuple[int, Constant]]:
    """Those of the columns that have a value in `values`, each with its place among them."""
    return [(place, Constant(values[name])) for place, name in enumerate(columns) if name in values]


def _repeated(value: str | int | None, rows: int) -> pa.Array:
    """One value in every row; `pa.scalar` and `pa.array` would bring in pandas, which takes longer
    than a small read.
    """
    if value is None:
        return pa.nulls(rows, pa.string())
    if isinstance(value, int):
        numbers = copied(np.full(rows, value, np.int32))
        return pa.Array.from_buffers(pa.int32(), rows, [None, numbers])
    data = value.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(data))
    texts = np.frombuffer(data * rows, np.uint8)
    return pa.StringArray.from_buffers(rows, copied(ends), copied(texts))
