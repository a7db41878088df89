"""Memory of column buffers: Arrow's own, so that any thread can drop a batch without Python.

A buffer over a numpy array or `bytes` asks for the GIL to be released. An engine that holds the GIL
while it waits for the thread that releases would wait for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray


def allocate(size: int) -> pa.Buffer:
    """A buffer of `size` bytes, not initialised."""
    return pa.allocate_buffer(size)


def copied(values: NDArray[Any]) -> pa.Buffer:
    """A buffer with the bytes of an array."""
    buffer = allocate(values.nbytes)
    np.frombuffer(buffer, values.dtype)[:] = values
    return buffer
