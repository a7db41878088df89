"""Compares the kernel with the readable decoder, and the readable decoder with fastavro."""

from __future__ import annotations

import io
import json
import math
import time
from itertools import pairwise
from random import Random, SystemRandom
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.values.avro.decoder import AvroDecoder
from segment_format.values.avro.schema import AvroSchemaError, Schema, parse_avro
from tests.quick import examples
from tests.segment_format.values.avro.generated import Json, Schemas, Values
from tests.segment_format.values.avro.reference import BadAvroError, read
from tests.segment_format.values.nulls_below import check_nulls_below

SEEDS = st.integers(0, 2**32)


def is_same(actual: pa.Array, expected: pa.Array) -> bool:
    """Compares two arrays; NaN equals NaN."""
    if actual.type != expected.type:
        return False
    return bool(actual.equals(expected)) or repr(plain(actual)) == repr(plain(expected))


def plain(array: pa.Array) -> list[Any]:
    """Converts an array to Python values; dates outside Python's range become numbers."""
    kind = array.type
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        fields = [plain(field) for field in array.flatten()]
        rows: list[Any] = [[field[row] for field in fields] for row in range(len(array))]
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        inside = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
        children = [plain(child) for child in inside]
        ends = array.offsets.to_pylist()
        rows = [[child[start:stop] for child in children] for start, stop in pairwise(ends)]
    elif pa.types.is_temporal(kind):
        rows = array.view(pa.int32() if pa.types.is_date(kind) else pa.int64()).to_pylist()
    else:
        rows = array.to_pylist()
    return [row if present else None for row, present in zip(rows, valid, strict=True)]


def expected_of(
    writer: Schema, reader: Schema, values: list[bytes | None]
) -> tuple[list[Any], list[tuple[int, str]]]:
    """Decodes `values` with the readable decoder. Returns the rows, and the number and the field
    path of each bad row.
    """
    rows: list[Any] = []
    bad: list[tuple[int, str]] = []
    for number, value in enumerate(values):
        try:
            rows.append(None if value is None else read(writer, reader, value))
        except BadAvroError as error:
            rows.append(None)
            bad.append((number, ".".join(error.path)))
    return rows, bad


def check(decoder: AvroDecoder, writer: Schema, reader: Schema, values: list[bytes | None]) -> None:
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.array.validate(full=True)
    check_nulls_below(decoded.array)
    rows, bad = expected_of(writer, reader, values)
    assert [(error.row, error.path) for error in decoded.bad] == bad
    assert is_same(decoded.array, pa.array(rows, decoder.type))


def some_values(random: Random, writer: Schema, damaged_share: float) -> list[bytes | None]:
    made = Values(random)
    values: list[bytes | None] = []
    for _ in range(random.choice([1, 3, 20])):
        value = made.of(writer)
        if random.random() < damaged_share:
            value = made.damaged(value)
        values.append(None if random.random() < 0.1 else value)
    return values


@settings(max_examples=examples(100))
@given(SEEDS)
def test_kernel_matches_reference(seed: int) -> None:
    random = Random(seed)
    text = json.dumps(Schemas(random).any(4))
    writer = parse_avro(text)
    damaged_share = random.choice([0.0, 0.3, 1.0])
    check(AvroDecoder(writer), writer, writer, some_values(random, writer, damaged_share))


@settings(max_examples=examples(150))
@given(SEEDS)
def test_kernel_with_reader_schema_matches_reference(seed: int) -> None:
    random = Random(seed)
    schemas = Schemas(random)
    written = schemas.record(4)
    reader_schema = schemas.reader(written)
    writer = parse_avro(json.dumps(written))
    try:
        reader = parse_avro(json.dumps(reader_schema))
        decoder = AvroDecoder(reader, writer)
    except AvroSchemaError:
        return
    check(decoder, writer, reader, some_values(random, writer, random.choice([0.0, 0.3])))


def without_logical(schema: Json) -> Json:
    """Returns the schema without logical types, because fastavro's dates end in year 9999."""
    if isinstance(schema, list):
        return [without_logical(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name != "logicalType"}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = without_logical(kept[name])
    if "fields" in kept:
        kept["fields"] = [
            {**field, "type": without_logical(field["type"])} for field in kept["fields"]
        ]
    return kept


@settings(max_examples=60)
@given(SEEDS)
def test_readable_decoder_matches_fastavro(seed: int) -> None:
    random = Random(seed)
    written = without_logical(Schemas(random).any(4))
    writer = parse_avro(json.dumps(written))
    parsed = fastavro.parse_schema(written)
    for _ in range(5):
        data = Values(random).of(writer)
        assert read(writer, writer, data, plain=True) == fastavro.schemaless_reader(
            io.BytesIO(data), parsed, None
        )


@settings(max_examples=60)
@given(SEEDS)
def test_readable_decoder_with_reader_schema_matches_fastavro(seed: int) -> None:
    random = Random(seed)
    schemas = Schemas(random)
    written = without_logical(schemas.record(3))
    reader_schema = schemas.reader(written)
    writer = parse_avro(json.dumps(written))
    try:
        reader = parse_avro(json.dumps(reader_schema))
        AvroDecoder(reader, writer)
        fastavro_schemas = fastavro.parse_schema(written), fastavro.parse_schema(reader_schema)
    except (AvroSchemaError, fastavro.schema.SchemaParseException):
        return
    for _ in range(5):
        data = Values(random).of(writer)
        try:
            expected = fastavro.schemaless_reader(io.BytesIO(data), *fastavro_schemas)
        except Exception:  # noqa: BLE001 - whatever it refuses: names of other spaces, text in bytes
            continue
        try:
            decoded = read(writer, reader, data, plain=True)
        except BadAvroError:
            # fastavro accepts a union branch or a text that is invalid here.
            continue
        assert is_alike(decoded, expected)


def is_alike(actual: Json, expected: Json) -> bool:
    """Compares values, but ignores known differences of fastavro: it returns text for default
    bytes, rounds float32 values later, and picks the first branch of a reader's union that
    accepts the value, even if a later branch has the exact type.
    """
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(
            is_alike(item, expected[key]) for key, item in actual.items()
        )
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(is_alike, actual, expected))
    if isinstance(actual, bytes) and isinstance(expected, str):
        return expected in (actual.decode("latin-1"), actual.decode(errors="replace"))
    if isinstance(actual, str) and isinstance(expected, bytes):
        return actual.encode() == expected
    if isinstance(expected, float) and isinstance(actual, float | int):
        return math.isclose(actual, expected, rel_tol=1e-6) or abs(expected) > 3.4e38
    return bool(actual == expected)


def _named_fields(schema: Json) -> list[str]:
    return [field["name"] for field in schema["fields"]]


@settings(max_examples=60)
@given(SEEDS)
def test_selected_columns_match_full_decode(seed: int) -> None:
    random = Random(seed)
    written = Schemas(random).record(4)
    writer = parse_avro(json.dumps(written))
    names = _named_fields(written)
    some = random.sample(names, random.randint(1, len(names)))
    values = some_values(random, writer, random.choice([0.0, 0.3]))
    array = pa.array(values, pa.binary())
    every = AvroDecoder(writer).decode(array)
    few = AvroDecoder(writer, columns=some).decode(array)
    few.array.validate(full=True)
    assert few.array.type.names == [name for name in names if name in some]
    bad = {error.row for error in every.bad}
    assert {error.row for error in few.bad} <= bad
    for name in some:
        all_of_it = every.array.flatten()[every.array.type.get_field_index(name)]
        column = few.array.flatten()[few.array.type.get_field_index(name)]
        good = pa.array([row not in bad for row in range(len(values))])
        assert is_same(column.filter(good), all_of_it.filter(good))


@pytest.mark.parametrize("step", [1, 7])
def test_sliced_input_decodes_only_its_rows(step: int) -> None:
    random = Random(step)
    writer = parse_avro(json.dumps(Schemas(random).record(4)))
    values = [Values(random).of(writer) for _ in range(30)]
    values[4] = values[20] = None  # type: ignore[call-overload]
    array = pa.array(values, pa.binary())
    decoder = AvroDecoder(writer)
    full = decoder.decode(array).array
    for start in range(0, 30, step):
        sliced = decoder.decode(array.slice(start, 5))
        assert is_same(sliced.array, full.slice(start, 5))
    assert len(decoder.decode(array.slice(30)).array) == 0


def test_bad_value_does_not_change_other_rows() -> None:
    random = Random(5)
    for _ in range(20):
        writer = parse_avro(json.dumps(Schemas(random).record(4)))
        good = [Values(random).of(writer) for _ in range(500)]
        damaged = list(good)
        positions = sorted(random.sample(range(500), 25))
        for row in positions:
            damaged[row] = good[row] + b"\x00"
        decoder = AvroDecoder(writer)
        before = decoder.decode(pa.array(good, pa.binary()))
        after = decoder.decode(pa.array(damaged, pa.binary()))
        assert before.bad == ()
        assert [error.row for error in after.bad] == positions
        assert {error.reason for error in after.bad} == {"bytes follow after the end of the value"}
        after.array.validate(full=True)
        unchanged = pa.array([row not in set(positions) for row in range(500)])
        assert is_same(after.array.filter(unchanged), before.array.filter(unchanged))
        assert after.array.null_count == 25


@pytest.mark.fuzz
def test_kernel_reference_and_fastavro_match_for_many_random_seeds() -> None:
    properties: list[Any] = [
        test_kernel_matches_reference,
        test_kernel_with_reader_schema_matches_reference,
        test_readable_decoder_matches_fastavro,
        test_readable_decoder_with_reader_schema_matches_fastavro,
        test_selected_columns_match_full_decode,
    ]
    seed = SystemRandom().randrange(1 << 60)
    stop = time.monotonic() + 20
    tried = 0
    while time.monotonic() < stop:
        for run_property in properties:
            try:
                run_property.hypothesis.inner_test(seed + tried)
            except Exception as error:
                raise AssertionError(f"{run_property.__name__}({seed + tried})") from error
        tried += 1
    print(f"{tried} seeds from {seed} on")  # noqa: T201  # shown by pytest -rP
    assert tried > 10
