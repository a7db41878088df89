"""Tests reads through presigned URLs of an HTTP S3 server."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StoreUnavailableError,
    TruncatedObjectError,
)
from kts_source.options import parse_options
from kts_source.secret import Secret
from kts_source.store.object_store import ObjectStore
from kts_source.store.open_store import open_store
from kts_source.store.request_policy import RetryPolicy
from tests.faulty_proxy import change, cut, drop, faulty_proxy, status
from tests.golden_data import KEY_PREFIX, TIER, assert_same_rows, expected_table, tier_options
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from pathlib import Path

    from tests.s3 import S3Server

pytestmark = pytest.mark.s3
DATA = bytes(range(256)) * 5


def presigned(server: S3Server, bucket: str, key: str, endpoint: str = "") -> str:
    url = server.client().generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=600
    )
    return str(url).replace(server.endpoint, endpoint or server.endpoint)


def listed(folder: Path, urls: object, name: str = "list.json") -> str:
    path = folder / name
    path.write_text(json.dumps(urls) if name.endswith("json") else str(urls))
    return f"presigned+{path.as_uri()}"


def test_presigned_store_can_list_look_up_and_read_objects(
    s3_server: S3Server, tmp_path: Path
) -> None:
    bucket = s3_server.make_bucket()
    s3_server.put(bucket, "tier/a b/x", DATA)
    s3_server.put(bucket, "tier/y", b"")
    keys = ("tier/a b/x", "tier/y")
    text = "# a list\n" + "\n".join(presigned(s3_server, bucket, key) for key in keys)
    store = open_store(listed(tmp_path, text, "list.txt"), Secret({}))
    assert isinstance(store, ObjectStore)
    key = f"{bucket}/tier/a b/x"
    assert [(info.key, info.size) for info in store.list_objects("")] == [
        (key, len(DATA)),
        (f"{bucket}/tier/y", 0),
    ]
    assert store.list_folders(f"{bucket}/tier/") == [f"{bucket}/tier/a b/"]
    version = store.head(key).version
    assert version is not None
    assert store.get_range(key, 7, 1000, version=version) == DATA[7:1000]
    assert store.get_range(key, 0, len(DATA), version=version) == DATA
    for start, stop in ((0, 1281), (1280, 1281)):
        with pytest.raises(TruncatedObjectError):
            store.get_range(key, start, stop, version=version)
    with pytest.raises(ObjectNotFoundError):
        store.get_range("nothing", 0, 1)
    s3_server.put(bucket, "tier/a b/x", DATA[::-1])
    with pytest.raises(ObjectChangedError):
        store.get_range(key, 7, 1000, version=version)
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get_range(key, 0, 3) == DATA[::-1][:3]
    copy.close()
    store.close()


def test_failures_are_retried_or_reported_without_secrets(
    s3_server: S3Server, tmp_path: Path
) -> None:
    bucket = s3_server.make_bucket()
    s3_server.put(bucket, "x", DATA)
    with faulty_proxy(s3_server.endpoint) as proxy:
        url = presigned(s3_server, bucket, "x", proxy.endpoint)
        store = open_store(listed(tmp_path, {"x": url}), Secret({}))
        for fault in (status(503, "SlowDown"), drop, cut(3), change(Content_Range="bytes 1-9/10")):
            proxy.faults.append(fault)
            assert store.get_range("x", 0, 10) == DATA[:10]
        assert store.counters.retries >= 3
        proxy.faults.append(status(403, "AccessDenied"))
        with pytest.raises(AccessDeniedError) as denied:
            store.get_range("x", 0, 10)
        store.close()
    secret = url.partition("?")[2]
    assert secret
    for text in (str(denied.value), repr(store), store.uri("x")):
        assert secret not in text
        assert "Signature" not in text


def test_tier_is_read_through_a_presigned_list(s3_server: S3Server) -> None:
    bucket = s3_server.upload(TIER)
    names = [
        path.relative_to(TIER).as_posix()
        for path in sorted((TIER / KEY_PREFIX).glob("epochs-*/*/*"))
    ]
    urls = {name: presigned(s3_server, bucket, name) for name in names}
    s3_server.put(bucket, "lists/epochs.json", json.dumps(urls).encode())
    path = presigned(s3_server, bucket, "lists/epochs.json")
    source_options = {**tier_options("epochs"), "path": path}
    assert_same_rows(scan(source_options), expected_table("epochs", "read_committed"))
    assert path.partition("?")[2] not in repr(parse_options(source_options))


@pytest.mark.parametrize("text", ["[1]", '["ftp://x/y"]', '{"a": 3}', "[", "nonsense"])
def test_invalid_list_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(StoreError, match="list"):
        list(open_store(f"presigned+{path.as_uri()}", Secret({})).list_objects(""))


@pytest.mark.parametrize("data", [b"\xff\xfe", b"[" * 100_000, b"http://[x/y"])
def test_undecodable_list_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(data)
    with pytest.raises(StoreError, match="list"):
        open_store(f"presigned+{path.as_uri()}", Secret({})).list_folders("")


@pytest.mark.parametrize("again", ["http://two/x?sig=2", "http://one/x?sig=2"])
def test_same_path_on_two_hosts_is_refused(tmp_path: Path, again: str) -> None:
    store = open_store(listed(tmp_path, f"http://one/x?sig=1\n{again}", "list.txt"), Secret({}))
    if "two" in again:
        with pytest.raises(StoreError, match="several hosts"):
            store.list_folders("")
    else:  # the same object with a new signature
        assert store.list_folders("") == []


def test_object_of_unknown_size_fails_the_listing(s3_server: S3Server, tmp_path: Path) -> None:
    bucket = s3_server.make_bucket()
    s3_server.put(bucket, "x", DATA)
    policy = RetryPolicy(max_attempts=2, first_pause_seconds=0.001)
    with faulty_proxy(s3_server.endpoint) as proxy:
        url = presigned(s3_server, bucket, "x", proxy.endpoint)
        store = open_store(listed(tmp_path, {"x": url}), Secret({}), retry_policy=policy)
        proxy.faults += [change(Content_Range="bytes 0-0/*")] * 2
        with pytest.raises(StoreUnavailableError, match="the object's size"):
            list(store.list_objects(""))
        assert [info.size for info in store.list_objects("")] == [len(DATA)]
        store.close()
