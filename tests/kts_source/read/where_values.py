"""Encodes values of every type that conditions can compare, in the same way as an Avro producer."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any, Final

import fastavro

KINDS: Final[dict[str, Any]] = {
    "i": "int",
    "l": "long",
    "f": "float",
    "d": "double",
    "s": "string",
    "b": "bytes",
    "t": "boolean",
    "day": {"type": "int", "logicalType": "date"},
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "loc": {"type": "long", "logicalType": "local-timestamp-micros"},
    "p": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    "q": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18},
}
"""Maps a field to its Avro type; every field is nullable."""

_NAN: Final = float("nan")
_UTC: Final = dt.UTC
SAMPLES: Final[dict[str, list[Any]]] = {
    "i": [0, 1, -1, 5, 100, 2**31 - 1, -(2**31)],
    "l": [0, 1, -1, 5, 100, 2**53 + 1, 2**63 - 1, -(2**63)],
    "f": [0.0, -0.0, 0.1, 1.5, -1.5, 16777216.0, float("inf"), _NAN],
    "d": [0.0, -0.0, 0.1, 1.5, -1.5, 9007199254740992.0, -float("inf"), _NAN],
    "s": ["", "a", "ab", "b", "é", "CH", "a%", "5"],
    "b": [b"", b"a", b"ab", b"\xff", b"\x00\x01"],
    "t": [True, False],
    "day": [dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1900, 1, 1)],
    "at": [
        dt.datetime(1970, 1, 1, tzinfo=_UTC),
        dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=_UTC),
        dt.datetime(1950, 6, 1, 1, tzinfo=_UTC),
    ],
    "loc": [dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 12), dt.datetime(2024, 2, 29)],
    "p": [Decimal("0.00"), Decimal("1.50"), Decimal("-1.50"), Decimal("99999999.99")],
    "q": [Decimal("0"), Decimal("1.5"), Decimal("0.1"), Decimal("12345678901234567890.5")],
}


def record(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns a record schema whose fields are all nullable.

    A field whose type is a dict without `type` becomes a nested record.
    """
    encoded = []
    for field, kind in fields.items():
        nested = isinstance(kind, dict) and "type" not in kind
        type_of_field = record(f"{name}_{field}", kind) if nested else kind
        encoded.append({"name": field, "type": ["null", type_of_field]})
    return {"type": "record", "name": name, "fields": encoded}


SCHEMA: Final = record("Row", {**KINDS, "u": KINDS, "more": {"type": "array", "items": "int"}})


class Writer:
    """Encodes values of a schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.text = json.dumps(schema)
        self._schema = fastavro.parse_schema(schema)

    def __call__(self, value: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, self._schema, value)
        return stream.getvalue()
