"""Tests that printed schemas parse to equal schemas, and that extension only adds fields."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from segment_format.values.avro.extension import extended, print_avro
from segment_format.values.avro.schema import AvroSchemaError, parse_avro
from tests.segment_format.values.avro.generated import Schemas


def record(name: str, *fields: tuple[Any, ...], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Returns a record whose fields are (name, type) or (name, type, default)."""
    members = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": members, **more}


def extended_texts(reader: object, writer: object) -> str:
    return print_avro(extended(parse_avro(json.dumps(reader)), parse_avro(json.dumps(writer))))


@pytest.mark.parametrize("seed", range(200))
def test_printed_random_schema_parses_to_an_equal_schema(seed: int) -> None:
    schema = parse_avro(json.dumps(Schemas(Random(seed)).any(4)))
    assert parse_avro(print_avro(schema)) == schema


def test_printed_schema_keeps_names_aliases_and_defaults() -> None:
    inner = record("Inner", ("x", "int", 5), namespace="", aliases=["some.Old"])
    document = record("Outer", ("a", inner), ("b", "Inner"), ("c", "Inner"), namespace="some")
    schema = parse_avro(json.dumps(document))
    assert parse_avro(print_avro(schema)) == schema
    assert print_avro(schema).count('"fields"') == 2


def test_fields_of_the_writer_are_added_as_nullable_fields_at_any_depth() -> None:
    reader = record(
        "R",
        ("l", {"type": "array", "items": record("I", ("x", "int"))}),
        ("m", ["null", {"type": "map", "values": record("V", ("y", "int"))}], None),
    )
    writer = record(
        "R",
        ("new", record("N", ("z", "long")), {"z": 1}),
        ("m", {"type": "map", "values": record("V", ("y", "int"), ("y2", ["string", "null"]))}),
        ("l", {"type": "array", "items": record("I", ("x2", "string"), ("x", "long"))}),
    )
    expected = record(
        "R",
        ("l", {"type": "array", "items": record(
            "I", ("x", "int"), ("x2", ["null", "string"], None))}),
        ("m", ["null", {"type": "map", "values": record(
            "V", ("y", "int"), ("y2", ["null", "string"], None))}], None),
        ("new", ["null", record("N", ("z", "long"))], None),
    )  # fmt: skip
    assert parse_avro(extended_texts(reader, writer)) == parse_avro(json.dumps(expected))
    assert extended_texts(expected, writer) == print_avro(parse_avro(json.dumps(expected)))


def test_two_types_with_the_same_name_are_refused() -> None:
    reader = record("R", ("a", record("X", ("p", "int"))))
    writer = record("R", ("b", record("X", ("p", "string"))))
    with pytest.raises(AvroSchemaError, match="different types named X"):
        extended_texts(reader, writer)
