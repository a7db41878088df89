"""What Confluent's serializers put in front of a value: byte 0, then the id of the writer's schema
(4 bytes, big-endian, above 0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

HEADER: Final = 5
"""Its bytes."""
_TOO_SHORT: Final = -1
_NO_MAGIC: Final = -2
_ID_0: Final = 0
REASONS: Final = {
    _TOO_SHORT: f"shorter than the {HEADER} bytes of a zero byte and a schema id",
    _NO_MAGIC: "no zero byte and schema id in front",
    _ID_0: "schema id 0: no registry gives it; values with ids of 8 bytes (Apicurio) look so",
}
"""Why a value is bad, by what `schema_ids` gives for it."""


def schema_ids(values: pa.Array) -> NDArray[np.int64]:
    """The id of each value, a key of `REASONS` where there is none; of a null, anything.

    Args:
        values: `pa.binary()`, may be a slice.
    """
    _, ends, data = values.buffers()
    rows = len(values)
    if ends is None or data is None or not data.size:
        return np.full(rows, _TOO_SHORT, np.int64)
    bounds = np.frombuffer(ends, np.int32, rows + 1, 4 * values.offset).astype(np.int64)
    content = np.frombuffer(data, np.uint8)
    starts, short = bounds[:-1], np.diff(bounds) < HEADER
    at = np.where(short, 0, starts)
    if len(content) < HEADER:
        return np.full(rows, _TOO_SHORT, np.int64)
    ids = np.zeros(rows, np.int64)
    for byte in range(1, HEADER):
        ids = ids << 8 | content[at + byte]
    ids[content[at] != 0] = _NO_MAGIC
    ids[short] = _TOO_SHORT
    return ids
