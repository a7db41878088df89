"""Tests that printed schemas parse to equal schemas, and that extension only adds fields."""

from __future__ import annotations

import json
from itertools import permutations
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
    return print_avro(
        extended(parse_avro(json.dumps(reader)), [parse_avro(json.dumps(writer))], "R")
    )


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


TYPES = {
    ("int", "long"): ["null", "long"],
    ("int", "float"): ["null", "double"],
    ("long", "double"): ["null", "double"],
    ("float", "double"): ["null", "double"],
    ("int", "long", "float"): ["null", "double"],
    ("string", ("null", "string")): ["null", "string"],
}


def new_field(*types: object) -> str:
    writers = [
        record("R", ("a", "int"), ("x", list(kind) if isinstance(kind, tuple) else kind))
        for kind in types
    ]
    parsed = [parse_avro(json.dumps(writer)) for writer in writers]
    return print_avro(extended(parse_avro(json.dumps(record("R", ("a", "int")))), parsed, "value"))


@pytest.mark.parametrize(("types", "expected"), TYPES.items())
def test_new_field_gets_a_type_for_all_writers_in_any_order(
    types: tuple[object, ...], expected: list[str]
) -> None:
    for order in permutations(types):
        parsed = parse_avro(new_field(*order))
        document = record("R", ("a", "int"), ("x", expected, None))
        assert parsed == parse_avro(json.dumps(document))


def test_new_record_gets_the_fields_and_symbols_of_all_writers() -> None:
    def inner(symbols: list[str], *fields: tuple[Any, ...]) -> dict[str, Any]:
        kind = {"type": "enum", "name": "E", "symbols": symbols}
        return record("N", ("e", kind), *fields)

    first = inner(["A"], ("p", "int", 1), ("q", "int"))
    other = inner(["A", "B"], ("p", "long", 2), ("r", "string"))
    expected = inner(
        ["A", "B"], ("p", "long"), ("q", ["null", "int"], None), ("r", ["null", "string"], None)
    )
    document = record("R", ("a", "int"), ("x", ["null", expected], None))
    assert parse_avro(new_field(first, other)) == parse_avro(json.dumps(document))


def test_order_of_writers_in_groups_does_not_change_the_type_of_a_new_field() -> None:
    def fields_of(text: str) -> dict[str, Any]:
        kind = json.loads(text)["fields"][1]["type"][1]
        return {field["name"]: field for field in kind["fields"]}

    writers = [
        record("N", ("p", "int", 1)),
        record("N", ("p", "long", 2), ("q", ["null", "float"], None)),
        record("N", ("q", "int")),
        record("N", ("p", ["int", "null"], 3)),
    ]
    expected = fields_of(new_field(*writers))
    assert expected["p"]["type"] == ["null", "long"]
    assert expected["q"]["type"] == ["null", "double"]
    reader = parse_avro(json.dumps(record("R", ("a", "int"))))
    for order in permutations(writers):
        for count in range(1, len(order)):
            tasks = [parse_avro(new_field(*order[:count])), parse_avro(new_field(*order[count:]))]
            assert fields_of(print_avro(extended(reader, tasks, "value"))) == expected


@pytest.mark.parametrize("types", [("int", "string"), ("string", "bytes"), ("int", record("N"))])
def test_new_field_without_a_common_type_is_refused(types: tuple[object, ...]) -> None:
    for order in permutations(types):
        with pytest.raises(AvroSchemaError, match=r"new field value\.x is .* in some schemas and"):
            new_field(*order)


def test_two_types_with_the_same_name_are_refused() -> None:
    reader = record("R", ("a", record("X", ("p", "int"))))
    writer = record("R", ("b", record("X", ("p", "string"))))
    with pytest.raises(AvroSchemaError, match="different types named X"):
        extended_texts(reader, writer)
