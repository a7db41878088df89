"""The table of `docs/typed.md` that says where this differs from Spark's `from_avro`, row by row,
and the types of Avro, which are the same.
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
from tests.docs.tables import rows_under
from tests.integration.kafka_jars import spark_avro_jars
from tests.integration.spark_kafka import run_script

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(720)]

SCRIPT = Path(__file__).with_name("from_avro_side.py")
MALFORMED = "malformed"


def record(kind: object, name: str = "a") -> str:
    """A record of one field."""
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]})


@dataclass(frozen=True)
class Case:
    """A value, what becomes of it here, and what there; a struct is a list of its fields.

    Attributes:
        schema: The reader's and the writer's.
        there: A value, or a part of an error's text.
        options: Of `from_avro`.
    """

    schema: str
    value: bytes
    here: Any
    there: Any
    options: Mapping[str, str] = field(default_factory=dict)


DATE_OR_LONG = [{"type": "int", "logicalType": "date"}, "long"]
CASES = {
    "bytes behind the value": Case(record("int"), b"\2\0", MALFORMED, [1]),
    "text that is not UTF-8": Case(record("string"), b"\2\xff", MALFORMED, ["\ufffd"]),
    "a boolean of 2": Case(record("boolean"), b"\2", MALFORMED, [False]),
    # What PERMISSIVE and DROPMALFORMED are here, is told by tests of the modes.
    "`PERMISSIVE`": Case(record("int"), b"", MALFORMED, [None], {"mode": "PERMISSIVE"}),
    "`DROPMALFORMED`": Case(
        record("int"), b"", MALFORMED, "PARSE_MODE_UNSUPPORTED", {"mode": "DROPMALFORMED"}
    ),
    # By the one schema that it is given, what another writer wrote is something else.
    "many writers' schemas": Case(record("int"), b"\2x\4", [2], [1]),
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


def test_each_row_of_the_table_has_a_case() -> None:
    assert list(rows_under("typed.md", "Where it differs from `from_avro`")) == list(CASES)


@pytest.mark.parametrize("name", [*CASES, *SAME])
def test_here(name: str) -> None:
    case = (CASES | SAME)[name]
    reader = parse_avro(case.schema)
    if name == "many writers' schemas":
        decoder: Any = FramedAvroDecoder(reader, lambda _: parse_avro(OTHER_WRITER), CONFLUENT)
        value = b"\0\0\0\0\7" + case.value
    else:
        decoder, value = AvroDecoder(reader), case.value
    decoded = decoder.decode(pa.array([value], pa.binary()))
    (found,) = decoded.array.to_pylist(maps_as_pydicts="strict")
    assert (MALFORMED if decoded.bad else _listed(found)) == case.here
    assert not decoded.bad or found is None


def test_there(tmp_path: Path) -> None:
    every = CASES | SAME
    calls = {
        name: {"schema": case.schema, "value": case.value.hex(), "options": dict(case.options)}
        for name, case in every.items()
    }
    # Of no bytes: the type is known all the same.
    permissive = {"mode": "PERMISSIVE"}
    calls |= {
        f"type {name}": {"schema": record(kind), "value": "", "options": permissive}
        for name, kind in TYPES.items()
    }
    spec = {"jars": [str(path) for path in spark_avro_jars()], "calls": calls, "out": str(tmp_path)}
    run_script(SCRIPT, spec, tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    for name, case in every.items():
        if isinstance(case.there, str):
            assert case.there in found[name].get("error", ""), name
        else:
            assert found[name].get("value") == case.there, (name, found[name])
    assert {name: found[f"type {name}"]["type"] for name in TYPES} == {
        name: _type_here(record(kind)) for name, kind in TYPES.items()
    }


def _type_here(schema: str) -> str:
    form = ColumnFormat("value", AVRO, FAILFAST, schema=schema)
    return spark_schema(("value",), (form,))["value"].dataType.simpleString()


def _listed(value: object) -> object:
    """Structs as lists; a map is one of the top struct's fields."""
    if not isinstance(value, dict):
        return value
    return [
        list(one.values()) if isinstance(one, dict) and "member0" in one else one
        for one in value.values()
    ]
