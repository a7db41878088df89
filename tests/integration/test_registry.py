"""Scans values that Confluent's serializers wrote, with schemas of a running registry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

import kts_source
from kts_source.errors import InvalidOptionError
from tests.integration.apicurio import apicurio
from tests.kts_source.read.typed_tier import write

pytest.importorskip("authlib", reason="confluent-kafka's serializers need it")

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(720)]

LINE = {"type": "record", "name": "shop.Line", "fields": [{"name": "n", "type": "int"}]}
OLD = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "country", "type": "string"}, {"name": "line", "type": "shop.Line"}],
}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "amount", "type": "long", "default": 5}]}
JSON_SCHEMA = {
    "title": "Order",
    "type": "object",
    "properties": {"country": {"type": "string"}, "amount": {"type": "integer"}},
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "shop/line.proto";
message Other {
  message Order {
    string country = 1;
    Line line = 2;
    google.protobuf.Timestamp at = 3;
  }
}
"""
LINE_PROTO = 'syntax = "proto3"; package shop; message Line { int32 n = 1; }'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with apicurio() as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": url}) as registry:
        yield registry


def values_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def read(tier: Path, url: str, value_format: str, values: list[bytes | None], **more: str) -> Any:  # noqa: ANN401
    options = write(tier, [values]) | {
        "value.format": f"{value_format}-confluent",
        "value.schema-registry.url": url,
        **{name.replace("__", "."): text for name, text in more.items()},
    }
    return kts_source.scan(options).to_table()


def test_scan_decodes_avro_of_two_schema_versions_that_reference_a_schema(
    client: SchemaRegistryClient, url: str, tmp_path: Path
) -> None:
    client.register_schema("line", Schema(json.dumps(LINE), "AVRO"))
    reference = SchemaReference("shop.Line", "line", 1)
    values: list[bytes | None] = []
    for number, schema in enumerate((OLD, NEW)):
        text = Schema(json.dumps(schema), "AVRO", [reference])
        serialize = AvroSerializer(client, text)
        row = {"country": f"C{number}", "line": {"n": number}, "amount": 100}
        values.append(serialize(row, values_of("orders")))
    values.append(None)
    decoded = read(tmp_path, url, "avro", values)["value"].to_pylist()
    assert decoded == [
        {"country": "C0", "line": {"n": 0}, "amount": 5},
        {"country": "C1", "line": {"n": 1}, "amount": 100},
        None,
    ]
    values += [b"\0\0\x7f\xff\xff\0", b"\1" + bytes(16)]
    rows = read(tmp_path / "bad", url, "avro", values, value__mode="PERMISSIVE")
    assert rows["value"].to_pylist() == [*decoded, None, None]
    assert "has no schema at /schemas/ids/8388607" in rows["valueError"][3].as_py()
    assert "the registry is too old to support /schemas/guids/" in rows["valueError"][4].as_py()
    with pytest.raises(InvalidOptionError, match="has no subject 'no such'"):
        read(tmp_path / "no", url, "avro", values, value__subject="no such")


def test_scan_decodes_values_of_json_serializer(
    client: SchemaRegistryClient, url: str, tmp_path: Path
) -> None:
    serialize = JSONSerializer(json.dumps(JSON_SCHEMA), client)
    values = [serialize({"country": "CH", "amount": 7}, values_of("json-orders")), None]
    rows = read(tmp_path, url, "json", values, value__subject="json-orders-value")
    assert rows["value"].to_pylist() == [{"country": "CH", "amount": 7}, None]


def order_class() -> Any:  # noqa: ANN401  # a generated class
    kinds = descriptor_pb2.FieldDescriptorProto
    optional = kinds.LABEL_OPTIONAL
    line = descriptor_pb2.FileDescriptorProto(name="l.proto", package="shop", syntax="proto3")
    line.message_type.add(name="Line").field.add(
        name="n", number=1, type=kinds.TYPE_INT32, label=optional
    )
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "l.proto"])
    order = file.message_type.add(name="Other").nested_type.add(name="Order")
    order.field.add(name="country", number=1, type=kinds.TYPE_STRING, label=optional)
    for name, number, kind in (("line", 2, "shop.Line"), ("at", 3, "google.protobuf.Timestamp")):
        order.field.add(
            name=name, number=number, type=kinds.TYPE_MESSAGE, type_name=f".{kind}", label=optional
        )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(line)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Other.Order"))


ROW = {"country": "CH", "line": {"n": 3}, "at": None}


def test_scan_decodes_values_of_protobuf_serializer(
    client: SchemaRegistryClient, url: str, tmp_path: Path
) -> None:
    order = order_class()
    serialize = ProtobufSerializer(order, client, {"use.deprecated.format": False})
    value = serialize(order(country="CH", line={"n": 3}), values_of("pb"))
    rows = read(
        *(tmp_path, url, "protobuf", [value]),
        value__subject="pb-value",
        value__message="shop.Other.Order",
    )
    assert rows["value"].to_pylist() == [ROW]
    rows = read(
        *(tmp_path / "other", url, "protobuf", [value]),
        value__subject="l.proto",
        value__mode="PERMISSIVE",
    )
    assert "shop.Other.Order, not shop.Line" in rows["valueError"][0].as_py()


def test_scan_decodes_protobuf_with_schemas_registered_as_text(
    client: SchemaRegistryClient, url: str, tmp_path: Path
) -> None:
    pytest.importorskip("grpc_tools")
    client.register_schema("line-text", Schema(LINE_PROTO, "PROTOBUF"))
    reference = SchemaReference("shop/line.proto", "line-text", 1)
    schema_id = client.register_schema("text-value", Schema(PROTO, "PROTOBUF", [reference]))
    message = order_class()(country="CH", line={"n": 3}).SerializeToString()
    value = b"\0" + schema_id.to_bytes(4, "big") + b"\4\0\0" + message
    rows = read(
        *(tmp_path, url, "protobuf", [value]),
        value__subject="text-value",
        value__message="shop.Other.Order",
    )
    assert rows["value"].to_pylist() == [ROW]
