"""What Confluent's serializers put in front of a value: byte 0, then the id of the writer's schema
(4 bytes, big-endian, above 0); or byte 1, then the schema's GUID (16 bytes).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels.columns import copied
from segment_format.values.heads import heads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

HEADER: Final = 5
"""Bytes of the header with an id."""
GUID_HEADER: Final = 17
"""Bytes of the header with a GUID."""
_BY_GUID: Final = -3
_NO_MAGIC: Final = -2
_TOO_SHORT: Final = -1
_ID_0: Final = 0
NO_MAGIC: Final = "no zero byte and schema id in front, nor byte 1 and a schema's GUID"
TOO_SHORT: Final = f"shorter than the {HEADER} bytes of a zero byte and a schema id"
ID_0: Final = (
    "schema id 0, which no registry gives: Apicurio's serializers write ids of 8 bytes, there or in"
    " the record's headers, unless they are given apicurio.registry.headers.enabled = false,"
    " apicurio.registry.id-handler = io.apicurio.registry.serde.Legacy4ByteIdHandler and"
    " apicurio.registry.use-id = contentId"
)
_REASONS: Final = {_TOO_SHORT: TOO_SHORT, _NO_MAGIC: NO_MAGIC, _ID_0: ID_0}


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of values.

    Attributes:
        schemas: Ids and GUIDs that there are, each once; a GUID is text in lower case, with
            hyphens. In place of one, a number of 0 or below where there is no header.
        number_of: Which of them each value has; of a null, any.
        headless: Numbers of those that are none -> why.
        sizes: Bytes of each value's header; 0 where there is none.
    """

    schemas: Sequence[int | str]
    number_of: NDArray[np.int64]
    headless: Mapping[int, str]
    sizes: NDArray[np.int64]


def read_headers(values: pa.Array) -> Headers:
    """The headers of values.

    Args:
        values: `pa.binary()`, may be a slice.
    """
    ids = _ids(values)
    by_guid = np.flatnonzero(ids == _BY_GUID)
    distinct, number_of = np.unique(ids, return_inverse=True)
    schemas: list[int | str] = distinct.tolist()
    number_of = number_of.astype(np.int64)
    if len(by_guid):  # the smallest of all numbers is the first
        guids, which = _guids(values, by_guid)
        schemas = [*guids, *schemas[1:]]
        number_of += len(guids) - 1
        number_of[by_guid] = which
    headless = {at: _REASONS[one] for at, one in enumerate(schemas) if one in _REASONS}
    sizes = np.where(ids == _BY_GUID, GUID_HEADER, np.where(ids > 0, HEADER, 0))
    return Headers(schemas, number_of, headless, sizes)


def read_header(value: bytes) -> tuple[int | str, int]:
    """The id or GUID of a value, and its header's bytes. The readable form of `read_headers`.

    Raises:
        ValueError: There is no header.
    """
    if len(value) < HEADER:
        raise ValueError(TOO_SHORT)
    if value[0] == 1 and len(value) >= GUID_HEADER:
        return str(uuid.UUID(bytes=value[1:GUID_HEADER])), GUID_HEADER
    if value[0]:
        raise ValueError(NO_MAGIC)
    schema_id = int.from_bytes(value[1:HEADER], "big")
    if not schema_id:
        raise ValueError(ID_0)
    return schema_id, HEADER


def without_headers(
    values: pa.Array, sizes: NDArray[np.int64], kept: NDArray[np.bool_]
) -> pa.Array:
    """What is behind the headers of values; null for those that are not kept.

    Arrow's own `binary_slice` refuses some arrays of short values.

    Args:
        values: `pa.binary()`, at least one; may be a slice.
        sizes: Of their headers.
        kept: Which of them are, none of them null.
    """
    _, ends, data = values.buffers()
    bounds = np.frombuffer(ends, np.int32, len(values) + 1, 4 * values.offset)
    whole = np.diff(bounds)
    left = np.where(kept, whole - sizes, 0)
    parts = np.column_stack([whole - left, left]).ravel()
    wanted = np.repeat(np.tile([False, True], len(values)), parts)
    content = np.frombuffer(b"" if data is None else data, np.uint8)[bounds[0] : bounds[-1]][wanted]
    new_ends = np.concatenate([[0], np.cumsum(left)]).astype(np.int32)
    validity = copied(np.packbits(kept, bitorder="little"))
    buffers = [validity, copied(new_ends), copied(content)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def with_lengths(values: pa.Array, rows: NDArray[np.bool_], prefix: int) -> pa.Array:
    """Inserts the length that Avro has in front of bytes.

    Confluent's Java serializer writes a value of the schema `"bytes"` as it is, and its
    deserializer returns all bytes after the header.

    Args:
        values: `pa.binary()`, at least one; may be a slice.
        rows: Values that lack the length, none of them null.
        prefix: Bytes of the header in front of each of these values.

    Raises:
        ValueError: The values would have more than 2 GiB.
    """
    _, ends, data = values.buffers()
    bounds = np.frombuffer(ends, np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)
    sizes = np.diff(bounds)
    # Zig-zag varints, seven bits a byte, the lowest first.
    shifts = np.arange(0, 35, 7)
    groups = (2 * (sizes[rows] - prefix))[:, None] >> shifts
    used = (groups > 0) | (shifts == 0)
    more = np.column_stack([used[:, 1:], np.zeros(len(used), np.bool_)])
    digits = ((groups & 0x7F) | np.where(more, 0x80, 0)).astype(np.uint8)
    counts = used.sum(axis=1)
    places = np.repeat(bounds[:-1][rows] - bounds[0] + prefix, counts)
    content = np.frombuffer(b"" if data is None else data, np.uint8)[bounds[0] : bounds[-1]]
    content = np.insert(content, places, digits[used])
    sizes[rows] += counts
    new_ends = np.concatenate([[0], np.cumsum(sizes)])
    if new_ends[-1] > np.iinfo(np.int32).max:
        raise ValueError("the values of a batch have more than 2 GiB")
    validity = None
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        validity = copied(np.packbits(valid, bitorder="little"))
    buffers = [validity, copied(new_ends.astype(np.int32)), copied(content)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _ids(values: pa.Array) -> NDArray[np.int64]:
    """The id of each value, a number of 0 or below where there is none; of a null, anything."""
    rows = len(values)
    none = np.full(rows, _TOO_SHORT, np.int64)
    if not rows:
        return none
    _, ends, data = values.buffers()
    if ends is None or data is None or data.size < HEADER:
        return none
    bounds = np.frombuffer(ends, np.int32, rows + 1, 4 * values.offset).astype(np.int64)
    content = np.frombuffer(data, np.uint8)
    starts, whole = bounds[:-1], np.diff(bounds)
    short = whole < HEADER
    at = np.where(short, 0, starts)
    ids = np.zeros(rows, np.int64)
    for byte in range(1, HEADER):
        ids = ids << 8 | content[at + byte]
    first = content[at]
    ids[first != 0] = _NO_MAGIC
    ids[(first == 1) & (whole >= GUID_HEADER)] = _BY_GUID
    ids[short] = _TOO_SHORT
    return ids


def _guids(values: pa.Array, rows: NDArray[np.intp]) -> tuple[list[str], NDArray[np.int64]]:
    """The GUIDs of rows that have one, each once, and which of them each row has."""
    found = heads(values, GUID_HEADER)[rows, 1:]
    distinct, which = np.unique(found, axis=0, return_inverse=True)
    return [str(uuid.UUID(bytes=one.tobytes())) for one in distinct], which.reshape(-1)
