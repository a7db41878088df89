"""Tests each difference from Spark's `from_avro` that `docs/typed-reference.md` lists in a table.

Also tests that this product maps Avro types to the same Spark types as `from_avro`.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kts_source.options.value_formats import AVRO, FAILFAST, ColumnFormat
from kts_source.spark.datasource import spark_schema
from segment_format.values.avro.decoder import AvroDecoder, FramedAvroDecoder
from segment_format.values.avro.schema import parse_avro
from segment_format.values.registry_framing import CONFLUENT
from tests.docs.tables import read_table
from tests.integration.kafka_jars import spark_avro_jars
from tests.integration.spark_kafka import run_script

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(720)]

SCRIPT = Path(__file__).with_name("from_avro_side.py")
MALFORMED = "malformed"


def record(kind: object, name: str = "a") -> str:
    """Returns the JSON schema of an Avro record. Its only field has the type `kind`."""
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]})


@dataclass(frozen=True)
class Case:
    """A value, its result in this product's decoder, and its result in Spark's `from_avro`.

    Structs are represented as lists of their fields.

    Attributes:
        schema: Avro schema with which both decode the value.
        value: Bytes to decode.
        our_result: Result of this product's decoder; `MALFORMED` if it rejects the value.
        spark_result: Result of `from_avro`, or a part of its error message.
        options: Options of `from_avro`.
    """

    schema: str
    value: bytes
    our_result: Any
    spark_result: Any
    options: Mapping[str, str] = field(default_factory=dict)


DATE_OR_LONG = [{"type": "int", "logicalType": "date"}, "long"]
CASES = {
    "bytes after the value": Case(record("int"), b"\2\0", MALFORMED, [1]),
    "text that is not UTF-8": Case(record("string"), b"\2\xff", MALFORMED, ["\ufffd"]),
    "a boolean of 2": Case(record("boolean"), b"\2", MALFORMED, [False]),
    # Other tests cover the modes of this product's decoder.
    "`PERMISSIVE`": Case(record("int"), b"", MALFORMED, [None], {"mode": "PERMISSIVE"}),
    "`DROPMALFORMED`": Case(
        record("int"), b"", MALFORMED, "PARSE_MODE_UNSUPPORTED", {"mode": "DROPMALFORMED"}
    ),
    # Spark decodes all values with one schema, so values of another writer decode to wrong data.
    "schemas of many writers": Case(record("int"), b"\2x\4", [2], [1]),
    "a union of int and long with logical types": Case(
        record(DATE_OR_LONG), b"\0\2", [[datetime.date(1970, 1, 2), None]], [1]
    ),
}
SAME = {
    "a key twice": Case(
        record({"type": "map", "values": "int"}), b"\4\2k\2\2k\4\0", [{"k": 2}], [{"k": 2}]
    ),
    "a value that ends too early": Case(record("int"), b"", MALFORMED, "Malformed record"),
}
OTHER_WRITER = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [{"name": "s", "type": "string"}, {"name": "a", "type": "int"}],
    }
)
FIXED = {"type": "fixed", "name": "F", "size": 16}
TYPES: dict[str, object] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
    "enum": {"type": "enum", "name": "E", "symbols": ["A"]},
    "fixed": FIXED,
    "duration": {**FIXED, "size": 12, "logicalType": "duration"},
    "uuid": {"type": "string", "logicalType": "uuid"},
    "decimal": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "date": {"type": "int", "logicalType": "date"},
    "timestamp-millis": {"type": "long", "logicalType": "timestamp-millis"},
    "timestamp-micros": {"type": "long", "logicalType": "timestamp-micros"},
    "local-timestamp-millis": {"type": "long", "logicalType": "local-timestamp-millis"},
    "local-timestamp-micros": {"type": "long", "logicalType": "local-timestamp-micros"},
    "time-millis": {"type": "int", "logicalType": "time-millis"},
    "time-micros": {"type": "long", "logicalType": "time-micros"},
    "timestamp-nanos": {"type": "long", "logicalType": "timestamp-nanos"},
    "local-timestamp-nanos": {"type": "long", "logicalType": "local-timestamp-nanos"},
    "array": {"type": "array", "items": ["null", "int"]},
    "map": {"type": "map", "values": "string"},
    "null and a type": ["null", "string"],
    "int and long": ["int", "long"],
    "float and double": ["null", "float", "double"],
    "other unions": ["string", "null", "long"],
}


def test_docs_table_of_from_avro_differences_lists_all_cases() -> None:
    assert list(read_table("typed-reference.md", "Differences from `from_avro`")) == list(CASES)


@pytest.mark.parametrize("name", [*CASES, *SAME])
def test_decoder_returns_documented_result(name: str) -> None:
    case = (CASES | SAME)[name]
    reader = parse_avro(case.schema)
    if name == "schemas of many writers":
        decoder: Any = FramedAvroDecoder(reader, lambda _: parse_avro(OTHER_WRITER), CONFLUENT)
        value = b"\0\0\0\0\7" + case.value
    else:
        decoder, value = AvroDecoder(reader), case.value
    decoded = decoder.decode(pa.array([value], pa.binary()))
    (result,) = decoded.array.to_pylist(maps_as_pydicts="strict")
    assert (MALFORMED if decoded.bad else _structs_as_lists(result)) == case.our_result
    assert not decoded.bad or result is None


def test_spark_from_avro_returns_documented_results_and_types(tmp_path: Path) -> None:
    cases = CASES | SAME
    calls = {
        name: {"schema": case.schema, "value": case.value.hex(), "options": dict(case.options)}
        for name, case in cases.items()
    }
    # The values are empty, because the type of the result does not depend on them.
    permissive = {"mode": "PERMISSIVE"}
    calls |= {
        f"type {name}": {"schema": record(kind), "value": "", "options": permissive}
        for name, kind in TYPES.items()
    }
    spec = {"jars": [str(path) for path in spark_avro_jars()], "calls": calls, "out": str(tmp_path)}
    run_script(SCRIPT, spec, tmp_path)
    results = json.loads((tmp_path / "found.json").read_text())
    for name, case in cases.items():
        if isinstance(case.spark_result, str):
            assert case.spark_result in results[name].get("error", ""), name
        else:
            assert results[name].get("value") == case.spark_result, (name, results[name])
    assert {name: results[f"type {name}"]["type"] for name in TYPES} == {
        name: _type_of(record(kind)) for name, kind in TYPES.items()
    }


def _type_of(schema: str) -> str:
    form = ColumnFormat("value", AVRO, FAILFAST, schema=schema)
    return spark_schema(("value",), (form,))["value"].dataType.simpleString()


def _structs_as_lists(value: object) -> object:
    """Converts the struct `value` to a list of its field values; returns other values unchanged.

    A field with a key `member0` is the struct of a union and is converted, too.
    """
    if not isinstance(value, dict):
        return value
    return [
        list(member.values()) if isinstance(member, dict) and "member0" in member else member
        for member in value.values()
    ]
