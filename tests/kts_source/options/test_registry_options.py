"""Tests options `value.schema-registry.…` and `value.subject`, and the schema that they select."""

from __future__ import annotations

import base64
import json
import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import kts_source
from kts_source.errors import InvalidOptionError, RegistryError
from kts_source.options import ScanOptions, parse_options
from tests.kts_source.read.typed_tier import write
from tests.schema_registry import PASSWORD, USER, Registry
from tests.segment_format.values.protobuf.oracle import descriptor_set
from tests.segment_format.values.protobuf.sample import sample_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINE = {"type": "record", "name": "shop.Line", "fields": [{"name": "n", "type": "int"}]}
CART = {
    "type": "record",
    "name": "shop.Cart",
    "fields": [{"name": "a", "type": "long"}, {"name": "line", "type": "shop.Line"}],
}
RECORD = '{"type": "record", "name": "R", "fields": []}'
LATEST = "/subjects/orders-value/versions/latest"


@pytest.fixture
def server() -> Iterator[Registry]:
    reference = {"name": "shop.Line", "subject": "line", "version": 3}
    cart = {"schema": json.dumps(CART), "references": [reference], "id": 21}
    registry = Registry(
        {
            LATEST: cart,
            "/schemas/ids/21": cart,
            "/subjects/line/versions/3": {"schema": json.dumps(LINE), "id": 20},
        }
    )
    registry.authorization = None
    with registry.serving():
        yield registry


def parsed(topics: dict[str, str] | None = None, /, **options: str) -> ScanOptions:
    named = {name.replace("__", "."): text for name, text in options.items()}
    return parse_options({"path": "/x", **(topics or {"subscribe": "orders"}), **named})


def confluent(server: Registry) -> dict[str, str]:
    return {"value.format": "avro-confluent", "value.schema-registry.url": server.url}


def test_scan_keeps_the_latest_schema_version_as_reader_schema(
    server: Registry, tmp_path: Path
) -> None:
    options = write(tmp_path, [[b"\0\0\0\0\x15\x02\x04"]]) | confluent(server)
    scan = pickle.loads(pickle.dumps(kts_source.scan(options)))
    assert server.asked == [LATEST, "/subjects/line/versions/3"]
    more = [*CART["fields"], {"name": "b", "type": "int", "default": 7}]
    server.documents[LATEST] = server.documents[LATEST] | {
        "schema": json.dumps({**CART, "fields": more}),
        "id": 22,
    }
    # A running query keeps its schema version. The next query uses the new version.
    assert scan.to_table()["value"].to_pylist() == [{"a": 1, "line": {"n": 2}}]
    again = kts_source.scan(options).to_table()
    assert again["value"].to_pylist() == [{"a": 1, "line": {"n": 2}, "b": 7}]


@pytest.mark.parametrize(
    ("topics", "subject_options", "subject"),
    [
        ({"subscribe": "orders"}, {}, "orders-value"),
        ({"assign": '{"orders": [0]}'}, {}, "orders-value"),
        ({"subscribePattern": "o.*"}, {"value.subject": "a/b c"}, "a%2Fb%20c"),
        ({"subscribe": "orders,others"}, {"value.subject": "x"}, "x"),
    ],
)
def test_subject_is_value_subject_or_derived_from_the_topic(
    server: Registry, topics: dict[str, str], subject_options: dict[str, str], subject: str
) -> None:
    server.documents[f"/subjects/{subject}/versions/latest"] = {"schema": '"int"', "id": 1}
    (form,) = parsed(topics, **confluent(server), **subject_options).formats
    assert form.type == pa.int32()


@pytest.mark.parametrize("topics", [{"subscribe": "a,b"}, {"subscribePattern": "orders"}])
def test_default_subject_needs_a_single_topic(server: Registry, topics: dict[str, str]) -> None:
    with pytest.raises(InvalidOptionError, match=r"set option 'value.schema' or 'value.subject'"):
        parsed(topics, **confluent(server))
    assert server.asked == []


def test_unusable_subject_raises_error(server: Registry) -> None:
    with pytest.raises(InvalidOptionError, match="has no subject 'none-value'"):
        parsed({"subscribe": "none"}, **confluent(server))
    server.documents[LATEST] = {"schema": "{}", "schemaType": "JSON", "id": 2}
    with pytest.raises(InvalidOptionError, match="'orders-value' cannot be used: its kind is JSON"):
        parsed(**confluent(server))
    server.documents[LATEST] = {"schema": '{"type": "what"}', "id": 2}
    with pytest.raises(InvalidOptionError, match=r"'value.subject': .*what"):
        parsed(**confluent(server))
    server.documents[LATEST] = {"schema": '"int"'}
    with pytest.raises(RegistryError, match="has no id"):
        parsed(**confluent(server))


def test_json_schema_of_the_registry_defines_the_columns(server: Registry) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    server.documents[LATEST] = {"schema": json.dumps(schema), "schemaType": "JSON", "id": 2}
    options = confluent(server) | {"value.format": "json-confluent"}
    (form,) = parsed(**options).formats
    assert form.type == pa.struct([("a", pa.int64())])
    assert form.registry is None  # no writer schemas are requested
    reference = {"name": "other", "subject": "line", "version": 3}
    server.documents[LATEST] |= {"references": [reference]}
    with pytest.raises(InvalidOptionError, match="it refers to other schemas"):
        parsed(**options)


def test_protobuf_message_index_refers_to_the_writer_schema(
    server: Registry, tmp_path: Path
) -> None:
    file = sample_file("proto3")
    text = base64.b64encode(file.SerializeToString()).decode()
    document = {"schema": text, "schemaType": "PROTOBUF", "id": 5}
    server.documents |= {LATEST: document, "/schemas/ids/5?format=serialized": document}
    first = file.message_type[0].name
    options = confluent(server) | {"value.format": "protobuf-confluent"}
    (form,) = parsed(**options).formats
    assert form.message == f"{file.package}.{first}"
    # The second writer schema has the same messages in another order.
    other = sample_file("proto3")
    other.message_type.add(name="New")
    moved = [other.message_type[-1], *other.message_type[:-1]]
    copies = [type(value).FromString(value.SerializeToString()) for value in moved]
    del other.message_type[:]
    other.message_type.extend(copies)
    moved_text = base64.b64encode(other.SerializeToString()).decode()
    document = {"schema": moved_text, "schemaType": "PROTOBUF", "id": 6}
    server.documents |= {"/schemas/ids/6": document, "/schemas/ids/6?format=serialized": document}
    server.documents["/schemas/ids/5"] = server.documents["/schemas/ids/5?format=serialized"]
    values = [
        b"\0\0\0\0\x05\0",  # the first message of file 5
        b"\0\0\0\0\x06\x02\x02",  # the second of file 6: the same message
        b"\0\0\0\0\x06\0",
        b"\0\0\0\0\x06\x02\x50",
        b"\0\0\0\0\x07\0",
    ]
    options |= write(tmp_path, [[*values]]) | {"value.mode": "PERMISSIVE"}
    table = kts_source.scan(options).to_table()
    assert [value is not None for value in table["value"].to_pylist()] == [True, True, *[False] * 3]
    reasons = table["valueError"].to_pylist()
    assert "New, not" in reasons[2]
    assert "no message with index [40]" in reasons[3]
    assert "has no schema at" in reasons[4]


def test_descriptor_folder_is_used_as_registry(tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    folder.mkdir()
    descriptors = descriptor_set(sample_file("proto2"))
    (folder / "5.desc").write_bytes(descriptors)
    options = write(tmp_path / "tier", [[b"\0\0\0\0\x05\x02\x50", b"\0\0\0\0\x08\0"]]) | {
        "value.format": "protobuf-confluent",
        "value.schema": str(folder / "5.desc"),
        "value.message": "s.Order",
        "value.schema-registry.url": str(folder),
        "value.mode": "PERMISSIVE",
    }
    reasons = kts_source.scan(options).to_table()["valueError"].to_pylist()
    assert "no message with index [40]" in reasons[0]
    assert "the folder has no schema 8" in reasons[1]


def test_folder_with_schema_files_named_by_uuid_is_used_as_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = [{"name": name, "type": "int"} for name in ("a", "b")]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "00000000-0000-0000-0000-000000000007.avsc").write_text(schema)
    head = b"\3\0" + bytes(15)
    options = write(tmp_path / "tier", [[head + b"\7\x0e\2", head + b"\x08\x0e\2"]]) | {
        "value.format": "avro-glue",
        "value.schema": schema,
        "value.schema-registry.url": str(folder),
        "value.mode": "PERMISSIVE",
    }
    table = kts_source.scan(options).to_table()
    assert table["value"].to_pylist() == [{"a": 7, "b": 1}, None]
    assert "the folder has no schema 00000000-0000-0000-0000-000000000008" in str(
        table["valueError"][1]
    )
    # The decoders of option `where` and of the table share one cache of missing schemas.
    (folder / "00000000-0000-0000-0000-000000000008.avsc").write_text(schema)
    again = kts_source.scan(options | {"columns": "value,offset", "where": "value.a IS NULL"})
    assert again.to_table()["value"].to_pylist() == [None]
    monkeypatch.setattr("kts_source.registry.schema_registry.UNKNOWN_SECONDS", -1.0)
    assert kts_source.scan(options).to_table()["value"].to_pylist() == [{"a": 7, "b": 1}] * 2
    with pytest.raises(InvalidOptionError, match="avro-glue reads schemas only from a folder"):
        parse_options({**options, "value.schema-registry.url": "http://x"})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"url": "/x"}, "needs option 'value.schema'"),
        ({"url": "/x", "basic.auth.user.info": "a:b"}, "needs a registry's URL"),
        ({"basic.auth.user.info": "a:b"}, "needs a registry's URL"),
        ({"url": "http://a:hidden@x", "bearer.auth.token": "hidden"}, "set only one of them"),
        ({"url": "http://x", "basic.auth.user.info": "a:hidden", "bearer.auth.token": "hidden"},
         "set only one of them"),
        ({"url": "http://x", "basic.auth.user.info": "hidden"}, "must have the form user:password"),
        ({"url": "http://x", "bearer.auth.token": "hidden\nX: y"}, "HTTP headers cannot contain"),
        ({"url": "http://x", "bearer.auth.logical.cluster": "l"}, "needs option .*token"),
        ({"url": "http://x", "ssl.ca.location": "/y"}, "needs https"),
        ({"url": "https://x", "ssl.ca.location": "/none"}, "the driver cannot read"),
        ({"url": "https://x", "ssl.ca.location": __file__}, "is not PEM|no BEGIN CERTIFICATE"),
        ({"url": "https://x", "ssl.key.location": "/y"}, "needs option .*certificate"),
        ({"url": "https://x", "ssl.certificate.location": "/y"}, "needs option .*key"),
    ],
)  # fmt: skip
def test_invalid_registry_options_are_refused(options: dict[str, str], reason: str) -> None:
    named = {f"value.schema-registry.{name}": text for name, text in options.items()}
    if "url" not in options or options["url"] != "/x" or len(options) > 1:
        named["value.schema"] = RECORD
    with pytest.raises(InvalidOptionError, match=reason) as raised:
        parsed(**{"value.format": "avro-confluent", **named})
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"value.format": "avro", "value.subject": "x"}, "has no effect"),
        ({"value.format": "json", "value.schema-registry.bearer.auth.token": "x"}, "has no effect"),
        ({"value.format": "avro-confluent", "value.schema": RECORD, "value.subject": "s",
          "value.schema-registry.url": "/x"}, "needs a registry's URL"),
        ({"value.format": "json-confluent", "value.schema": "a int", "value.subject": "s",
          "value.schema-registry.url": "http://x"}, "has no effect with json-confluent"),
        ({"value.format": "protobuf-confluent", "value.schema": "/x",
          "value.schema-registry.url": "http://x"}, "needs option 'value.message'"),
        ({"value.format": "avro-confluent", "value.schema-registry.use-id": "globalId"},
         "has no effect"),
        ({"value.format": "avro-apicurio", "value.schema-registry.url": "http://x"},
         "needs option 'value.schema'"),
        ({"value.format": "avro-apicurio", "value.schema": RECORD},
         "needs option 'value.schema-registry.url'"),
        ({"value.format": "avro-apicurio", "value.schema": RECORD,
          "value.schema-registry.url": "http://x", "value.subject": "s"}, "has no effect"),
        ({"value.format": "avro-apicurio", "value.schema": RECORD,
          "value.schema-registry.url": "http://x", "value.schema-registry.use-id": "id"},
         "must be globalid or contentid"),
    ],
)  # fmt: skip
def test_registry_options_that_do_not_fit_the_format_are_refused(
    options: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidOptionError, match=reason):
        parsed(**options)


@pytest.mark.parametrize("which", ["globalId", "contentId"])
def test_apicurio_ids_are_looked_up_through_apicurios_api(tmp_path: Path, which: str) -> None:
    paths = {schema_id: f"/ids/{which}s/{schema_id}?dereference=true" for schema_id in (5, 6, 7)}
    server = Registry({paths[5]: CART | {"fields": CART["fields"][:1]}, paths[6]: {"type": "int"}})
    server.unknown = lambda _: {"error_code": 404, "name": "ArtifactNotFoundException"}
    values = [b"\0" + number.to_bytes(8, "big") + b"\x0e" for number in (5, 6, 7, 5, 7)]
    options = write(tmp_path, [[*values]]) | {
        "value.format": "avro-apicurio",
        "value.schema": json.dumps({**CART, "fields": CART["fields"][:1]}),
        "value.schema-registry.url": server.url,
        "value.schema-registry.basic.auth.user.info": f"{USER}:{PASSWORD}",
        "value.schema-registry.use-id": which,
        "value.mode": "PERMISSIVE",
    }
    with server.serving():
        table = kts_source.scan(options).to_table()
    assert table["value"].to_pylist() == [{"a": 7}, None, None, {"a": 7}, None]
    reasons = table["valueError"].to_pylist()
    assert reasons[1] == "schema 6: int cannot be read as record shop.Cart"
    assert f"has no schema at {paths[7]}" in reasons[2]
    assert sorted(server.asked) == [*paths.values()]


def test_options_hide_registry_credentials() -> None:
    options = parsed(
        **{
            "value.format": "avro-confluent",
            "value.schema": RECORD,
            "value.schema-registry.url": "https://x",
            "value.schema-registry.basic.auth.user.info": "someone:hidden-word",
        }
    )
    (form,) = options.formats
    assert "hidden-word" not in repr(options) + str(options) + repr(form) + repr(form.registry)
    assert form.registry is not None
    assert form.registry.revealed_access().password == "hidden-word"
    assert hash(form) == hash(pickle.loads(pickle.dumps(form)))
    assert form == pickle.loads(pickle.dumps(form))
