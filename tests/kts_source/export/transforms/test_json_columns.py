"""`JsonColumns` by the decoder of typed values, against the library that read them before."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.export.transforms import JsonColumns
from kts_source.export.transforms.row_transform import (
    Rejected,
    decode_json_objects,
    parse_json_objects,
)

SCHEMA = pa.schema(
    [
        ("long", pa.int64()),
        ("int", pa.int32()),
        ("double", pa.float64()),
        ("float", pa.float32()),
        ("text", pa.string()),
        ("yes", pa.bool_()),
        ("list", pa.list_(pa.int64())),
        ("user", pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))])),
    ]
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(-5, 5)
    | st.floats(allow_nan=True)
    | st.text(max_size=6)
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "long": st.none() | st.integers(-(2**63), 2**63 - 1),
        "int": st.none() | st.integers(-(2**31), 2**31 - 1),
        "double": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
        "float": st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
        "text": st.none() | st.text(max_size=8),
        "yes": st.none() | st.booleans(),
        "list": st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=3),
        "user": st.none()
        | st.fixed_dictionaries(
            {}, optional={"id": st.integers(0, 9), "tags": st.just(["a", "b"])}
        ),
        "other": anything,
    },
)


@st.composite
def texts(draw: st.DrawFn) -> bytes | None:
    """Objects that fit, objects and others that do not, texts with a byte that is wrong."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return None
    value = draw(fitting if kind < 7 else st.dictionaries(st.sampled_from(SCHEMA.names), anything))
    spaces = draw(st.sampled_from([None, 1]))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=spaces)
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if kind == 9 and data:
        data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from(b'{}[]",:.e0 n\xff\\'))
    return bytes(data)


def rows_of(made: pa.Table, rejected: list[Rejected], count: int) -> list[dict[str, Any] | None]:
    """Each row, or `None` where it is rejected."""
    bad = {found.row for found in rejected}
    good = iter(made.to_pylist())
    return [None if row in bad else next(good) for row in range(count)]


def same(one: Any, other: Any) -> bool:  # noqa: ANN401
    return repr(one) == repr(other)  # nan is nan, and 0.0 is not -0.0


def as_python(text: bytes) -> dict[str, Any]:
    """The members as the schema has them, the last of those of one name."""
    value = json.loads(text)
    row = pa.array([{name: value.get(name) for name in SCHEMA.names}], pa.struct(list(SCHEMA)))
    found: dict[str, Any] = row.to_pylist()[0]
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(texts(), min_size=1, max_size=6))
def test_what_was_read_is_read_as_before(values: list[bytes | None]) -> None:
    array = pa.array([b"", *values], pa.binary())[1:]
    before = rows_of(*parse_json_objects(pc.fill_null(array, b"{}"), SCHEMA), len(values))
    found = rows_of(*decode_json_objects(array, SCHEMA), len(values))
    for text, old, new in zip(values, before, found, strict=True):
        if old is not None:
            assert same(old, new)
        elif new is not None:  # 1.0 as a whole number, a member twice
            assert text is not None
            assert same(new, as_python(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"null", "rejected"),
        (b"[]", "rejected"),
        (b"", "rejected"),
        (b'{"long": "1"}', "rejected"),
        (b'{"long": 1.5}', "rejected"),
        (b'{"long": 1} {"long": 2}', "rejected"),
        (b'{"long": 1}\n{"long": 2}', "rejected"),
        (b'{"long": 1.0}', 1),
        (b'{"long": 1, "long": 2}', 2),
        (b' {"l\\u006fng": 3}\r\n', 3),
        (b'{"double": NaN, "long": 4}', 4),
        (b'{"text": "\xff", "long": 5}', 5),
        (None, None),
    ],
)
def test_single_rows(text: bytes | None, expected: Any) -> None:  # noqa: ANN401
    around = [b'{"long": 10}', text, b'{"long": 11}']
    found, rejected = decode_json_objects(pa.array(around, pa.binary()), SCHEMA)
    if expected == "rejected":
        assert [one.row for one in rejected] == [1]
        assert found["long"].to_pylist() == [10, 11]
    else:
        assert rejected == []
        assert found["long"].to_pylist() == [10, expected, 11]


def test_types_that_mean_something_else_are_read_as_before() -> None:
    schema = pa.schema([("at", pa.timestamp("s")), ("a", pa.int64())])
    values = pa.array([b'{"at": "2024-01-01 00:00:00", "a": 1}', None], pa.binary())
    found, rejected = decode_json_objects(values, schema)
    assert rejected == []
    assert str(found["at"][0]) == "2024-01-01 00:00:00"
    assert found["a"].to_pylist() == [1, None]


def test_the_fingerprint_is_the_one_that_tables_know() -> None:
    transform = JsonColumns(pa.schema([("a", pa.int64()), ("b", pa.string())]), keep=("offset",))
    assert transform.fingerprint == "json(value->a:int64,b:string;keep=offset)"
