"""The bytes in front of values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray


def heads(values: pa.Array, size: int) -> NDArray[np.uint8]:
    """So many first bytes of each value, a row each; zeros where a value is shorter.

    Args:
        values: May be a slice; anything but `pa.binary()` counts as short.
        size: How many.
    """
    found = np.zeros((len(values), size), np.uint8)
    if not len(values) or values.type != pa.binary():
        return found
    _, ends, data = values.buffers()
    bounds = np.frombuffer(ends, np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)
    rows = np.flatnonzero(np.diff(bounds) >= size)
    if len(rows):
        content = np.frombuffer(data, np.uint8)
        found[rows] = content[bounds[rows, np.newaxis] + np.arange(size)]
    return found
