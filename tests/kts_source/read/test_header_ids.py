"""Tests schema ids that serializers write into record headers."""

from __future__ import annotations

import json
import random
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import kts_source
from kts_source.errors import InvalidValueError
from kts_source.options.value_formats import AVRO_CONFLUENT, FAILFAST, ColumnFormat
from kts_source.read.value_decoders import framed
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord

if TYPE_CHECKING:
    from pathlib import Path

    Headers = tuple[tuple[str, bytes | None], ...]

GUID = b"\1" + bytes(range(16))
ID = b"\0\0\0\0\7"
NUMBERS: dict[str, Any] = {
    "type": "record",
    "name": "N",
    "fields": [{"name": name, "type": "long"} for name in ("a", "b", "c", "d", "e", "f")],
}


def options(tmp_path: Path, records: list[SimpleRecord], **more: str) -> dict[str, str]:
    """Writes a tier of `records` and a folder of schemas. Returns the options to read the tier."""
    log = LogBuilder()
    log.append(records)
    writer = AivenTierWriter(str(tmp_path / "tier"), topic="numbers", partition=0)
    for segment in log.build().segments:
        writer.write_segment(segment)
    schemas = tmp_path / "schemas"
    schemas.mkdir(exist_ok=True)
    for name in ("7", "14"):
        (schemas / f"{name}.avsc").write_text(json.dumps(NUMBERS))
    return {
        "path": str(tmp_path / "tier"),
        "subscribe": "numbers",
        "cache": "false",
        "value.format": "avro-confluent",
        "value.schema": json.dumps(NUMBERS),
        "value.schema-registry.url": str(schemas),
        **more,
    }


def record(value: bytes | None, *headers: tuple[str, bytes | None]) -> SimpleRecord:
    return SimpleRecord(value, b"k", headers)


def numbers(*values: int) -> bytes:
    """Returns the Avro encoding of small numbers, which is one byte for each number."""
    return bytes(2 * value for value in values)


def test_schema_guid_is_read_from_header_and_value_prefix(tmp_path: Path) -> None:
    by_guid = ("__value_schema_id", GUID)
    # If the header was ignored, the bytes after the first five would decode as six numbers.
    value = numbers(0, 0, 0, 0, 7, 0)
    records = [
        record(ID + numbers(1, 2, 3, 4, 5, 6)),
        record(value + numbers(1, 2, 3, 4, 5), by_guid),
        record(None, by_guid),
        record(GUID + numbers(2, 2, 3, 4, 5, 6)),
        record(value, by_guid),
        record(b"\1" + bytes(16) + value),
    ]
    source = options(tmp_path, records, columns="value,valueError,valueRaw")
    name = str(uuid.UUID(bytes=GUID[1:]))
    (tmp_path / "schemas" / f"{name}.avsc").write_text(json.dumps(NUMBERS))
    table = kts_source.scan({**source, "value.mode": "PERMISSIVE"}).to_table()
    rows = [fields and list(fields.values()) for fields in table["value"].to_pylist()]
    assert rows == [[1, 2, 3, 4, 5, 6], None, None, [2, 2, 3, 4, 5, 6], [0, 0, 0, 0, 7, 0], None]
    errors = table["valueError"].to_pylist()
    assert [row for row, error in enumerate(errors) if error] == [1, 5]
    assert errors[1] == "bytes follow after the end of the value"
    unknown = uuid.UUID(int=0)
    assert errors[5] == f"schema {unknown}: LookupError: the folder has no schema {unknown}"
    assert table["valueRaw"].to_pylist() == [simple_record.value for simple_record in records]
    del source["columns"]
    with pytest.raises(InvalidValueError, match="after the end") as raised:
        kts_source.scan(source).to_table()
    assert raised.value.offset == 1


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("", [1, 2, None, 0, 5]),
        ("value.a < 3", [1, 2, 0]),
        ("value.a IS NULL OR value.a < 2", [1, None, 0]),
    ],
)
def test_schema_id_is_read_from_header(
    tmp_path: Path, where: str, expected: list[int | None]
) -> None:
    records = [
        record(numbers(1, 2, 3, 4, 5, 6), ("other", b"\0"), ("__value_schema_id", ID)),
        record(ID + numbers(2, 2, 3, 4, 5, 6), ("other", None)),
        record(None, ("__value_schema_id", ID)),
        record(numbers(0, 0, 0, 0, 7, 0), ("__value_schema_id", GUID), ("__value_schema_id", ID)),
        record(ID + numbers(5, 2, 3, 4, 5, 6), ("__key_schema_id", GUID)),
    ]
    source = options(tmp_path, records, columns="value")
    if where:
        source["where"] = where
    values_read = [
        fields and fields["a"] for fields in kts_source.scan(source).to_table()["value"].to_pylist()
    ]
    assert values_read == expected


@pytest.mark.parametrize("name", ["globalId", "contentId", "artifactId", "encoding"])
def test_error_of_value_with_apicurio_headers_names_apicurio(tmp_path: Path, name: str) -> None:
    # If the header was ignored, this value would decode with schema 7.
    value = ID + numbers(1, 2, 3, 4, 5, 6)
    records = [
        record(value, ("apicurio.key.globalId", ID)),
        record(value, (f"apicurio.value.{name}", bytes(7) + b"\7")),
        record(None, (f"apicurio.value.{name}", None)),
        record(value[5:], (f"apicurio.value.{name}", b""), ("__value_schema_id", ID)),
        record(value, ("apicurio.values", b"")),
    ]
    source = options(tmp_path, records, columns="value,valueError")
    table = kts_source.scan({**source, "value.mode": "PERMISSIVE"}).to_table()
    assert [fields and fields["a"] for fields in table["value"].to_pylist()] == [
        1,
        None,
        None,
        None,
        1,
    ]
    refused = ["Apicurio" in (error or "") for error in table["valueError"].to_pylist()]
    assert refused == [False, True, False, True, False]
    del source["columns"]
    with pytest.raises(InvalidValueError, match="Legacy4ByteIdHandler") as raised:
        kts_source.scan(source).to_table()
    assert raised.value.offset == 1


BIG = (1 << 40).to_bytes(8, "big")
SEVEN = bytes(7) + b"\7"


def test_values_with_apicurio_ids_are_decoded(tmp_path: Path) -> None:
    content = numbers(1, 2, 3, 4, 5, 6)
    name, other = "apicurio.value.globalId", "apicurio.value.contentId"
    records = [
        record(content, (name, SEVEN), ("apicurio.value.encoding", b"BINARY")),
        record(b"\0" + SEVEN + content),
        record(None, (name, SEVEN)),
        # This value decodes as six zeros, followed by unexpected bytes.
        record(b"\0" + SEVEN + content, (name, BIG), (name, SEVEN)),
        record(b"\0" + SEVEN + content, (other, SEVEN)),
        record(content, ("apicurio.key.globalId", SEVEN)),
        record(content, (name, SEVEN), ("apicurio.value.encoding", b"JSON")),
        record(b"\0" + SEVEN + content, (name, ID)),
        record(b"\0" + SEVEN + content, (name, None)),
        record(content, (other, SEVEN), (name, SEVEN)),
        record(content, (name, BIG)),
    ]
    source = options(tmp_path, records, columns="value,valueError")
    source |= {"value.format": "avro-apicurio", "value.mode": "PERMISSIVE"}
    table = kts_source.scan(source).to_table()
    good = {row for row, fields in enumerate(table["value"].to_pylist()) if fields is not None}
    assert good == {0, 1, 9}
    assert all(table["value"][row].as_py()["f"] == 6 for row in good)
    reasons = [error or "" for error in table["valueError"].to_pylist()]
    assert [row for row, reason in enumerate(reasons) if reason] == [3, 4, 5, 6, 7, 8, 10]
    assert "after the end" in reasons[3]
    assert ["use-id" in reasons[row] for row in (4, 7, 8)] == [True] * 3
    assert "the record's headers have no schema id" in reasons[5]
    assert "JSON" in reasons[6]
    assert "the folder has no schema 1099511627776" in reasons[10]
    by_content = {**source, "value.schema-registry.use-id": "CONTENTID"}
    values = kts_source.scan(by_content).to_table()["value"].to_pylist()
    assert {row for row, fields in enumerate(values) if fields is not None} == {1, 9}


def test_schema_id_of_key_is_read_from_header(tmp_path: Path) -> None:
    guid = SimpleRecord(b"v", b'{"a": 3}', (("__key_schema_id", GUID),))
    none = SimpleRecord(b"v", b'{"a": 3}', (("__value_schema_id", GUID),))
    plain = SimpleRecord(b"v", ID + b"{}")
    source = options(tmp_path, [plain, guid, none])
    source = {name: text for name, text in source.items() if not name.startswith("value.")}
    keyed = {"key.format": "json-confluent", "key.schema": "a int", "key.mode": "PERMISSIVE"}
    table = kts_source.scan(source | keyed | {"columns": "key,keyError"}).to_table()
    assert table["key"].to_pylist() == [{"a": None}, {"a": 3}, None]
    assert table["keyError"].to_pylist()[:2] == [None, None]


def test_schema_ids_in_headers_add_no_column(tmp_path: Path) -> None:
    source = options(tmp_path, [record(ID + numbers(1, 2, 3, 4, 5, 6), ("h", b"v"))])
    assert "headers" not in kts_source.scan(source).to_table().schema.names
    with_headers = kts_source.scan(source | {"columns": "headers,value"}).to_table()
    assert with_headers["headers"].to_pylist() == [[{"key": "h", "value": b"v"}]]


@pytest.mark.parametrize("seed", range(30))
def test_values_prefixed_with_header_ids_equal_result_of_python_loop(seed: int) -> None:
    chance = random.Random(seed)
    names = ["__value_schema_id", "__key_schema_id", "x", "apicurio.key.encoding"]
    if seed % 2:
        names.append("apicurio.value.encoding")

    def headers() -> list[dict[str, Any]] | None:
        if chance.random() < 0.1:
            return None
        return [
            {"key": chance.choice(names), "value": chance.choice([None, b"", GUID, ID])}
            for _ in range(chance.randrange(4))
        ]

    rows = [(chance.choice([None, b"", b"abc"]), headers()) for _ in range(20)]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([value for value, _ in rows], pa.binary()),
            pa.array([h for _, h in rows], kind),
        ],
        names=["value", "headers"],
    )
    start, count = chance.randrange(10), chance.randrange(10)
    expected = []
    for value, row_headers in rows[start : start + count]:
        ids = [
            header["value"] for header in row_headers or () if header["key"] == "__value_schema_id"
        ]
        front = (ids or [b""])[-1] or b""
        if any(header["key"].startswith("apicurio.value.") for header in row_headers or ()):
            front = bytes(5)
        expected.append(None if value is None else front + value)
    form = ColumnFormat("value", AVRO_CONFLUENT, FAILFAST)
    frames = framed(batch.slice(start, count), form)
    assert frames.to_pylist() == expected
