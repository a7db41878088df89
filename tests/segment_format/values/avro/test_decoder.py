"""The kernel against the readable reader, and that against fastavro."""

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
from tests.segment_format.values.avro.generated import Json, Schemas, Values
from tests.segment_format.values.avro.reference import BadAvroError, read
from tests.segment_format.values.nulls_below import check_nulls_below

SEEDS = st.integers(0, 2**32)


def same(found: pa.Array, expected: pa.Array) -> bool:
    """NaN is NaN here."""
    if found.type != expected.type:
        return False
    return bool(found.equals(expected)) or repr(plain(found)) == repr(plain(expected))


def plain(array: pa.Array) -> list[Any]:
    """Python values, also of dates that Python has none for."""
    kind = array.type
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        fields = [plain(field) for field in array.flatten()]
        rows: list[Any] = [[field[row] for field in fields] for row in range(len(array))]
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        inside = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
        children = [plain(one) for one in inside]
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
    """Rows and bad ones, by the readable reader."""
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
    found = decoder.decode(pa.array(values, pa.binary()))
    found.array.validate(full=True)
    check_nulls_below(found.array)
    rows, bad = expected_of(writer, reader, values)
    assert [(one.row, one.path) for one in found.bad] == bad
    assert same(found.array, pa.array(rows, decoder.type))


def some_values(random: Random, writer: Schema, spoiled: float) -> list[bytes | None]:
    made = Values(random)
    values: list[bytes | None] = []
    for _ in range(random.choice([1, 3, 20])):
        value = made.of(writer)
        if random.random() < spoiled:
            value = made.spoiled(value)
        values.append(None if random.random() < 0.1 else value)
    return values


@settings(max_examples=100)
@given(SEEDS)
def test_the_kernel_reads_as_the_readable_reader(seed: int) -> None:
    random = Random(seed)
    text = json.dumps(Schemas(random).any(4))
    writer = parse_avro(text)
    spoiled = random.choice([0.0, 0.3, 1.0])
    check(AvroDecoder(writer), writer, writer, some_values(random, writer, spoiled))


@settings(max_examples=150)
@given(SEEDS)
def test_other_readers_see_what_the_readable_reader_sees(seed: int) -> None:
    random = Random(seed)
    schemas = Schemas(random)
    written = schemas.record(4)
    wanted = schemas.reader(written)
    writer = parse_avro(json.dumps(written))
    try:
        reader = parse_avro(json.dumps(wanted))
        decoder = AvroDecoder(reader, writer)
    except AvroSchemaError:
        return
    check(decoder, writer, reader, some_values(random, writer, random.choice([0.0, 0.3])))


def without_logical(schema: Json) -> Json:
    """For fastavro, whose dates end in the year 9999."""
    if isinstance(schema, list):
        return [without_logical(one) for one in schema]
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
def test_the_readable_reader_reads_as_fastavro(seed: int) -> None:
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
def test_what_fastavro_resolves_we_resolve_alike(seed: int) -> None:
    random = Random(seed)
    schemas = Schemas(random)
    written = without_logical(schemas.record(3))
    wanted = schemas.reader(written)
    writer = parse_avro(json.dumps(written))
    try:
        reader = parse_avro(json.dumps(wanted))
        AvroDecoder(reader, writer)
        theirs = fastavro.parse_schema(written), fastavro.parse_schema(wanted)
    except (AvroSchemaError, fastavro.schema.SchemaParseException):
        return
    for _ in range(5):
        data = Values(random).of(writer)
        try:
            expected = fastavro.schemaless_reader(io.BytesIO(data), *theirs)
        except Exception:  # noqa: BLE001 - whatever it refuses: names of other spaces, text in bytes
            continue
        try:
            found = read(writer, reader, data, plain=True)
        except BadAvroError:
            # A branch of a union, or a text, that fastavro lets pass.
            continue
        assert alike(found, expected)


def alike(found: Json, expected: Json) -> bool:
    """The same, but for what fastavro does otherwise: text for default bytes, float32 rounded
    later, and of a reader's union the first branch that can take a value, though its own is there.
    """
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            alike(one, expected[key]) for key, one in found.items()
        )
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(alike, found, expected))
    if isinstance(found, bytes) and isinstance(expected, str):
        return expected in (found.decode("latin-1"), found.decode(errors="replace"))
    if isinstance(found, str) and isinstance(expected, bytes):
        return found.encode() == expected
    if isinstance(expected, float) and isinstance(found, float | int):
        return math.isclose(found, expected, rel_tol=1e-6) or abs(expected) > 3.4e38
    return bool(found == expected)


def _named_fields(schema: Json) -> list[str]:
    return [field["name"] for field in schema["fields"]]


@settings(max_examples=60)
@given(SEEDS)
def test_some_columns_are_what_all_have_of_them(seed: int) -> None:
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
    bad = {one.row for one in every.bad}
    assert {one.row for one in few.bad} <= bad
    for name in some:
        all_of_it = every.array.flatten()[every.array.type.get_field_index(name)]
        found = few.array.flatten()[few.array.type.get_field_index(name)]
        good = pa.array([row not in bad for row in range(len(values))])
        assert same(found.filter(good), all_of_it.filter(good))


@pytest.mark.parametrize("step", [1, 7])
def test_slices_are_read_from_their_first_value(step: int) -> None:
    random = Random(step)
    writer = parse_avro(json.dumps(Schemas(random).record(4)))
    values = [Values(random).of(writer) for _ in range(30)]
    values[4] = values[20] = None  # type: ignore[call-overload]
    array = pa.array(values, pa.binary())
    decoder = AvroDecoder(writer)
    whole = decoder.decode(array).array
    for start in range(0, 30, step):
        part = decoder.decode(array.slice(start, 5))
        assert same(part.array, whole.slice(start, 5))
    assert len(decoder.decode(array.slice(30)).array) == 0


def test_one_bad_value_costs_one_row() -> None:
    random = Random(5)
    for _ in range(20):
        writer = parse_avro(json.dumps(Schemas(random).record(4)))
        good = [Values(random).of(writer) for _ in range(500)]
        spoiled = list(good)
        at = sorted(random.sample(range(500), 25))
        for row in at:
            spoiled[row] = good[row] + b"\x00"
        decoder = AvroDecoder(writer)
        before = decoder.decode(pa.array(good, pa.binary()))
        after = decoder.decode(pa.array(spoiled, pa.binary()))
        assert before.bad == ()
        assert [one.row for one in after.bad] == at
        assert {one.reason for one in after.bad} == {"bytes follow after the end of the value"}
        after.array.validate(full=True)
        left = pa.array([row not in set(at) for row in range(500)])
        assert same(after.array.filter(left), before.array.filter(left))
        assert after.array.null_count == 25


@pytest.mark.fuzz
def test_many_more_seeds() -> None:
    properties: list[Any] = [
        test_the_kernel_reads_as_the_readable_reader,
        test_other_readers_see_what_the_readable_reader_sees,
        test_the_readable_reader_reads_as_fastavro,
        test_what_fastavro_resolves_we_resolve_alike,
        test_some_columns_are_what_all_have_of_them,
    ]
    seed = SystemRandom().randrange(1 << 60)
    stop = time.monotonic() + 20
    tried = 0
    while time.monotonic() < stop:
        for one in properties:
            try:
                one.hypothesis.inner_test(seed + tried)
            except Exception as error:
                raise AssertionError(f"{one.__name__}({seed + tried})") from error
        tried += 1
    print(f"{tried} seeds from {seed} on")  # noqa: T201  # for whoever runs pytest with -rP
    assert tried > 10
