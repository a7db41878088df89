"""Tests which schemas are accepted, rejected, and resolved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from segment_format.values.avro.decoder import AvroDecoder
from segment_format.values.avro.program import check_defaults
from segment_format.values.avro.schema import MAX_LEVELS, MAX_TYPES, AvroSchemaError, parse_avro

if TYPE_CHECKING:
    from tests.segment_format.values.avro.generated import Json


def type_of(schema: Json) -> pa.DataType:
    return AvroDecoder(parse_avro(json.dumps(schema))).type


def record(*fields: tuple[Any, ...], name: str = "R", **more: Json) -> dict[str, Any]:
    fields_made = []
    for field, kind, *default in fields:
        fields_made.append(
            {"name": field, "type": kind} | ({"default": default[0]} if default else {})
        )
    return {"type": "record", "name": name, "fields": fields_made, **more}


def read(writer: Json, reader: Json, *values: bytes) -> list[Any]:
    decoder = AvroDecoder(parse_avro(json.dumps(reader)), parse_avro(json.dumps(writer)))
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.array.validate(full=True)
    rows: list[Any] = decoded.array.to_pylist()
    for error in decoded.bad:
        rows[error.row] = f"{error.path}: {error.reason}"
    return rows


def logical(kind: str, meaning: str, /, **more: Json) -> dict[str, Any]:
    return {"type": kind, "logicalType": meaning, **more}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ("bytes", pa.binary()),
        ("null", pa.null()),
        (logical("int", "date"), pa.date32()),
        (logical("int", "time-millis"), pa.int32()),
        (logical("long", "time-micros"), pa.int64()),
        (logical("long", "timestamp-millis"), pa.timestamp("us", tz="UTC")),
        (logical("long", "timestamp-micros"), pa.timestamp("us", tz="UTC")),
        (logical("long", "local-timestamp-millis"), pa.timestamp("us")),
        (logical("long", "local-timestamp-micros"), pa.timestamp("us")),
        (logical("long", "timestamp-nanos"), pa.int64()),
        (logical("string", "uuid"), pa.string()),
        (logical("bytes", "decimal", precision=5, scale=2), pa.decimal128(5, 2)),
        (logical("fixed", "decimal", name="F", size=4, precision=9), pa.decimal128(9, 0)),
        (logical("fixed", "duration", name="F", size=12), pa.binary()),
        # Invalid logical type: the base type remains.
        (logical("int", "uuid"), pa.int32()),
        (logical("bytes", "decimal", precision=2, scale=3), pa.binary()),
        (logical("fixed", "decimal", name="F", size=1, precision=9), pa.binary()),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string()),
        (["null", "int"], pa.int32()),
        (["int", "long"], pa.int64()),
        (["double", "null", "float"], pa.float64()),
        (["int", "null", "string"], pa.struct([("member0", pa.int32()), ("member1", pa.string())])),
        ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.int32())),
        (
            {"type": "array", "items": record(("a", "int"))},
            pa.list_(pa.field("element", pa.struct([("a", pa.int32())]))),
        ),
    ],
)  # fmt: skip
def test_schema_types_match_spark_from_avro(schema: Json, expected: pa.DataType) -> None:
    assert type_of(schema) == expected


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "JSONDecodeError"),
        ('"nothing"', "does not define"),
        ("17", "not an Avro schema"),
        ("[]", "has no types"),
        ('["int", ["null"]]', "nested in a union"),
        ('["int", "int"]', "twice"),
        ('{"type": "array"}', "'items'"),
        ('{"type": "record", "name": "R"}', "'fields'"),
        ('{"type": "record", "name": "R", "fields": [{"type": "int"}]}', "no name"),
        ('{"type": "fixed", "name": "F", "size": -1}', "size"),
        ('{"type": "enum", "name": "E", "symbols": []}', "no symbols"),
        ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', "not one of its"),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 39}', "39 digits"),
        (json.dumps(record(("a", "int"), ("a", "int"))), "repeated fields"),
        (json.dumps(record(("a", ["null", "R"]))), "R contains itself"),
        (json.dumps(record(("a", record(("b", {"type": "array", "items": "R"}), name="S")))),
         "R contains itself"),
    ],
)  # fmt: skip
def test_invalid_schema_raises(schema: str, reason: str) -> None:
    with pytest.raises(AvroSchemaError, match=reason):
        parse_avro(schema)


def test_schema_with_too_many_types_or_levels_raises() -> None:
    nested: Any = "int"
    for _ in range(MAX_LEVELS):
        nested = {"type": "array", "items": nested}
    with pytest.raises(AvroSchemaError, match="levels"):
        parse_avro(json.dumps(nested))
    with pytest.raises(AvroSchemaError):
        parse_avro("[" * 100_000)
    # Each type contains the previous one twice.
    doubling: Any = record(("a", "int"), name="T0")
    for number in range(1, 40):
        doubling = record(("a", doubling), ("b", f"T{number - 1}"), name=f"T{number}")
    with pytest.raises(AvroSchemaError, match=r"types|levels"):
        parse_avro(json.dumps(doubling))
    # References to other schemas also multiply the types, although each text is short.
    texts = [json.dumps(record(("a", "int"), name="T0"))]
    texts += [
        json.dumps(record(*((f"f{k}", f"T{number}") for k in range(30)), name=f"T{number + 1}"))
        for number in range(4)
    ]
    with pytest.raises(AvroSchemaError, match=f"{MAX_TYPES:,} types"):
        parse_avro(texts[-1], tuple(texts[:-1]))


def test_type_names_and_namespaces_resolve() -> None:
    inner = record(("x", "int"), name="Point", namespace="shapes")
    schema = record(("a", inner), ("b", "shapes.Point"), name="Line")
    assert type_of(schema).field("b").type == pa.struct([("x", pa.int32())])
    same_space = record(("a", record(("x", "int"), name="P")), ("b", "P"), name="n.Line")
    assert type_of(same_space).field("b").type == pa.struct([("x", pa.int32())])
    referring = parse_avro(json.dumps(record(("p", "shapes.Point"))), (json.dumps(inner),))
    assert AvroDecoder(referring).type.field("p").type == pa.struct([("x", pa.int32())])


def test_defaults_of_every_type_are_read() -> None:
    reader = record(
        ("i", "int", -5),
        ("s", "string", "né"),
        ("b", "bytes", "\u00ff\u0001"),
        ("f", {"type": "fixed", "name": "F", "size": 2}, "ab"),
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ("n", ["null", "int"], None),
        ("u", ["string", "null"], "x"),
        ("a", {"type": "array", "items": "double"}, [1, 2.5]),
        ("m", {"type": "map", "values": "boolean"}, {"k": True}),
        ("r", record(("x", "int"), ("y", "int", 9), name="In"), {"x": 1}),
        ("d", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, "\u0001"),
    )
    (row,) = read(record(("other", "string")), reader, b"\2q")
    assert row["d"].as_tuple() == (0, (1,), -1)
    del row["d"]
    assert row == {
        "i": -5, "s": "né", "b": b"\xff\x01", "f": b"ab", "e": "B", "n": None, "u": "x",
        "a": [1.0, 2.5], "m": [("k", True)], "r": {"x": 1, "y": 9},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "default"),
    [("int", "1"), ("int", 2**31), ("long", 1.5), ("string", 3), ("bytes", "\u0100"),
     ("boolean", 0), (["null", "int"], "x"), ({"type": "fixed", "name": "F", "size": 2}, "a"),
     ({"type": "array", "items": "int"}, [None]), ("float", 10**400)],
)  # fmt: skip
def test_field_default_that_does_not_fit_the_field_type_raises(kind: Json, default: Json) -> None:
    with pytest.raises(AvroSchemaError, match=r"'x'.*default"):
        read(record(), record(("x", kind, default)))
    deep = {"type": "map", "values": ["null", record(("x", kind, default), name="Q")]}
    schema = parse_avro(json.dumps(record(("a", "int", 1), ("b", deep))))
    with pytest.raises(AvroSchemaError, match=r"field 'b\.x': the default"):
        check_defaults(schema)


def test_too_large_default_raises() -> None:
    # 50 items at each of five levels: 312 million records without bytes.
    kind: Json = record(("n", "null", None), name="R0")
    for level in range(1, 6):
        items = {"type": "array", "items": kind}
        kind = record(("a", items, [{} for _ in range(50)]), name=f"R{level}")
    with pytest.raises(AvroSchemaError, match=r"field 'a.*more than 65,536 bytes"):
        check_defaults(parse_avro(json.dumps(kind)))
    text = record(("t", "string", "x" * 65_600))
    with pytest.raises(AvroSchemaError, match=r"field 't': the default has more than 65,536 bytes"):
        check_defaults(parse_avro(json.dumps(text)))
    check_defaults(parse_avro(json.dumps(record(("t", ["null", "string"], None)))))


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        (record(("a", "int")), record(("b", "int")), "'b'.*no default"),
        (record(("a", "string")), record(("a", "int")), "'a'.*string cannot be read as int"),
        (record(("a", "long")), record(("a", "int")), "long cannot be read as int"),
        (record(name="A"), record(name="B"), "the names differ"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, "2"),
        (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), "cannot be"),
        (logical("bytes", "decimal", precision=4, scale=1),
         logical("bytes", "decimal", precision=4, scale=2), r"decimal\(4,1\)"),
        (logical("bytes", "decimal", precision=4), "string", "cannot be"),
        (logical("int", "date"), logical("long", "timestamp-micros"), "cannot be"),
        (["null", "string"], "int", "cannot be read"),
        ("int", ["null", "string"], "cannot be read"),
    ],
)  # fmt: skip
def test_unresolvable_schema_raises_with_field(writer: Json, reader: Json, reason: str) -> None:
    with pytest.raises(AvroSchemaError, match=reason):
        read(writer, reader)


def test_row_with_unresolvable_union_branch_is_bad() -> None:
    writer, reader = record(("a", ["null", "int", "string"])), record(("a", ["null", "long"]))
    rows = read(writer, reader, b"\0", b"\2\6", b"\4\2x", b"\6")
    assert rows[:2] == [{"a": None}, {"a": 3}]
    assert rows[2] == "a: field 'a': string cannot be read as union of null, long"
    assert rows[3] == "a: a union has no such branch"
    assert read(record(("a", ["null", "int"])), record(("a", "int")), b"\2\6", b"\0") == [
        {"a": 3},
        "a: field 'a': null cannot be read as int",
    ]


def test_union_prefers_exact_branch_to_promotion() -> None:
    both = ["string", "bytes"]
    assert read(both, both, b"\2\2\xff", b"\0\2a") == [
        {"member0": None, "member1": b"\xff"},
        {"member0": "a", "member1": None},
    ]


def test_field_name_wins_over_alias() -> None:
    writer = record(("x", "int"), ("y", "int"), name="Old")
    reader = record(("x", "int"), name="New", aliases=["ns.Old"])
    reader["fields"].insert(0, {"name": "z", "type": "int", "aliases": ["x", "y"]})
    assert read(writer, reader, b"\2\4") == [{"z": 2, "x": 1}]


def test_enum_symbols_resolve_by_name() -> None:
    def enum(*symbols: str, **more: Json) -> Json:
        return {"type": "enum", "name": "E", "symbols": symbols, **more}

    writer = enum("A", "B", "C")
    assert read(writer, enum("C", "A"), b"\0", b"\2", b"\4", b"\6", b"\1") == [
        "A", ": the reader's enum does not have the symbol", "C",
        ": an enum has no such symbol", ": an enum has no such symbol",
    ]  # fmt: skip
    assert read(writer, enum("C", "X", default="X"), b"\0", b"\4") == ["X", "C"]


def test_nested_columns_are_selected() -> None:
    user = record(("id", "long"), ("name", "string"), name="User")
    schema = parse_avro(json.dumps(record(("user", ["null", user]), ("amount", "double"))))
    decoder = AvroDecoder(schema, columns=["user.id"])
    assert decoder.type == pa.struct([("user", pa.struct([("id", pa.int64())]))])
    value = b"\2\6\4ab" + bytes(8)
    decoded = decoder.decode(pa.array([value, b"\0" + bytes(8), value[:-1]], pa.binary()))
    assert decoded.array.to_pylist() == [{"user": {"id": 3}}, {"user": None}, None]
    assert [(error.row, error.path) for error in decoded.bad] == [(2, "amount")]
    for wrong, reason in (
        ("who", "user, amount"),
        ("user.x", "'user.x'"),
        ("amount.x", "not a record"),
    ):
        with pytest.raises(AvroSchemaError, match=reason):
            AvroDecoder(schema, columns=[wrong])


def test_fields_of_null_struct_are_null() -> None:
    """Some engines, such as DataFusion, read a field without checking whether the enclosing struct
    is null.
    """
    point = record(("x", "int"), ("inner", record(("y", "string"), name="In")), name="Point")
    schema = parse_avro(json.dumps(record(("n", "long"), ("p", ["null", point]))))
    values = [b"\2\2\4\2a", b"\2\0", None, b"\xff", b"\2\2\6\2b"]
    decoded = AvroDecoder(schema).decode(pa.array(values, pa.binary()))
    decoded.array.validate(full=True)
    points = decoded.array.field(1)
    assert decoded.array.field(0).to_pylist() == [1, 1, None, None, 1]
    assert points.is_valid().to_pylist() == [True, False, False, False, True]
    assert points.field(0).to_pylist() == [2, None, None, None, 3]
    assert points.field(1).field(0).to_pylist() == ["a", None, None, None, "b"]


def test_error_path_names_nested_field() -> None:
    inner = record(("price", "int"), name="Item")
    schema = record(("items", {"type": "array", "items": inner}))
    assert read(schema, schema, b"\2\xff\xff\xff\xff\xff\1\0") == [
        "items.price: an int has more than 32 bits"
    ]


def test_error_path_names_skipped_field() -> None:
    pair = {"type": "fixed", "name": "F", "size": 2}
    fields = [("a", pair), ("b", "F"), ("c", "string"), ("d", "bytes"), ("e", "int"), ("f", "long")]
    schema = parse_avro(json.dumps(record(*fields, ("wanted", "boolean"))))
    decoder = AvroDecoder(schema, columns=["wanted"])
    value = b"xxyy\2c\2d\2\2\1"
    cuts = [value[:size] for size in range(len(value) + 1)]
    decoded = decoder.decode(pa.array(cuts, pa.binary()))
    assert decoded.array.to_pylist() == [None] * len(value) + [{"wanted": True}]
    assert [error.path for error in decoded.bad] == [*"aabbccddef", "wanted"]
