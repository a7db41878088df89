"""Ready transforms: what becomes a column, what is rejected, and where rejected rows go."""

from __future__ import annotations

import io
import json
import pickle
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from kts_source.errors import InvalidOptionError
from kts_source.export.errors import TransformError
from kts_source.export.executor import LocalExecutor
from kts_source.export.run import export
from kts_source.export.settings import export_settings
from kts_source.export.transforms import JsonColumns, Rejected, Transformed, parse_json_objects
from kts_source.export.wire_format import RegistryError, WireFormatColumns
from tests.golden_data import expected_table
from tests.kts_source.export.exporting import Lake, source

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.float64()))])


def batch_of(values: list[bytes | None]) -> pa.RecordBatch:
    rows = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(values, pa.binary()),
            pa.array(["t"] * rows),
            pa.array([0] * rows, pa.int32()),
            pa.array(range(100, 100 + rows), pa.int64()),
        ],
        names=["value", "topic", "partition", "offset"],
    )


KEEP = ("topic", "offset")


def test_json_members_become_columns() -> None:
    values: list[bytes | None] = [
        b'{"a": 1, "b": "x", "c": [1.5], "unknown": {"deep": []}}',
        b"{}",
        None,
        b' {"b": null} \n',
    ]
    done = JsonColumns(SCHEMA, keep=KEEP).apply(batch_of(values))
    assert done.rejected == ()
    assert done.rows is not None
    assert done.rows.to_pylist() == [
        {"topic": "t", "offset": 100, "a": 1, "b": "x", "c": [1.5]},
        {"topic": "t", "offset": 101, "a": None, "b": None, "c": None},
        {"topic": "t", "offset": 102, "a": None, "b": None, "c": None},
        {"topic": "t", "offset": 103, "a": None, "b": None, "c": None},
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b"{",
        b'{"a": 1}{"a": 2}',
        b'{"a": 1}\n{"a": 2}',
        b'{"a": "text"}',
        b'{"a": 1.5}',
        b'{"a": 1',
        b'"a": 1}',
        b"\xff\xfe",
        b'{"a": 99999999999999999999}',
    ],
)
def test_json_that_does_not_fit_is_rejected_alone(bad: bytes) -> None:
    good = b'{"a": 1}'
    done = JsonColumns(SCHEMA, keep=KEEP).apply(batch_of([good, bad, good, good]))
    assert [found.row for found in done.rejected] == [1]
    assert done.rejected[0].reason
    assert done.rows is not None
    assert done.rows.column("offset").to_pylist() == [100, 102, 103]


@pytest.mark.parametrize(
    "values",
    [
        [b'{"a": 1', b'{"a": 2}'],
        [b'{"a": {}', b'{"b": 1}}'],
        [b'{"a": 1}{"a": 2}', b""],
        [b'{"b": "}', b'{"}', b'{"a": 1}{"a": 2}'],
        [b'{"b": {"x": "}', b'{"}}', b'{"a": 1}{"a": 2}'],
    ],
)
def test_json_values_never_run_into_each_other(values: list[bytes]) -> None:
    parsed = parse_json_objects(pa.array(values, pa.binary()), SCHEMA)
    for row, number in zip(parsed.table.to_pylist(), parsed.rows, strict=True):
        alone = json.loads(values[number])
        assert row["a"] == alone.get("a")
    assert {*parsed.rows, *(found.row for found in parsed.rejected)} == set(range(len(values)))


PIECES = st.sampled_from(
    [b"{", b"}", b'"', b"a", b":", b"1", b",", b"\n", b" ", b"[", b"]", b'"a":1', b'{"a":2}', b"\\"]
)


@given(st.lists(st.lists(PIECES, max_size=8).map(b"".join), max_size=5))
def test_json_batches_equal_single_values(values: list[bytes]) -> None:
    together = parse_json_objects(pa.array(values, pa.binary()), SCHEMA)
    rows: dict[int, Any] = dict(zip(together.rows, together.table.to_pylist(), strict=True))
    for number, value in enumerate(values):
        alone = parse_json_objects(pa.array([value], pa.binary()), SCHEMA)
        if alone.rejected:
            assert number not in rows
        else:
            assert rows[number] == alone.table.to_pylist()[0]


def test_schemas_that_cannot_be() -> None:
    with pytest.raises(InvalidOptionError, match="offset would be there twice"):
        JsonColumns(pa.schema([("offset", pa.int64())]))
    with pytest.raises(InvalidOptionError, match="no column"):
        JsonColumns(pa.schema([]))
    with pytest.raises(InvalidOptionError, match="needs column 'value'"):
        JsonColumns(SCHEMA).apply(batch_of([b"{}"]).select(["topic"]))


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": ["null", "string"]}],
}
PAIR = pa.schema([("a", pa.int64()), ("b", pa.string())])


def avro(value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), value)
    return stream.getvalue()


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="x", syntax="proto3")
    outer = file.message_type.add(name="Other")
    nested = outer.nested_type.add(name="Order")
    for message in (nested, file.message_type.add(name="Order")):
        kinds = descriptor_pb2.FieldDescriptorProto
        label = kinds.LABEL_OPTIONAL
        message.field.add(name="a", number=1, type=kinds.TYPE_INT64, label=label)
        message.field.add(name="b", number=2, type=kinds.TYPE_STRING, label=label)
    return descriptor_pb2.FileDescriptorSet(file=[file])


def protobuf(name: str, **values: Any) -> bytes:  # noqa: ANN401
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptors().file[0])
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    data: bytes = kind(**values).SerializeToString()
    return data


def header(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "1.avsc").write_text(json.dumps(AVRO))
    (folder / "2.json").write_text('{"type": "object"}')
    (folder / "3.desc").write_bytes(descriptors().SerializeToString())
    return folder


def test_wire_format(registry: Path) -> None:
    values: list[bytes | None] = [
        header(1) + avro({"a": 7, "b": "seven"}),
        header(2) + b'{"a": 8, "b": "eight", "z": 1}',
        header(3) + b"\x02\x02" + protobuf("x.Order", a=9, b="nine"),  # path [1]
        header(3) + b"\x04\x00\x00" + protobuf("x.Other.Order", a=10, b="ten"),  # path [0, 0]
        None,
    ]
    transform = pickle.loads(pickle.dumps(WireFormatColumns(PAIR, str(registry), keep=KEEP)))
    done = transform.apply(batch_of(values))
    assert done.rejected == ()
    found = [(row["offset"], row["a"], row["b"]) for row in done.rows.to_pylist()]
    assert found == [
        (100, 7, "seven"),
        (101, 8, "eight"),
        (102, 9, "nine"),
        (103, 10, "ten"),
        (104, None, None),
    ]


def test_wire_format_rejects(registry: Path) -> None:
    values: list[bytes | None] = [
        b"",
        b"\0\0\0",
        b"\1" + header(1)[1:] + avro({"a": 1, "b": None}),
        header(99) + b"x",
        header(1) + avro({"a": 1, "b": "long enough"})[:-1],
        header(1) + avro({"a": 1, "b": None}) + b"!",
        header(2) + b"[]",
        header(2) + b'{"a": "text"}',
        header(3) + b"\x02\x08" + protobuf("x.Order", a=9),
        header(3) + b"\xff\xff\xff\xff\xff\xff",
        header(1) + avro({"a": 1, "b": None}),
    ]
    done = WireFormatColumns(PAIR, str(registry), keep=KEEP).apply(batch_of(values))
    assert [found.row for found in done.rejected] == list(range(len(values) - 1))
    assert done.rows is not None
    assert done.rows.num_rows == 1


def test_a_silent_registry_is_not_the_rows_fault() -> None:
    transform = WireFormatColumns(PAIR, "http://127.0.0.1:9", keep=KEEP)
    with pytest.raises(RegistryError, match="does not answer"):
        transform.apply(batch_of([header(1) + b"x"]))


class EvenOffsets:
    """Rejects every odd offset."""

    fingerprint = "even"

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        offsets = batch.column("offset").to_pylist()
        good = [row for row, offset in enumerate(offsets) if offset % 2 == 0]
        bad = tuple(
            Rejected(row, f"{offset} is odd") for row, offset in enumerate(offsets) if offset % 2
        )
        return Transformed(batch.take(pa.array(good, pa.int64())) if good else None, bad)


def test_rejected_rows_go_to_the_dead_letters(tmp_path: Path) -> None:
    lake, letters = Lake(tmp_path, "parquet"), tmp_path / "letters"
    settings = export_settings(lake.target, transform=EvenOffsets(), dead_letters=str(letters))
    report = export(source(), settings, LocalExecutor(1))
    expected = {
        (row["partition"], row["offset"]): row["value"]
        for row in expected_table("txn", "read_committed").to_pylist()
    }
    dead = ds.dataset(str(letters), format="parquet").to_table().to_pylist()
    found = {(row["partition"], row["offset"]): row["value"] for row in dead}
    assert found == {place: value for place, value in expected.items() if place[1] % 2}
    assert len(dead) == len(found) == report.rejected
    assert {row["reason"] for row in dead} == {f"{row['offset']} is odd" for row in dead}
    kept = lake.read()
    assert set(zip(kept["partition"].to_pylist(), kept["offset"].to_pylist(), strict=True)) == {
        place for place in expected if place[1] % 2 == 0
    }
    assert not list(letters.rglob("*.part"))


def test_a_rejected_row_without_dead_letters_is_an_error(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    with pytest.raises(TransformError, match=r"is odd .*topic txn, partition \d, offset \d+"):
        lake.export(source(), transform=EvenOffsets())
