"""Tests that a JSON Schema maps to a type, or raises an error with the unsupported keyword."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest

from segment_format.values.json.ddl import parse_ddl, print_ddl
from segment_format.values.json.decoder import JsonDecoder
from segment_format.values.json.json_schema import json_schema_type

ORDER: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "amount": {"type": "number"},
        "count": {"type": "integer", "minimum": 1},
        "small": {"type": "integer", "format": "int32"},
        "ratio": {"type": "number", "format": "float"},
        "paid": {"type": ["null", "boolean"]},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "blob": {"type": "string", "contentEncoding": "base64"},
        "state": {"enum": ["open", "paid", None]},
        "kind": {"const": 7},
        "either": {"type": ["integer", "number"]},
        "user": {"$ref": "#/$defs/user"},
        "boss": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/user"}]},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        "items": {"type": "array", "items": {"properties": {"sku": {"type": "string"}}}},
    },
    "required": ["id", "paid", "state", "user", "boss", "unknown"],
    "additionalProperties": False,
    "$defs": {
        "user": {
            "type": "object",
            "properties": {"name": {"anyOf": [{"type": "string", "maxLength": 9}]}},
            "required": ["name"],
        }
    },
}
DDL = (
    "id string not null, amount double, count bigint, small int, ratio float, paid boolean,"
    " day date, at timestamp, blob binary, state string, kind bigint, either double,"
    " user struct<name: string not null> not null, boss struct<name: string not null>,"
    " tags map<string,string>, items array<struct<sku: string>>"
)


def test_schema_of_the_order_example_maps_to_type() -> None:
    kind = json_schema_type(json.dumps(ORDER))
    assert print_ddl(kind) == DDL
    assert parse_ddl(DDL) == kind  # the type survives the conversion to DDL


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, pa.string()),
        ({"type": "array", "items": {"type": "integer"}}, parse_ddl("array<bigint>")),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, pa.float64()),
        ({"type": "string", "enum": ["a"], "format": "email"}, pa.string()),
        ({"allOf": [{"type": "boolean"}], "description": "x"}, pa.bool_()),
        (
            {"$ref": "#/definitions/a~1b%20c", "definitions": {"a/b c": {"type": "integer"}}},
            pa.int64(),
        ),
        ({"properties": {"": {"type": "string"}, "a.b`c": {"const": None, "type": "string"}}},
         pa.struct([("", pa.string()), ("a.b`c", pa.string())])),
    ],
)  # fmt: skip
def test_json_schema_maps_to_type(schema: object, kind: pa.DataType) -> None:
    parsed = json_schema_type(json.dumps(schema))
    assert parsed == kind
    assert parse_ddl(print_ddl(parsed)) == kind
    JsonDecoder(parsed)


REF: dict[str, Any] = {"$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({}, "the value of the JSON Schema: a schema has no type"),
        (True, "a schema has no type"),
        ({"properties": {"a": {"properties": {"b": {}}}}}, "field 'a.b' of the JSON Schema: a sch"),
        ({"type": ["string", "integer"]}, "values have several types: integer, string"),
        ({"type": "text"}, "unknown type \"text\""),
        ({"type": 1}, "invalid type: 1"),
        ({"type": "object"}, "an object has neither properties"),
        ({"type": "object", "additionalProperties": True}, "an object has neither properties"),
        ({"type": "object", "additionalProperties": {}}, "a schema has no type"),
        ({"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}},
         "an object has properties and a type"),
        ({"type": "array"}, "the items of an array have no single type"),
        ({"type": "array", "items": [{"type": "string"}]}, "have no single type"),
        ({"type": "array", "prefixItems": []}, "'prefixItems' does not describe a single type"),
        ({"patternProperties": {}}, "'patternProperties'"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "oneOf has several types"),
        ({"oneOf": []}, "oneOf has no schemas"),
        ({"allOf": [{"type": "string"}, {"maxLength": 1}]}, "allOf has several schemas"),
        ({"oneOf": [{"required": ["a"]}], "properties": {"a": {"type": "string"}}},
         "oneOf and properties do not describe a single type"),
        ({"$ref": "other.json"}, "a reference leads out of the document: \"other.json\""),
        ({"$ref": "#anchor"}, "a reference leads out of the document"),
        ({"$ref": "#/$defs/b"}, "#/$defs/b does not exist"),
        ({"$ref": "#"}, "# contains itself"),
        (REF | {"$defs": {"a": {"properties": {"next": REF}}}},
         "contains itself, which columns cannot represent"),
        ({"type": "null"}, "allows only null"),
        ({"properties": {"a": {"type": "null"}}}, "field 'a' of the JSON Schema: only null is"),
        ({"enum": []}, "an enum has no values"),
        ({"enum": [1, "a"]}, "values have several types"),
        ({"enum": [{}]}, "an enum has objects or arrays"),
        ({"properties": {"\ud800": {"type": "string"}}}, "not a JSON Schema: UnicodeEncodeError"),
    ],
)  # fmt: skip
def test_unsupported_schema_raises(schema: object, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        json_schema_type(json.dumps(schema))


def test_schema_expanding_to_many_types_raises() -> None:
    names = [f"t{number}" for number in range(30)]
    definitions: dict[str, Any] = {"t30": {"type": "string"}}
    for name, below in zip(names, [*names[1:], "t30"], strict=True):
        reference = {"$ref": f"#/$defs/{below}"}
        definitions[name] = {"properties": {"a": reference, "b": reference}}
    document = {"$ref": "#/$defs/t0", "$defs": definitions}
    with pytest.raises(ValueError, match=r"more than (8,192 types|64 levels)"):
        json_schema_type(json.dumps(document))
    deep: Any = {"type": "string"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ValueError, match="more than 64 levels"):
        json_schema_type(json.dumps(deep))
    with pytest.raises(ValueError, match="not a JSON Schema"):
        json_schema_type("[" * 100_000)
