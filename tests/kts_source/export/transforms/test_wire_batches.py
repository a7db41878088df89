"""Values decoded batch by batch are what they are row by row."""

from __future__ import annotations

import io
import json
import random
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

from kts_source.export.transforms import wire_format
from kts_source.export.transforms.wire_batches import avro_together, json_together
from kts_source.export.transforms.wire_format import WireFormatColumns
from tests.kts_source.export.transforms.test_transforms import KEEP, batch_of

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.export.transforms.row_transform import Transformed

COLUMNS = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int64()),
        ("price", pa.float64()),
        ("text", pa.string()),
        ("kind", pa.string()),
        ("paid", pa.bool_()),
        ("absent", pa.string()),
    ]
)
ENUM = {"type": "enum", "name": "K", "symbols": ["a", "b", "c"]}
FIELDS: list[dict[str, Any]] = [
    {"name": "n", "type": "long"},
    {"name": "small", "type": ["null", "int"]},
    {"name": "price", "type": "float"},
    {"name": "other", "type": {"type": "map", "values": ["string", "long"]}},
    {"name": "text", "type": ["string", "null"]},
    {"name": "kind", "type": ENUM},
    {"name": "paid", "type": "boolean"},
]
WHOLE = {"type": "record", "name": "R", "fields": FIELDS}
FEW = {"type": "record", "name": "R", "fields": [FIELDS[6], FIELDS[0]]}


def avro(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def order(chance: random.Random) -> dict[str, Any]:
    return {
        "n": chance.choice([0, -1, 2**63 - 1, -(2**63), chance.randrange(1000)]),
        "small": chance.choice([None, 2**31 - 1, -5]),
        "price": chance.choice([0.5, -0.25, float("inf"), 1e10]),
        "other": {chance.choice("xyz"): chance.choice([5, "five"]) for _ in range(2)},
        "text": chance.choice([None, "", "é", "plain"]),
        "kind": chance.choice("abc"),
        "paid": chance.random() < 0.5,
    }


def framed(schema_id: int, value: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + value


def spoiled(chance: random.Random, value: bytes) -> bytes:
    """A byte cut off, added or turned."""
    at = chance.randrange(len(value))
    return chance.choice(
        [
            value[:at],
            value + b"\0",
            value[:at] + bytes([chance.randrange(256)]) + value[at + 1 :],
        ]
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "1.avsc").write_text(json.dumps(WHOLE))
    (tmp_path / "2.avsc").write_text(json.dumps(FEW))
    (tmp_path / "3.json").write_text("{}")
    (tmp_path / "4.avsc").write_text('"long"')
    return tmp_path


def values(chance: random.Random) -> list[bytes | None]:
    found: list[bytes | None] = []
    for _ in range(60):
        one = order(chance)
        text = {name: each for name, each in one.items() if each != float("inf")}
        value = chance.choice(
            [
                framed(1, avro(WHOLE, one)),
                framed(2, avro(FEW, one)),
                framed(3, json.dumps(text).encode()),
                framed(4, b"\2"),
                framed(5, b"\2"),
                None,
            ]
        )
        found.append(spoiled(chance, value) if value and chance.random() < 0.2 else value)
    return found


def by_rows(
    monkeypatch: pytest.MonkeyPatch, transform: WireFormatColumns, batch: pa.RecordBatch
) -> Transformed:
    with monkeypatch.context() as patched:
        patched.setattr(wire_format, "avro_together", lambda *_: None)
        patched.setattr(wire_format, "json_together", lambda *_: None)
        return transform.apply(batch)


@pytest.mark.parametrize("seed", range(25))
def test_as_row_by_row(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(values(random.Random(seed)))
    expected = by_rows(monkeypatch, WireFormatColumns(COLUMNS, str(folder), keep=KEEP), batch)
    found = WireFormatColumns(COLUMNS, str(folder), keep=KEEP).apply(batch)
    assert found.rows is not None
    assert expected.rows is not None
    assert found.rows.schema == expected.rows.schema
    # Text of rows: NaN equals itself.
    assert repr(found.rows.to_pylist()) == repr(expected.rows.to_pylist())
    assert reasons(found) == reasons(expected)


def reasons(done: Transformed) -> list[tuple[int, str]]:
    """Without the addresses that fastavro shows."""
    return [(one.row, one.reason.partition(" at 0x")[0]) for one in done.rejected]


def test_nothing_and_nulls(folder: Path) -> None:
    transform = WireFormatColumns(COLUMNS, str(folder), keep=KEEP)
    for given in ([], [None, None]):
        done = transform.apply(batch_of(list(given)))
        assert done.rows is not None
        assert done.rows["n"].to_pylist() == given


@pytest.mark.parametrize(
    ("field", "kind", "takes"),
    [
        ("long", pa.int64(), True),
        ("int", pa.int64(), True),
        ("long", pa.int32(), False),
        ("double", pa.float32(), False),
        ("bytes", pa.binary(), False),
        (ENUM, pa.string(), True),
        (["null", ENUM], pa.string(), True),
        (["int", "long"], pa.int64(), False),
        ({"type": "string", "logicalType": "uuid"}, pa.string(), False),
        ({"type": "long", "logicalType": "time-micros"}, pa.int64(), False),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("us", "UTC"), False),
        ({"type": "array", "items": "int"}, pa.list_(pa.int32()), False),
    ],
)
def test_only_what_is_the_same_is_taken(field: object, kind: pa.DataType, *, takes: bool) -> None:
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": field}]})
    found = avro_together([("", text.encode())], pa.schema([("a", kind)]))
    assert (found is not None) == takes


def test_dates_in_json_are_left_to_the_rows() -> None:
    assert json_together(pa.schema([("a", pa.date32())])) is None
    assert json_together(pa.schema([("a", pa.int64())])) is not None
