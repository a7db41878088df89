"""Compares values and errors of the kernels with those of `oracle`."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segment_format.values.json.decoder import JsonDecoder
from tests.segment_format.values.json import oracle
from tests.segment_format.values.json.generated import any_struct, any_type, any_values
from tests.segment_format.values.nulls_below import check_nulls_below

if TYPE_CHECKING:
    from collections.abc import Sequence

SAMPLE = (
    b'{"id": 12, "name":"a\\u00e4\\n\xc3\xa4","tags":["x",null,"\\ud83d\\ude00"],'
    b'"sub":{"d":-1.5e3},'
    b'"m":{"k":1,"k":2,"l":0.5},"on":true,"big":12345678.90,"x":[{"y":[1,2]}, {}],"t":'
    b'"2024-02-29T01:02:03.5Z", "bin":"aGk=","other":{"a":[1,"]"]}}'
)
SAMPLE_TYPE = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("sub", pa.struct([("d", pa.float64()), ("f", pa.float32())])),
        ("m", pa.map_(pa.string(), pa.float64())),
        ("on", pa.bool_()),
        ("big", pa.decimal128(12, 2)),
        ("x", pa.list_(pa.struct([("y", pa.list_(pa.int32()))]))),
        ("t", pa.timestamp("us", "UTC")),
        ("bin", pa.binary()),
    ]
)


def check(kind: pa.DataType, values: Sequence[bytes | None]) -> int:
    """Asserts that the decoder and the oracle agree on every value. Returns the number of values
    that both reject.
    """
    result = JsonDecoder(kind).decode(pa.array(values, pa.binary()))
    assert result.array.type == kind
    result.array.validate(full=True)
    check_nulls_below(result.array)
    bad = {error.row: error for error in result.bad}
    assert [error.row for error in result.bad] == sorted(bad)
    for row, (text, value) in enumerate(zip(values, oracle.plain(result.array), strict=True)):
        expected, is_bad = oracle.decoded(text, kind)
        assert (row in bad) == is_bad, (text, bad.get(row))
        assert oracle.same(value, expected), (text, value, expected)
    return len(bad)


def check_random(random: Random) -> None:
    kind = any_struct(random) if random.random() < 0.7 else any_type(random)
    count = random.choice((1, 5, 30))
    check(kind, any_values(random, kind, count, random.choice((0, 0.1, 0.5))))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(random=st.integers(0, 2**60).map(Random))
def test_random_values_match_oracle(random: Random) -> None:
    check_random(random)


@pytest.mark.fuzz
def test_many_random_values_match_oracle() -> None:
    seed = int.from_bytes(os.urandom(6))
    print("seed", seed)  # noqa: T201 - to run it again
    for number in range(1500):
        check_random(Random(seed + number))


def test_truncated_values_match_oracle() -> None:
    assert check(SAMPLE_TYPE, [SAMPLE[:size] for size in range(len(SAMPLE) + 1)]) == len(SAMPLE)


@pytest.mark.parametrize("byte", [0x00, 0x20, 0x22, 0x30, 0x5C, 0x7D, 0x80, 0xE4])
def test_replaced_bytes_match_oracle(byte: int) -> None:
    check(SAMPLE_TYPE, [_with(SAMPLE, position, byte) for position in range(len(SAMPLE))])


def test_flipped_bits_match_oracle() -> None:
    flips = [(position, 1 << bit) for position in range(len(SAMPLE)) for bit in range(8)]
    bad = check(
        SAMPLE_TYPE, [_with(SAMPLE, position, SAMPLE[position] ^ bit) for position, bit in flips]
    )
    assert 0 < bad < len(flips)


def _with(text: bytes, position: int, byte: int) -> bytes:
    return text[:position] + bytes([byte]) + text[position + 1 :]


def test_oracle_decodes_the_sample() -> None:
    value, bad = oracle.decoded(SAMPLE, SAMPLE_TYPE)
    assert not bad
    assert value["m"] == [("k", 2.0), ("l", 0.5)]
    assert value["x"] == [{"y": [1, 2]}, {"y": None}]


def _wanted(kind: pa.DataType, random: Random) -> tuple[list[str], pa.DataType]:
    """Returns some column names of struct `kind`, and the struct type with only these columns."""
    names: list[str] = []
    fields: list[pa.Field] = []
    for field in kind:
        pick = random.randrange(3)
        if pick == 0:
            names.append(field.name)
            fields.append(field)
        elif pick == 1 and pa.types.is_struct(field.type) and not _is_prefix(field.name, kind):
            below, inner = _wanted(field.type, random)
            if below:
                names += [f"{field.name}.{name}" for name in below]
                fields.append(field.with_type(inner))
    return names, pa.struct(fields)


def _is_prefix(name: str, kind: pa.DataType) -> bool:
    return any(other.name.startswith(f"{name}.") for other in kind)


def _cut(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401
    if value is None or not pa.types.is_struct(kind):
        return value
    return {field.name: _cut(value[field.name], field.type) for field in kind}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(random=st.integers(0, 2**60).map(Random))
def test_selected_columns_match_full_decode(random: Random) -> None:
    kind = any_struct(random)
    columns, smaller = _wanted(kind, random)
    values = pa.array(any_values(random, kind, 20, 0.1), pa.binary())
    everything = JsonDecoder(kind).decode(values)
    some = JsonDecoder(kind, random.sample(columns, len(columns))).decode(values)
    assert some.array.type == smaller
    some.array.validate(full=True)
    bad = {error.row for error in everything.bad}
    assert {error.row for error in some.bad} <= bad
    for row, (value, other) in enumerate(
        zip(oracle.plain(some.array), oracle.plain(everything.array), strict=True)
    ):
        assert row in bad or oracle.same(value, _cut(other, smaller))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(random=st.integers(0, 2**60).map(Random))
def test_rows_without_selected_fields_match_oracle(random: Random) -> None:
    """If no field is selected, a row is bad only if it is not JSON or not an object."""
    kind = any_struct(random)
    values = any_values(random, kind, 30, 0.5)
    check(pa.struct([]), values)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(random=st.integers(0, 2**60).map(Random))
def test_bad_row_does_not_change_other_rows(random: Random) -> None:
    kind = any_struct(random)
    good = [text for text in any_values(random, kind, 60, 0) if not oracle.decoded(text, kind)[1]]
    alone = oracle.plain(JsonDecoder(kind).decode(pa.array(good, pa.binary())).array)
    mixed: list[bytes | None] = []
    positions: list[int] = []
    for text in good:
        while random.random() < 0.3:
            mixed.append(
                random.choice((b"", b"{", b'{"a":[1,2,{"b":', b"nul", b"{}x", b'{"a":1,}'))
            )
        positions.append(len(mixed))
        mixed.append(text)
    result = JsonDecoder(kind).decode(pa.array(mixed, pa.binary()))
    values = oracle.plain(result.array)
    assert {error.row for error in result.bad} == set(range(len(mixed))) - set(positions)
    assert all(
        oracle.same(values[position], value)
        for position, value in zip(positions, alone, strict=True)
    )


@pytest.mark.parametrize("start", [0, 1, 7, 9])
def test_sliced_input_decodes_only_its_rows(start: int) -> None:
    values = [b'{"id":%d}' % number if number % 3 else None for number in range(40)]
    array = pa.array(values, pa.binary()).slice(start, 20)
    result = JsonDecoder(pa.struct([("id", pa.int64())])).decode(array)
    assert result.array.to_pylist() == [
        {"id": number} if number % 3 else None for number in range(start, start + 20)
    ]
    assert not result.bad
