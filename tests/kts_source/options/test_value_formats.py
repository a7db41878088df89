"""Tests the options `key.…` and `value.…`, which define the formats of keys and values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import InvalidOptionError
from kts_source.options import ScanOptions, parse_options
from tests.segment_format.values.protobuf.oracle import descriptor_set
from tests.segment_format.values.protobuf.sample import sample_file
from tests.test_loaded_modules import loaded_after

if TYPE_CHECKING:
    from pathlib import Path

RECORD = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})


def parsed(**options: str) -> ScanOptions:
    named = {name.replace("__", "."): text for name, text in options.items()}
    return parse_options({"path": "/x", "subscribe": "t", **named})


def test_formats_default_to_raw() -> None:
    assert parsed().formats == ()
    assert parsed(value__format="RAW", key__format="raw").formats == ()


def test_schema_of_file_equals_schema_in_option_text(tmp_path: Path) -> None:
    file = tmp_path / "r.avsc"
    file.write_text(RECORD)
    (of_file,) = parsed(value__format="avro", value__schema=str(file)).formats
    file.write_text('"int"')
    (of_text,) = parsed(value__format="avro", value__schema=RECORD).formats
    assert of_file == of_text
    assert of_file.schema == RECORD


def test_types_of_formats_are_resolved_without_loading_numba(tmp_path: Path) -> None:
    file = tmp_path / "order.desc"
    file.write_bytes(descriptor_set(sample_file("proto2")))
    every = [
        {"value.format": "avro", "value.schema": RECORD},
        {"value.format": "json-confluent", "value.schema": "a int, b int", "value.columns": "a"},
        {"value.format": "protobuf", "value.schema": str(file), "value.message": "s.Order"},
    ]
    loaded = loaded_after(f"""
from kts_source.options import parse_options
for given in {every!r}:
    (form,) = parse_options({{"path": "/x", "subscribe": "t"}} | given).formats
    assert form.type.num_fields
""")
    assert {"numba", "llvmlite"} & loaded == set()


def test_schema_file_above_16_mib_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "large"
    with file.open("wb") as out:
        out.truncate((16 << 20) + 1)
    with pytest.raises(InvalidOptionError, match="more than 16 MiB"):
        parsed(value__format="avro", value__schema=str(file))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"value__format": "csv"}, "must be raw or utf8 or json or .* or protobuf-confluent"),
        ({"value__format": "avro"}, "needs option 'value.schema'"),
        ({"value__format": "avro-confluent", "value__schema": RECORD}, "schema-registry.url"),
        ({"value__schema": RECORD}, "'value.schema' has no effect with 'value.format' = raw"),
        ({"value__mode": "FAILFAST"}, "'value.mode' has no effect"),
        ({"key__format": "utf8", "key__columns": "a"}, "'key.columns' has no effect"),
        ({"value__format": "avro", "value__schema": RECORD, "value__schema-registry.url": "/x"},
         "has no effect"),
        ({"value__format": "avro", "value__schema": '{"type": "x"}'}, "'value.schema'.*x"),
        ({"value__format": "avro", "value__schema": "/no/such/file"}, "neither"),
        ({"value__format": "avro", "value__schema": RECORD.replace('"a"', r'"\ud800"')}, "surrog"),
        ({"value__format": "avro", "value__schema": RECORD, "value__columns": "b"},
         "'value.schema' or 'value.columns'.*'b'"),
        ({"value__format": "avro",
          "value__schema": RECORD.replace('"int"', '"int", "default": "0"')},
         "'value.schema': field 'a': the default is not of type int: '0'"),
        ({"value__format": "avro", "value__schema": RECORD, "value__mode": "IGNORE"}, "must be"),
        ({"value__format": "json", "value__schema": '{"type": "object"}'},
         "'value.schema': the value of the JSON Schema: an object has neither properties"),
        ({"value__format": "json", "value__schema": "a byte"}, "a DDL .*a type.*nor a file"),
        ({"value__format": "json", "value__schema": "a int", "value__columns": "b"},
         "'value.schema' or 'value.columns'.*'b'"),
        ({"value__format": "json", "value__schema": "a int", "value__schema-registry.url": "/x"},
         "has no effect"),
        ({"value__format": "protobuf", "value__message": "a.B"}, "needs option 'value.schema'"),
        ({"value__format": "protobuf", "value__schema": "/x"}, "needs option 'value.message'"),
        ({"value__format": "protobuf", "value__schema": "/no/file", "value__message": "a.B"},
         "'value.schema' is not a file that can be read"),
        ({"value__format": "protobuf", "value__schema": __file__, "value__message": "a.B"},
         "'value.schema' or 'value.message': .*FileDescriptorSet"),
        ({"value__format": "avro", "value__schema": RECORD, "value__message": "a.B"},
         "'value.message' has no effect"),
        ({"columns": "valueError"}, "not a column"),
        ({"value__formt": "avro"}, "did you mean 'value.format'"),
    ],
)  # fmt: skip
def test_invalid_format_options_are_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOptionError, match=reason):
        parsed(**options)


@pytest.mark.parametrize(
    ("url", "location", "auth"),
    [
        ("https://registry:8081/sub", "https://registry:8081/sub", None),
        ("https://me:hid%2Fden@registry", "https://registry", ("me", "hid/den")),
        ("HTTP://me@registry", "http://registry", ("me", "")),
        ("/a/folder@home", "/a/folder@home", None),
    ],
)
def test_password_in_registry_url_is_not_shown(
    url: str, location: str, auth: tuple[str, str] | None
) -> None:
    options = confluent(url)
    (form,) = options.formats
    assert form.registry is not None
    assert form.registry.place == location
    shown = form.registry.revealed_access()
    assert ((shown.user, shown.password) if form.registry.access else None) == auth
    assert "hid" not in repr(options)
    assert options.formats == confluent(url).formats
    assert hash(form) == hash(confluent(url).formats[0])


@pytest.mark.parametrize(
    "url",
    [
        "https://[me:hidden@x",
        "https://me:hidden@",
        "http://x/?a=hidden",
        "htps://me:hidden@x",
        "https://me:hid/den@x/hidden",
        "https://x:80x81/hidden",
        "https://x/a hidden",
    ],
)
def test_invalid_registry_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        confluent(url)
    assert "hidden" not in str(raised.value)


def confluent(url: str) -> ScanOptions:
    named = {"value__format": "avro-confluent", "value__schema": RECORD}
    return parsed(**named, **{"value__schema-registry.url": url})
