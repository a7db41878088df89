"""Checks that ids and references are looked up, and cached, in the context of their subject."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kts_source.cache.caches import CacheSettings
from kts_source.cache.disk_cache import CacheLimits
from kts_source.options import parse_any_options
from kts_source.read.value_decoders import value_decoder
from kts_source.registry.client import RegistryPlace
from kts_source.registry.schema_registry import find_schema, latest_schema
from tests.schema_registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STAGING = ":.staging:orders-value"
QUOTED = "%3A.staging%3Aorders-value"


@pytest.fixture
def server() -> Iterator[Registry]:
    inner = {"name": "inner", "subject": "inner", "version": 2}
    leaf = {"name": "leaf", "subject": ":.other:leaf", "version": 1}
    registry = Registry(
        {
            "/schemas/ids/1": {"schema": '"int"'},
            f"/schemas/ids/1?subject={QUOTED}": {"schema": '"string"'},
            f"/schemas/ids/2?subject={QUOTED}": {"schema": '"bytes"', "references": [inner]},
            "/subjects/inner/versions/2": {"schema": '"default"'},
            "/subjects/%3A.staging%3Ainner/versions/2": {
                "schema": '"staging"',
                "references": [leaf],
            },
            "/subjects/%3A.other%3Aleaf/versions/1": {"schema": '"other"'},
            f"/subjects/{QUOTED}/versions/latest": {
                "id": 2,
                "schema": '"bytes"',
                "references": [inner],
            },
            "/schemas/ids/9": {"schema": '"long"'},
        }
    )
    registry.authorization = None
    with registry.serving():
        yield registry


def texts(registry: RegistryPlace, schema_id: int) -> list[bytes]:
    return [text for _, text in find_schema(registry, schema_id).parts]


def test_id_in_a_context_is_requested_with_its_subject(server: Registry) -> None:
    registry = RegistryPlace(server.url)
    assert texts(registry, 1) == [b'"int"']
    assert texts(replace(registry, subject=STAGING), 1) == [b'"string"']
    assert server.asked[-1] == f"/schemas/ids/1?subject={QUOTED}"


def test_unqualified_schema_reference_uses_context_of_its_parent(server: Registry) -> None:
    due = [b'"other"', b'"staging"', b'"bytes"']
    assert texts(RegistryPlace(server.url, subject=STAGING), 2) == due
    schema_parts = latest_schema(RegistryPlace(server.url), STAGING).parts
    assert [text for _, text in schema_parts] == due


def test_schema_references_use_context_of_the_subject_in_the_response(server: Registry) -> None:
    inner = {"name": "inner", "subject": "inner", "version": 2}
    server.documents["/schemas/ids/3?subject=orders-value"] = {
        "schema": '"bytes"',
        "subject": STAGING,
        "references": [inner],
    }
    registry = RegistryPlace(server.url, subject="orders-value")
    assert texts(registry, 3) == [b'"other"', b'"staging"', b'"bytes"']


def test_id_is_requested_without_subject_if_subject_is_unknown(server: Registry) -> None:
    from tests import schema_registry

    server.documents = dict(server.documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_registry, "_without_subject", lambda path: path)
        assert texts(RegistryPlace(server.url, subject="orders-value"), 9) == [b'"long"']
        expected_requests = ["/schemas/ids/9?subject=orders-value", "/schemas/ids/9"]
        assert server.asked == expected_requests
        with pytest.raises(LookupError):
            texts(RegistryPlace(server.url, subject=STAGING), 9)
        assert server.asked == [*expected_requests, f"/schemas/ids/9?subject={QUOTED}"]


def test_cached_schema_is_not_used_for_another_subject(server: Registry, tmp_path: Path) -> None:
    cache = CacheSettings(folder=str(tmp_path), schemas=CacheLimits(1 << 20, None))
    default = RegistryPlace(server.url, cache=cache)
    staging = replace(default, subject=STAGING)
    for _ in range(2):
        assert texts(default, 1) == [b'"int"']
        assert texts(staging, 1) == [b'"string"']
    assert len(server.asked) == 2


def test_decoders_of_two_contexts_do_not_share_schemas(server: Registry) -> None:
    def decoded(subject: str) -> object:
        import pyarrow as pa

        options = parse_any_options(
            {
                "path": "/tier",
                "subscribe": "orders",
                "value.format": "avro-confluent",
                "value.schema": json.dumps(["int", "string"]),
                "value.schema-registry.url": server.url,
                "value.subject": subject,
            }
        )
        (form,) = options.formats
        assert form.registry is not None
        assert form.registry.subject == subject
        values = pa.array([b"\0\0\0\0\1\x02a"], pa.binary())
        return value_decoder(form).decode(values).array.to_pylist()[0]

    assert decoded("orders-value") != decoded(STAGING)
    assert decoded(STAGING) == {"member0": None, "member1": "a"}


def test_subject_of_the_only_topic_is_the_default_subject() -> None:
    def subject(**options: str) -> str:
        source_options = {
            "path": "/tier",
            "value.format": "avro-confluent",
            "value.schema": '"int"',
            "value.schema-registry.url": "http://registry",
            **options,
        }
        (form,) = parse_any_options(source_options).formats
        assert form.registry is not None
        return form.registry.subject

    assert subject(subscribe="orders") == "orders-value"
    assert subject(assign='{"orders": [0]}') == "orders-value"
    assert subject(subscribe="orders,refunds") == ""
    assert subject(subscribePattern="ord.*") == ""
    assert subject(subscribe="orders,refunds", **{"value.subject": STAGING}) == STAGING
