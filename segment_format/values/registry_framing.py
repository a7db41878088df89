"""Reads the headers of values that serializers of schema registries have written. The header of a
value states its writer's schema.

| serializer | header |
|---|---|
| Confluent | byte 0, schema id (4 bytes, big-endian); or byte 1, schema GUID (16 bytes) |
| AWS Glue | byte 3, compression (0 none, 5 zlib), UUID of the schema version (16 bytes) |
| Apicurio 2 | byte 0, schema id (8 bytes, big-endian) |

The encoded value follows the header. With Glue, it may be compressed. Ids are above 0. GUIDs and
UUIDs are represented as lower-case text with hyphens.
"""

from __future__ import annotations

import uuid
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from segment_format.kernels.arrow_buffers import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

CONFLUENT_HEADER: Final = 5
"""Bytes of Confluent's header with an id."""
CONFLUENT_GUID_HEADER: Final = 17
"""Bytes of Confluent's header with a GUID."""
_GLUE_HEADER: Final = 18
_APICURIO_HEADER: Final = 9

_BY_GUID: Final = -3
_NO_MAGIC: Final = -2
_TOO_SHORT: Final = -1
_ID_0: Final = 0
NO_MAGIC: Final = "the value starts with neither byte 0 and a schema id nor byte 1 and a GUID"
TOO_SHORT: Final = (
    f"the value is shorter than the {CONFLUENT_HEADER} bytes of byte 0 and a schema id"
)
ID_0: Final = (
    "the value has schema id 0, which no registry assigns. Apicurio writes ids of 8 bytes, there or"
    " in headers, unless apicurio.registry.headers.enabled=false,"
    " apicurio.registry.use-id=contentId and"
    " apicurio.registry.id-handler=io.apicurio.registry.serde.Legacy4ByteIdHandler"
)
_CONFLUENT_REASONS: Final = {_TOO_SHORT: TOO_SHORT, _NO_MAGIC: NO_MAGIC, _ID_0: ID_0}

OTHER_IDS: Final = -1
"""Apicurio id for values whose record headers name a schema by another kind of id."""
AS_JSON: Final = -2
"""Apicurio id for values whose record headers say that they use Avro's JSON encoding."""
JSON_TEXT: Final = (
    "the value is the text of a JSON object. Avro's JSON encoding is not supported (with Apicurio's"
    " serializer, set apicurio.registry.avro.encoding=BINARY)"
)
_APICURIO_REASONS: Final = {
    OTHER_IDS: "the record's headers name its schema by another kind of id: see option"
    " schema-registry.use-id",
    AS_JSON: JSON_TEXT,
}
_NO_APICURIO_ID: Final = (
    "the value does not start with byte 0 and a schema id of 8 bytes, and the record's headers have"
    " no schema id"
)

_GLUE_VERSION: Final = 3
_GLUE_ZLIB: Final = 5
_NO_GLUE_HEADER: Final = (
    "the value does not start with byte 3, compression 0 or 5, and a schema id of 16 bytes"
)
MAX_INFLATED_BATCH: Final = 1 << 30
"""Maximum decompressed bytes of all values of a batch. Values that exceed the limit are malformed.
"""
MAX_INFLATED_VALUE: Final = 128 << 20
"""Maximum decompressed bytes of one value."""


@dataclass(frozen=True, slots=True)
class ConfluentHeaders:
    """The Confluent headers of a batch of values.

    Attributes:
        schemas: Distinct ids and GUIDs. Numbers of 0 or less are codes for values without a valid
            header.
        schema_of: Index into `schemas` for each value; undefined for nulls.
        invalid: Index of a code in `schemas` -> reason why the values with this code have no valid
            header.
        sizes: Size of each value's header in bytes; 0 if it has none.
    """

    schemas: Sequence[int | str]
    schema_of: NDArray[np.int64]
    invalid: Mapping[int, str]
    sizes: NDArray[np.int64]


def read_confluent_headers(values: pa.Array) -> ConfluentHeaders:
    """Reads the headers of the values in a `pa.binary()` array, which may be a slice."""
    ids = _confluent_ids(values)
    by_guid = np.flatnonzero(ids == _BY_GUID)
    distinct, schema_of = np.unique(ids, return_inverse=True)
    schemas: list[int | str] = distinct.tolist()
    schema_of = schema_of.astype(np.int64)
    if len(by_guid):  # _BY_GUID is the least id, so it comes first
        guids, guid_of = _distinct_uuids(leading_bytes(values, CONFLUENT_GUID_HEADER)[by_guid, 1:])
        schemas = [*guids, *schemas[1:]]
        schema_of += len(guids) - 1
        schema_of[by_guid] = guid_of
    invalid = {
        index: _CONFLUENT_REASONS[schema]
        for index, schema in enumerate(schemas)
        if schema in _CONFLUENT_REASONS
    }
    sizes = np.where(ids == _BY_GUID, CONFLUENT_GUID_HEADER, np.where(ids > 0, CONFLUENT_HEADER, 0))
    return ConfluentHeaders(schemas, schema_of, invalid, sizes)


def read_confluent_header(value: bytes) -> tuple[int | str, int]:
    """Reads the header of a value. Returns two values: the id or GUID, and the size of the header
    in bytes.

    The faster `read_confluent_headers` must return equal ids and sizes.

    Raises:
        ValueError: The value has no header.
    """
    if len(value) < CONFLUENT_HEADER:
        raise ValueError(TOO_SHORT)
    if value[0] == 1 and len(value) >= CONFLUENT_GUID_HEADER:
        return str(uuid.UUID(bytes=value[1:CONFLUENT_GUID_HEADER])), CONFLUENT_GUID_HEADER
    if value[0]:
        raise ValueError(NO_MAGIC)
    schema_id = int.from_bytes(value[1:CONFLUENT_HEADER], "big")
    if not schema_id:
        raise ValueError(ID_0)
    return schema_id, CONFLUENT_HEADER


def _confluent_ids(values: pa.Array) -> NDArray[np.int64]:
    """Returns the schema id of each value, or a code of 0 or less if the header contains no valid
    id. The result for nulls is undefined.
    """
    header = leading_bytes(values, CONFLUENT_HEADER)
    ids = np.zeros(len(values), np.int64)
    if not len(values):
        return ids
    for byte in range(1, CONFLUENT_HEADER):
        ids = ids << 8 | header[:, byte]
    sizes = np.diff(value_bounds(values))
    ids[header[:, 0] != 0] = _NO_MAGIC
    ids[(header[:, 0] == 1) & (sizes >= CONFLUENT_GUID_HEADER)] = _BY_GUID
    ids[sizes < CONFLUENT_HEADER] = _TOO_SHORT
    return ids


class FramedValues(NamedTuple):
    """Values, and for each value the schema id from the header.

    Attributes:
        values: A `pa.binary()` array.
        prefix: Size in bytes of the header at the start of each of `values`; 0 if the headers were
            removed.
        schemas: Distinct ids of writers' schemas, and codes for values without a schema.
        schema_of: Index into `schemas` for each value; undefined for nulls.
        invalid: Index of a code in `schemas` -> reason why the values with this code have no
            schema.
    """

    values: pa.Array
    prefix: int
    schemas: Sequence[int | str]
    schema_of: NDArray[np.int64]
    invalid: Mapping[int, str]


class Framing(NamedTuple):
    """Format of the headers that a serializer writes.

    Attributes:
        read: Function that reads the headers of a `pa.binary()` array.
        has_bare_bytes: True if values of the Avro schema `"bytes"` are written without the length
            that Avro requires before the bytes. Confluent's Java serializer does this, and its
            deserializer returns all bytes after the header.
    """

    read: Callable[[pa.Array], FramedValues]
    has_bare_bytes: bool = False


def _read_confluent(values: pa.Array) -> FramedValues:
    headers = read_confluent_headers(values)
    prefix = CONFLUENT_HEADER
    if (headers.sizes == CONFLUENT_GUID_HEADER).any():
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        values, prefix = without_headers(values, headers.sizes, valid), 0
    return FramedValues(values, prefix, headers.schemas, headers.schema_of, headers.invalid)


def _read_aws_glue(values: pa.Array) -> FramedValues:
    headers = leading_bytes(values, _GLUE_HEADER)
    distinct, schema_of = np.unique(headers, axis=0, return_inverse=True)
    schema_of = schema_of.reshape(-1).astype(np.int64)
    schemas = [str(uuid.UUID(bytes=header[2:].tobytes())) for header in distinct]
    invalid = {
        index: _NO_GLUE_HEADER
        for index, header in enumerate(distinct)
        if header[0] != _GLUE_VERSION or header[1] not in (0, _GLUE_ZLIB)
    }
    compressed = (headers[:, 0] == _GLUE_VERSION) & (headers[:, 1] == _GLUE_ZLIB)
    if not compressed.any():
        return FramedValues(values, _GLUE_HEADER, schemas, schema_of, invalid)
    values, failures = _inflate(values, compressed)
    for row, reason in failures.items():
        invalid[len(schemas)] = reason
        schema_of[row] = len(schemas)
        schemas.append(f"row {row}")
    return FramedValues(values, 0, schemas, schema_of, invalid)


def _inflate(values: pa.Array, compressed: NDArray[np.bool_]) -> tuple[pa.Array, dict[int, str]]:
    """Removes the Glue headers from all values, and decompresses compressed values. Returns the
    resulting values, and a dict from row to reason for values that cannot be decompressed.
    """
    left = MAX_INFLATED_BATCH
    contents: list[bytes | None] = []
    failures: dict[int, str] = {}
    for row, value in enumerate(values):
        data = value.as_py()
        if data is None or not compressed[row]:
            contents.append(None if data is None else data[_GLUE_HEADER:])
            continue
        stream, limit = zlib.decompressobj(), min(left, MAX_INFLATED_VALUE)
        try:
            content = stream.decompress(data[_GLUE_HEADER:], limit + 1)
        except zlib.error as error:
            failures[row] = f"zlib: {error}"
        else:
            if len(content) > limit:
                failures[row] = f"zlib: the value, or the batch so far, exceeds {limit:,} bytes"
            elif not stream.eof or stream.unused_data:
                failures[row] = "zlib: the stream ends too early, or bytes follow its end"
        if row in failures:
            content = b""
        left -= len(content)
        contents.append(content)
    return pa.array(contents, pa.binary()), failures


def _read_apicurio(values: pa.Array) -> FramedValues:
    headers = leading_bytes(values, _APICURIO_HEADER)
    ids = np.ascontiguousarray(headers[:, 1:]).view(">i8").ravel().astype(np.int64)
    ids[(headers[:, 0] != 0) | (ids < AS_JSON)] = 0
    distinct, schema_of = np.unique(ids, return_inverse=True)
    invalid = {
        index: _APICURIO_REASONS.get(schema_id, _NO_APICURIO_ID)
        for index, schema_id in enumerate(distinct.tolist())
        if schema_id <= 0
    }
    schema_of = schema_of.astype(np.int64)
    return FramedValues(values, _APICURIO_HEADER, distinct.tolist(), schema_of, invalid)


CONFLUENT: Final = Framing(_read_confluent, has_bare_bytes=True)
AWS_GLUE: Final = Framing(_read_aws_glue)
APICURIO: Final = Framing(_read_apicurio)


def leading_bytes(values: pa.Array, size: int) -> NDArray[np.uint8]:
    """Returns an array with one row per value: the first `size` bytes of the value, or zeros if the
    value is shorter. `values` may be a slice. If the type is not `pa.binary()`, all values count as
    too short.
    """
    leading = np.zeros((len(values), size), np.uint8)
    if not len(values) or values.type != pa.binary():
        return leading
    bounds = value_bounds(values)
    rows = np.flatnonzero(np.diff(bounds) >= size)
    if len(rows):
        content = np.frombuffer(values.buffers()[2], np.uint8)
        leading[rows] = content[bounds[rows, np.newaxis] + np.arange(size)]
    return leading


def value_bounds(values: pa.Array) -> NDArray[np.int64]:
    """Returns the positions of the values in their data buffer. These are the start of each value,
    and then the end of the last value.
    """
    _, ends, _ = values.buffers()
    if ends is None or not ends.size:
        return np.zeros(len(values) + 1, np.int64)
    return np.frombuffer(ends, np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)


def _distinct_uuids(rows: NDArray[np.uint8]) -> tuple[list[str], NDArray[np.int64]]:
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    return [str(uuid.UUID(bytes=row.tobytes())) for row in distinct], which.reshape(-1)


def without_headers(
    values: pa.Array, sizes: NDArray[np.int64], kept: NDArray[np.bool_]
) -> pa.Array:
    """Returns the values without their headers. A value becomes null if `kept` is false for it.

    Arrow's `binary_slice` is not used, because it raises for some arrays of short values.

    Args:
        values: A `pa.binary()` array of at least one value, which may be a slice.
        sizes: Size of each value's header in bytes.
        kept: Mask of the values to return. It must be false for nulls.
    """
    bounds = value_bounds(values)
    value_sizes = np.diff(bounds)
    rest = np.where(kept, value_sizes - sizes, 0)
    runs = np.column_stack([value_sizes - rest, rest]).ravel()
    is_rest = np.repeat(np.tile([False, True], len(values)), runs)
    content = _content(values, bounds)[is_rest]
    return _binary_array(kept, np.concatenate([[0], np.cumsum(rest)]), content)


def insert_avro_lengths(values: pa.Array, rows: NDArray[np.bool_], prefix: int) -> pa.Array:
    """Inserts the length that Avro requires before the bytes into values of the Avro type bytes.

    Args:
        values: A `pa.binary()` array of at least one value, which may be a slice.
        rows: Mask of the values that lack the length. It must be false for nulls.
        prefix: Size in bytes of the header at the start of each value, after which the length is
            inserted.

    Raises:
        ValueError: The result would exceed 2 GiB.
    """
    bounds = value_bounds(values)
    sizes = np.diff(bounds)
    # The lengths are zig-zag varints: seven bits per byte, the lowest bits first.
    shifts = np.arange(0, 35, 7)
    groups = (2 * (sizes[rows] - prefix))[:, None] >> shifts
    used = (groups > 0) | (shifts == 0)
    is_continued = np.column_stack([used[:, 1:], np.zeros(len(used), np.bool_)])
    digits = ((groups & 0x7F) | np.where(is_continued, 0x80, 0)).astype(np.uint8)
    counts = used.sum(axis=1)
    positions = np.repeat(bounds[:-1][rows] - bounds[0] + prefix, counts)
    content = np.insert(_content(values, bounds), positions, digits[used])
    sizes[rows] += counts
    ends = np.concatenate([[0], np.cumsum(sizes)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError("the values of a batch exceed 2 GiB; read smaller batches")
    valid = values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None
    return _binary_array(valid, ends, content)


def _content(values: pa.Array, bounds: NDArray[np.int64]) -> NDArray[np.uint8]:
    data = values.buffers()[2]
    return np.frombuffer(b"" if data is None else data, np.uint8)[bounds[0] : bounds[-1]]


def _binary_array(
    valid: NDArray[np.bool_] | None, ends: NDArray[np.int64], content: NDArray[np.uint8]
) -> pa.Array:
    validity = None if valid is None else copied(np.packbits(valid, bitorder="little"))
    buffers = [validity, copied(ends.astype(np.int32)), copied(content)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)
