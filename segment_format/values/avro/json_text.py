"""Values in Avro's JSON encoding, told from those in its binary one.

Some serializers can write it, such as Apicurio's, and nothing in front of a value says so. Read as
binary, the text of an object may even come out as a record of other values: `{"n":1,"s":"hello"}`
is a long of −62 and a string of 17 bytes.
"""

from __future__ import annotations

import json
from typing import Final

import numpy as np
import pyarrow as pa

JSON_TEXT: Final = (
    "it is the text of a JSON object: Avro's JSON encoding, which is not read (with Apicurio's"
    " serializer, apicurio.registry.avro.encoding=BINARY)"
)
"""Why such a value is bad."""
_FIRST: Final = ord("{")
_LAST: Final = ord("}")


def json_objects(values: pa.Array, prefix: int = 0) -> list[int]:
    """Rows of values that are a JSON object with members from beginning to end, in ascending order.

    A binary value of seven bytes or more may be such a text, too, and counts as one: where its
    first number is −62, and what follows goes on as JSON to its end.

    Args:
        values: May be a slice and have nulls; other types than `pa.binary()` have none.
        prefix: Bytes in front of each value.
    """
    if values.type != pa.binary():
        return []
    _, ends, data = values.buffers()
    if ends is None or data is None or not data.size or not ends.size:
        return []
    bounds = np.frombuffer(ends, np.int32, len(values) + 1, 4 * values.offset)
    content = np.frombuffer(data, np.uint8)
    at = np.minimum(bounds[:-1].astype(np.int64) + prefix, len(content) - 1)
    rows = np.flatnonzero(content[at] == _FIRST)
    if not len(rows):
        return []
    rows = rows[bounds[rows + 1] - bounds[rows] >= prefix + 2]
    rows = rows[content[bounds[rows + 1] - 1] == _LAST]
    held = ((row, values[row].as_py()) for row in rows.tolist())
    return [row for row, value in held if value is not None and is_json_object(value[prefix:])]


def is_json_object(value: bytes) -> bool:
    """Whether a value is the text of a JSON object with members. The readable `json_objects`."""
    if value[:1] != b"{" or value[-1:] != b"}":
        return False
    try:
        return bool(json.loads(value.decode()))  # without members, `{}` is two numbers, too
    except (ValueError, RecursionError):
        return False
