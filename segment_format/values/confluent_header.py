"""What Confluent's serializers put in front of a value: byte 0, then the id of the writer's schema
(4 bytes, big-endian, above 0). Byte 1 and a GUID of 16 bytes, which they may write instead, is told
from what is no header at all, and not looked up.
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
_BY_GUID: Final = -3
_GUID_HEADER: Final = 17
BY_GUID: Final = (
    "byte 1 and a schema's GUID in front, or in the record's header: GUIDs are not looked up"
)
NO_MAGIC: Final = "no zero byte and schema id in front"
TOO_SHORT: Final = f"shorter than the {HEADER} bytes of a zero byte and a schema id"
ID_0: Final = (
    "schema id 0, which no registry gives: Apicurio's serializers write ids of 8 bytes, there or in"
    " the record's headers, unless they are given apicurio.registry.headers.enabled = false,"
    " apicurio.registry.id-handler = io.apicurio.registry.serde.Legacy4ByteIdHandler and"
    " apicurio.registry.use-id = contentId"
)
REASONS: Final = {
    _TOO_SHORT: TOO_SHORT,
    _NO_MAGIC: NO_MAGIC,
    _ID_0: ID_0,
    _BY_GUID: BY_GUID,
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
    first = content[at]
    ids[first != 0] = _NO_MAGIC
    ids[(first == 1) & (np.diff(bounds) >= _GUID_HEADER)] = _BY_GUID
    ids[short] = _TOO_SHORT
    return ids


def refused(value: bytes) -> str | None:
    """Why a value has no id; `None` if it has one. The readable form of `schema_ids`."""
    if len(value) < HEADER:
        return TOO_SHORT
    if value[0]:
        return BY_GUID if value[0] == 1 and len(value) >= _GUID_HEADER else NO_MAGIC
    return None if any(value[1:HEADER]) else ID_0
