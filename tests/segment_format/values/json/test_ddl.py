"""Tests that Spark's DDL is parsed and printed."""

from __future__ import annotations

import re
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.values.json.ddl import parse_ddl, parse_json, print_ddl
from segment_format.values.json.decoder import JsonDecoder
from tests.quick import examples
from tests.segment_format.values.json.generated import any_type


def elements(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a bigint, b struct<c: string>, d decimal(10,2), e array<int>, f map<string,double>",
         pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())])),
                    ("d", pa.decimal128(10, 2)), ("e", elements(pa.int32())),
                    ("f", pa.map_(pa.string(), pa.float64()))])),
        ("A BIGINT NOT NULL COMMENT 'it''s'", None),
        ("A BIGINT NOT NULL COMMENT 'it\\'s', b Float comment \"x\"",
         pa.struct([pa.field("A", pa.int64(), nullable=False), ("b", pa.float32())])),
        ("bigint", pa.int64()),
        ("date date", pa.struct([("date", pa.date32())])),
        ("decimal decimal", pa.struct([("decimal", pa.decimal128(10, 0))])),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("`a b` int,`c``d`: string", pa.struct([("a b", pa.int32()), ("c`d", pa.string())])),
        ("array<array<timestamp_ntz>>", elements(elements(pa.timestamp("us")))),
        ("struct<>", pa.struct([])),
        ("t timestamp, u timestamp_ltz, v long, w integer, x real, y numeric(3,1)",
         pa.struct([("t", pa.timestamp("us", "UTC")), ("u", pa.timestamp("us", "UTC")),
                    ("v", pa.int64()), ("w", pa.int32()), ("x", pa.float32()),
                    ("y", pa.decimal128(3, 1))])),
        (" a\n\tbinary ,b boolean not null ", pa.struct(
            [("a", pa.binary()), pa.field("b", pa.bool_(), nullable=False)])),
    ],
)  # fmt: skip
def test_ddl_text_is_parsed_to_its_type(text: str, kind: pa.DataType | None) -> None:
    if kind is None:
        with pytest.raises(ValueError, match="character"):
            parse_ddl(text)
        return
    assert parse_ddl(text) == kind
    JsonDecoder(kind)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected the name of a column at character 0, not the end"),
        ("a", "a type (boolean, int, bigint"),
        ("a smallint", "at character 2, not 'smallint'"),
        ("a tinyint", "not 'tinyint'"),
        ("a varchar(10)", "not 'varchar'"),
        ("a interval", "not 'interval'"),
        ("a int,", "expected the name of a column at character 6, not the end"),
        ("a int b int", "expected the end, or a comma and another column at character 6"),
        ("a array<int", "expected '>' at character 11, not the end"),
        ("a map<int,int>", "expected 'string', the only supported type of map keys at character 6"),
        ("a decimal(39,0)", "decimal(39,0) at character 9: the precision must be in [1, 38]"),
        ("a decimal(5,6)", "decimal(5,6)"),
        ("a decimal(-1)", "unexpected '-1)' at character 10"),
        ("a int, a int", "column 'a' is repeated at character 7"),
        ("a int not", "expected 'null' at character 9"),
        ("a int comment x", "expected a comment in quotes at character 14"),
        ("`a int", "unexpected '`a int' at character 0"),
        ("array<" * 200 + "int" + ">" * 200, "more than 100 levels deep"),
    ],
)
def test_invalid_ddl_raises(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_ddl(text)


@settings(max_examples=examples(150), deadline=None)
@given(random=st.integers(0, 2**60).map(Random))
def test_ddl_round_trips(random: Random) -> None:
    kind = any_type(random)
    text = print_ddl(kind)
    parsed = parse_ddl(text)
    assert print_ddl(parsed) == text
    if "[" not in text:
        assert _nullable(parsed) == _nullable(kind)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Returns the type with nullable items, because DDL cannot mark items as not null."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_nullable(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return elements(_nullable(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _nullable(kind.item_type))
    return kind


def test_type_without_ddl_raises() -> None:
    for kind in (pa.int8(), pa.map_(pa.int32(), pa.int8()), pa.struct([("a", pa.time32("s"))])):
        with pytest.raises(ValueError, match="cannot be expressed"):
            print_ddl(kind)


@pytest.mark.parametrize("name", ["array", "Map", "struct", "decimal", "int", "not", "comment"])
def test_column_named_like_a_keyword_round_trips(name: str) -> None:
    kind = pa.struct([(name, pa.int64())])
    assert parse_ddl(print_ddl(kind)) == kind


def test_ddl_of_types_that_json_does_not_decode_is_printed() -> None:
    kind = pa.struct([("a", pa.map_(pa.int32(), pa.duration("us"))), ("b", pa.null())])
    assert print_ddl(kind) == "a map<int,interval day to second>, b void"


def test_ddl_text_round_trips() -> None:
    text = "a bigint not null, `b c` struct<d: string, e: decimal(4,2)>, f map<string,array<int>>"
    assert print_ddl(parse_ddl(text)) == text


def test_parse_json_accepts_the_texts_that_the_decoder_accepts() -> None:
    chance = Random(34)
    parts = [b'"', b"\\", b"\\ud83d", b"\\ude00", b"\xff", b"\xef\xbb\xbf", b"\t", b"1" * 5000]
    parts += [b"-", b"0", b".5", b"e9", b"NaN", b"Infinity", b"null", b"{", b"}", b"[", b"]", b","]
    decoder = JsonDecoder(parse_ddl("other bigint"))
    outcomes = set()
    for _ in range(3000):
        text = bytearray(b'{"a": [1, -2.5e3, "x\\n", true], "b": {"c": null}, "d": "\xc3\xa9"}')
        for _ in range(chance.randint(0, 2)):
            start = chance.randrange(len(text))
            text[start : start + chance.randint(0, 2)] = chance.choice(parts)
        is_valid = not decoder.decode(pa.array([bytes(text)], pa.binary())).bad
        outcomes.add(is_valid)
        try:
            parse_json(bytes(text))
        except ValueError:
            assert not is_valid, text
        else:
            assert is_valid, text
    assert outcomes == {True, False}
