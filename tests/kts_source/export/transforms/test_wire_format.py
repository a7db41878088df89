"""Values in Confluent's wire format, by schemas of a folder or of a registry."""

from __future__ import annotations

import base64
import io
import json
import pickle
import sys
import uuid
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from kts_source.errors import InvalidOptionError, RegistryError
from kts_source.export.transforms.wire_format import WireFormatColumns
from kts_source.registry import by_id
from kts_source.secret import Secret
from tests.kts_source.export.transforms.test_transforms import KEEP, batch_of
from tests.schema_registry import PASSWORD, USER, Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


def test_wire_format_by_guid(registry: Path) -> None:
    guid = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    for number, suffix in ((1, "avsc"), (2, "json"), (3, "desc")):
        named = uuid.UUID(int=guid.int + number)
        (registry / f"{number}.{suffix}").rename(registry / f"{named}.{suffix}")
    heads = [b"\1" + uuid.UUID(int=guid.int + number).bytes for number in range(4)]
    values: list[bytes | None] = [
        heads[1] + avro({"a": 1, "b": None}),
        heads[2] + b'{"a": 2}',
        heads[3] + b"\x02\x02" + protobuf("x.Order", a=3),
        heads[0] + b"{}",
    ]
    done = WireFormatColumns(PAIR, str(registry), keep=KEEP).apply(batch_of(values))
    assert done.rows is not None
    assert done.rows["a"].to_pylist() == [1, 2, 3]
    assert [found.row for found in done.rejected] == [3]


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


@pytest.mark.parametrize(("number", "library"), [(1, "fastavro"), (3, "google.protobuf")])
def test_a_machine_without_the_library_is_not_the_rows_fault(
    registry: Path, monkeypatch: pytest.MonkeyPatch, number: int, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    transform = WireFormatColumns(PAIR, str(registry), keep=KEEP)
    with pytest.raises(InvalidOptionError, match=r"pip install 'tiered-kafka\[registry\]'"):
        transform.apply(batch_of([header(number) + b"\0x"]))


def test_a_machine_without_the_folder_is_not_the_rows_fault(tmp_path: Path) -> None:
    transform = WireFormatColumns(PAIR, str(tmp_path / "nowhere"), keep=KEEP)
    with pytest.raises(RegistryError, match="no folder of schemas"):
        transform.apply(batch_of([header(1) + b"x"]))


LINE = {"type": "record", "name": "shop.Line", "fields": [{"name": "n", "type": "int"}]}
A = {"name": "a", "type": "long"}
CART = {
    "type": "record",
    "name": "shop.Cart",
    "fields": [A, {"name": "line", "type": "shop.Line"}],
}
LINES = pa.schema([("a", pa.int64()), ("line", pa.struct([("n", pa.int32())]))])


def serialized(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def cart_files() -> tuple[descriptor_pb2.FileDescriptorProto, descriptor_pb2.FileDescriptorProto]:
    """`line.proto` and a schema that imports it, and a file that comes with Protobuf."""
    kinds = descriptor_pb2.FieldDescriptorProto
    one = kinds.LABEL_OPTIONAL
    line = descriptor_pb2.FileDescriptorProto(name="default", package="shop", syntax="proto3")
    line.message_type.add(name="Line").field.add(
        name="n", number=1, type=kinds.TYPE_INT32, label=one
    )
    cart = descriptor_pb2.FileDescriptorProto(name="default", package="shop", syntax="proto3")
    cart.dependency.extend(["shop/line.proto", "google/protobuf/timestamp.proto"])
    message = cart.message_type.add(name="Cart")
    message.field.add(name="a", number=1, type=kinds.TYPE_INT64, label=one)
    message.field.add(
        name="line", number=2, type=kinds.TYPE_MESSAGE, type_name=".shop.Line", label=one
    )
    message.field.add(
        name="at",
        number=3,
        type=kinds.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=one,
    )
    return line, cart


@pytest.fixture
def registry_server() -> Iterator[Registry]:
    line, cart = cart_files()
    references = [{"name": "shop/line.proto", "subject": "shop/line", "version": 1}]
    server = Registry(
        {
            "/schemas/ids/1": {"schema": json.dumps(AVRO)},
            "/schemas/ids/2": {"schemaType": "JSON", "schema": '{"type": "object"}'},
            "/schemas/ids/3": {
                "schema": json.dumps(CART),
                "references": [{"name": "shop.Line", "subject": "line", "version": 4}],
            },
            "/subjects/line/versions/4": {"schema": json.dumps(LINE)},
            "/schemas/ids/5": {"schemaType": "PROTOBUF", "schema": "syntax = …"},
            "/schemas/ids/5?format=serialized": {
                "schemaType": "PROTOBUF",
                "schema": serialized(cart),
                "references": references,
            },
            "/subjects/shop%2Fline/versions/1?format=serialized": {"schema": serialized(line)},
            "/schemas/ids/6": {"schemaType": "NEW", "schema": "?"},
            "/schemas/ids/7": {"schema": "{}", "references": [{"subject": "line"}]},
        }
    )
    with server.serving():
        yield server


def asking(server: Registry, schema: pa.Schema = LINES) -> WireFormatColumns:
    transform = WireFormatColumns(schema, server.url, auth=Secret((USER, PASSWORD)), keep=KEEP)
    return pickle.loads(pickle.dumps(transform))  # type: ignore[no-any-return]


def test_a_registry_by_its_url(registry_server: Registry) -> None:
    line, cart = cart_files()
    line.name = "shop/line.proto"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(line)
    pool.Add(cart)
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Cart"))
    message = kind(a=9, line={"n": 3}, at={"seconds": 5}).SerializeToString()
    stream = io.BytesIO()
    written = fastavro.parse_schema({**CART, "fields": [A, {"name": "line", "type": LINE}]})
    fastavro.schemaless_writer(stream, written, {"a": 7, "line": {"n": 1}})
    values: list[bytes | None] = [
        header(3) + stream.getvalue(),
        header(2) + b'{"a": 8, "line": {"n": 2}}',
        header(5) + b"\0" + message,
        header(5) + b"\0" + message,
        header(99) + b"x",
        header(99) + b"y",
    ]
    done = asking(registry_server).apply(batch_of(values))
    assert done.rows is not None
    found = [(row["a"], row["line"]) for row in done.rows.to_pylist()]
    assert found == [(7, {"n": 1}), (8, {"n": 2}), (9, {"n": 3}), (9, {"n": 3})]
    assert [(row.row, "99" in row.reason) for row in done.rejected] == [(4, True), (5, True)]
    assert len(registry_server.asked) == len(set(registry_server.asked))


def test_a_registry_keeps_its_password(registry_server: Registry) -> None:
    transform = asking(registry_server)
    assert PASSWORD not in repr(transform) + transform.fingerprint
    wrong = WireFormatColumns(LINES, registry_server.url, auth=Secret((USER, "guess")), keep=KEEP)
    for schema_id, one, text in (
        (1, wrong, "401"),
        (6, transform, "NEW"),
        (7, transform, "malformed"),
    ):
        with pytest.raises(RegistryError, match=text) as caught:
            one.apply(batch_of([header(schema_id) + b"x"]))
        assert PASSWORD not in str(caught.value)
        assert "guess" not in str(caught.value)
    with pytest.raises(InvalidOptionError, match="user and password") as refused:
        WireFormatColumns(LINES, f"http://{USER}:{PASSWORD}@127.0.0.1:1")
    assert PASSWORD not in str(refused.value)


def asked_for(transform: WireFormatColumns, ids: range, batch: int = 50) -> list[str]:
    """The reasons why values of these ids are rejected, batch by batch."""
    return [
        found.reason
        for start in range(ids.start, ids.stop, batch)
        for found in transform.apply(
            batch_of([header(one) + b"x" for one in range(start, start + batch)])
        ).rejected
    ]


def test_hostile_ids_are_not_asked_for_without_end(
    registry_server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_id, "MAX_UNKNOWN", 60)
    transform = asking(registry_server, PAIR)
    value = header(1) + avro({"a": 7, "b": None})
    assert transform.apply(batch_of([value])).rejected == ()
    assert all("does not know" in reason for reason in asked_for(transform, range(1000, 1060), 60))
    # Whether there is a schema of the next one nobody knows: its row is not said to be malformed.
    for _ in range(2):
        with pytest.raises(RegistryError, match="schema 1060 is not asked for: of 60 other ids"):
            asked_for(transform, range(1060, 1061), 1)
    assert len(registry_server.asked) == 61
    # What is known goes on, and what is known to be unknown stays so.
    assert transform.apply(batch_of([value])).rejected == ()
    assert "does not know" in asked_for(transform, range(1000, 1050))[0]
    assert len(registry_server.asked) == 61
    # After a while ids are asked for again: the registry may have learnt them.
    monkeypatch.setattr(by_id, "UNKNOWN_SECONDS", 0.0)
    registry_server.documents["/schemas/ids/1499"] = {"schema": json.dumps(AVRO)}
    late = header(1499) + avro({"a": 8, "b": None})
    assert transform.apply(batch_of([late])).rejected == ()


def test_schemas_that_are_kept_are_bounded(
    registry_server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_id, "MAX_SCHEMAS", 2)
    for one in (11, 12, 13):
        registry_server.documents[f"/schemas/ids/{one}"] = {"schema": json.dumps(AVRO)}
    transform = asking(registry_server, PAIR)
    for one in (11, 12, 11, 13, 11, 12):
        value = header(one) + avro({"a": one, "b": None})
        assert transform.apply(batch_of([value])).rejected == ()
    asked = [int(path.rpartition("/")[2]) for path in registry_server.asked]
    assert asked == [11, 12, 13, 12]
