"""Tests values with the GUID of their writer schema.

Confluent's serializers write the GUID into a record header or before the value.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

import kts_source
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.schema_registry import Registry
from tests.segment_format.values.protobuf.oracle import message_class
from tests.segment_format.values.protobuf.sample import sample_file

pytest.importorskip("authlib", reason="what confluent-kafka's serializers need")

from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OLD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "b", "type": "string", "default": "x"}]}
JSON_SCHEMA = {"title": "R", "type": "object", "properties": {"a": {"type": "integer"}}}
IN_HEADERS = {"schema.id.serializer": header_schema_id_serializer}


@pytest.fixture
def server() -> Iterator[Registry]:
    registry = Registry({})
    registry.authorization = None
    with registry.serving():
        yield registry


@pytest.fixture
def client() -> SchemaRegistryClient:
    """Returns a client of the mock registry of Confluent's library, which assigns GUIDs."""
    return SchemaRegistryClient.new_client({"url": "mock://"})


def serialized(serializer: Any, value: object) -> list[SimpleRecord]:  # noqa: ANN401
    """Returns two records of `value`: one with the schema's GUID in a header, and one with the GUID
    before the value.
    """
    headers: list[tuple[str, Any]] = []
    data = serializer(value, SerializationContext("orders", MessageField.VALUE, headers))
    ((name, guid),) = headers
    assert name == "__value_schema_id"
    assert guid[0] == 1
    return [SimpleRecord(data, None, tuple(headers)), SimpleRecord(guid + data)]


def read(root: Path, records: list[SimpleRecord], /, **options: str) -> Any:  # noqa: ANN401
    log = LogBuilder()
    log.append(records)
    files = log.roll()
    assert files is not None
    AivenTierWriter(str(root), topic="orders", partition=0).write_segment(files)
    return kts_source.scan(
        {"path": str(root), "subscribe": "orders", "cache": "false", **options}
    ).to_table()


def path_of(client: SchemaRegistryClient, kind: str, text: str) -> str:
    """Returns the registry path of schema `text`, which the serializer must have registered."""
    (version,) = (
        row
        for number in client.get_versions("orders-value")
        if (row := client.get_version("orders-value", number)).schema.schema_str == text
    )
    assert version.schema.schema_type == kind
    return f"/schemas/guids/{version.guid}"


def test_avro_values_with_guids_of_two_schema_versions_are_decoded(
    server: Registry, client: SchemaRegistryClient, tmp_path: Path
) -> None:
    records, paths = [SimpleRecord(b"\0\0\0\0\7\6")], ["/schemas/ids/7?subject=orders-value"]
    server.documents[paths[0]] = {"schema": json.dumps(OLD)}
    for number, schema in enumerate((OLD, NEW)):
        serializer = AvroSerializer(client, json.dumps(schema), conf=IN_HEADERS)
        records += serialized(serializer, {"a": number, "b": "yes"})
        text = serializer._schema.schema_str
        paths.append(path_of(client, "AVRO", text))
        server.documents[paths[-1]] = {"schema": text}
    table = read(
        *(tmp_path, [*records, SimpleRecord(None, None, records[1].headers)]),
        **{
            "value.format": "avro-confluent",
            "value.schema": json.dumps(NEW),
            "value.schema-registry.url": server.url,
        },
    )
    old, new = {"a": 0, "b": "x"}, {"a": 1, "b": "yes"}
    assert table["value"].to_pylist() == [{"a": 3, "b": "x"}, old, old, new, new, None]
    assert sorted(server.asked) == sorted(paths)


def test_json_values_with_schema_guids_need_no_registry(
    client: SchemaRegistryClient, tmp_path: Path
) -> None:
    serializer = JSONSerializer(json.dumps(JSON_SCHEMA), client, conf=IN_HEADERS)
    records = serialized(serializer, {"a": 7})
    assert [record.value[:1] for record in records if record.value] == [b"{", b"\1"]
    for number, record in enumerate(records):
        # The scan infers the schema from a sample before it reads the values.
        table = read(tmp_path / str(number), [record], **{"value.format": "json-confluent"})
        assert table["value"].to_pylist() == [{"a": 7}]


def test_protobuf_values_with_schema_guids_are_decoded(
    server: Registry, client: SchemaRegistryClient, tmp_path: Path
) -> None:
    file = sample_file("proto3")
    order = message_class(file, "s.Order")
    serializer = ProtobufSerializer(order, client, {"use.deprecated.format": False, **IN_HEADERS})
    records = serialized(serializer, order(id="Zürich", amount=-2.5))
    (number,) = client.get_versions("orders-value")
    path = f"/schemas/guids/{client.get_version('orders-value', number).guid}"
    schema = base64.b64encode(file.SerializeToString()).decode()
    document = {"schema": schema, "schemaType": "PROTOBUF"}
    server.documents |= {path: document, f"{path}?format=serialized": document}
    server.documents["/subjects/orders-value/versions/latest"] = {**document, "id": 1}
    server.documents["/schemas/ids/1?format=serialized"] = document
    table = read(
        *(tmp_path, records),
        **{
            "value.format": "protobuf-confluent",
            "value.message": "s.Order",
            "value.schema-registry.url": server.url,
        },
    )
    assert [(value["id"], value["amount"]) for value in table["value"].to_pylist()] == [
        ("Zürich", -2.5)
    ] * 2
    assert server.asked.count(path) == 1
