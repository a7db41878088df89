from __future__ import annotations

import json
import pickle
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import (
    AccessDeniedError,
    ArchivedObjectError,
    InvalidKeyError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StoreUnavailableError,
    TruncatedObjectError,
)
from kts_source.secret import Secret
from kts_source.store.open_store import open_store
from kts_source.store.request_policy import RetryPolicy
from kts_source.store.s3_store import S3Store
from kts_source.store.storage_options import storage_options_from
from tests.faulty_proxy import (
    Answer,
    Fault,
    FaultyProxy,
    IgnoreRange,
    Stall,
    change,
    cut,
    drop,
    faulty_proxy,
    hang,
    status,
)
from tests.kts_source.store.object_store_suite import DATA, ObjectStoreSuite
from tests.kts_source.store.one_object import BY_S3FS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kts_source.store.object_store import ObjectStore
    from tests.s3 import S3Server

pytestmark = pytest.mark.s3

QUICK = RetryPolicy(
    max_attempts=4,
    first_pause_seconds=0.001,
    max_pause_seconds=0.01,
    give_up_after_seconds=30,
    request_deadline_seconds=20,
)


@dataclass
class Bucket:
    server: S3Server
    name: str
    prefix: str = ""
    path: str = ""
    storage: Secret[Mapping[str, str]] = field(default_factory=lambda: Secret({}))

    def __post_init__(self) -> None:
        self.path = self.path or f"s3://{self.name}/{self.prefix}"
        self.storage = storage_options_from(self.server.options)

    def put(self, key: str, data: bytes) -> None:
        self.server.put(self.name, self.prefix + key, data)

    def delete(self, key: str) -> None:
        client = self.server.client()
        client.delete_object(Bucket=self.name, Key=self.prefix + key)


class TestS3Store(ObjectStoreSuite):
    @pytest.fixture(scope="class", params=["", "deep/prefix/"])
    @classmethod
    def make_root(cls, s3_server: S3Server, request: pytest.FixtureRequest) -> Callable[[], Bucket]:
        def make() -> Bucket:
            bucket = Bucket(s3_server, s3_server.make_bucket(), request.param)
            if bucket.prefix:
                bucket.server.put(bucket.name, "deep/prefix-sibling/x", b"not below the root")
            return bucket

        return make

    @pytest.fixture
    def missing_root(self, s3_server: S3Server) -> Bucket:
        return Bucket(s3_server, "no-such-bucket")


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> Bucket:
    bucket = Bucket(s3_server, s3_server.make_bucket())
    bucket.put("x", DATA)
    return bucket


@pytest.fixture(scope="module")
def one_proxy(s3_server: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(one_proxy: FaultyProxy) -> FaultyProxy:
    one_proxy.faults.clear()
    one_proxy.seen.clear()
    return one_proxy


@pytest.fixture(scope="module", params=[{}, BY_S3FS], ids=["own", "s3fs"])
def one_store(
    bucket: Bucket, one_proxy: FaultyProxy, request: pytest.FixtureRequest
) -> Iterator[ObjectStore]:
    """Opens the bucket through the proxy, once with the package's own client and once with s3fs."""
    options = {
        **bucket.server.options,
        **request.param,
        "s3.endpoint": one_proxy.endpoint,
        "s3.connect-timeout": "5",
        "s3.request-timeout": "10",
    }
    store = open_store(bucket.path, storage_options_from(options), retry_policy=QUICK)
    assert isinstance(store, S3Store)
    assert bool(store._ranges.reason) == bool(request.param)
    yield store
    assert bool(store._ranges.reason) == bool(request.param), "the library changed during the tests"
    store.close()


def is_by_s3fs(store: ObjectStore) -> bool:
    assert isinstance(store, S3Store)
    return store._ranges.reason != ""


@pytest.fixture
def store(one_store: ObjectStore) -> ObjectStore:
    """Returns the store, which reads through the proxy. Each test sets the faults of the proxy."""
    return one_store


# -- retried errors

# aiohttp repeats a request once if its connection is closed without a response. So two closed
# connections make one failed attempt.
DROPS = (drop, drop)

PASSING: dict[str, Fault | tuple[Fault, ...]] = {
    "slow down": status(503, "SlowDown"),
    "unavailable": status(503, "ServiceUnavailable"),
    "internal": status(500, "InternalError"),
    "bad gateway": status(502, "BadGateway"),
    "too many": status(429, "TooManyRequests"),
    "request time-out": status(400, "RequestTimeout"),
    "reset": DROPS,
    "reset within the body": cut(50),
    "reset before the body": cut(0),
    "range ignored": IgnoreRange(),
    "other range": change(Content_Range="bytes 20-119/1280"),
    "shorter range": change(Content_Range="bytes 10-59/1280"),
    "longer range": change(Content_Range="bytes 10-200/1280"),
    "odd range": change(Content_Range="bytes ten"),
    "no range": change(Content_Range=None),
}


@pytest.mark.parametrize("name", PASSING)
def test_transient_errors_are_retried(
    bucket: Bucket, proxy: FaultyProxy, store: ObjectStore, name: str
) -> None:
    version = store.head("x").version
    before = store.counters
    fault = PASSING[name]
    faults = (fault,) if not isinstance(fault, tuple) else fault if is_by_s3fs(store) else fault[:1]
    proxy.faults += faults * 2
    assert store.get_range("x", 10, 110, version=version) == DATA[10:110]
    done = store.counters - before
    assert (done.requests, done.retries, done.bytes) == (3, 2, 100)
    assert len(proxy.seen) == 2 + 2 * len(faults), "only the store may retry"
    assert bucket.name in proxy.seen[0][1]


@pytest.mark.parametrize(
    "faults", [DROPS, [status(503, "SlowDown")], [status(500, "InternalError")]]
)
def test_listings_and_look_ups_are_retried(
    proxy: FaultyProxy, store: ObjectStore, faults: Sequence[Fault]
) -> None:
    before = store.counters
    proxy.faults += faults
    assert [info.key for info in store.list_objects("")] == ["x"]
    proxy.faults += faults
    assert store.head("x").size == 1280
    proxy.faults += faults
    assert store.list_folders("") == []
    done = store.counters - before
    assert (done.retries, done.list_requests, done.requests) == (3, 4, 2)


def test_garbled_listing_is_retried(proxy: FaultyProxy, store: ObjectStore) -> None:
    before = store.counters
    proxy.faults += [cut(30)]
    assert [info.key for info in store.list_objects("")] == ["x"]

    def garble(answer: Answer) -> None:
        answer.body = b"<Listing"

    proxy.faults += [garble]
    assert [info.key for info in store.list_objects("")] == ["x"]
    assert (store.counters - before).retries == 2


def test_error_after_last_attempt_lists_every_attempt(
    proxy: FaultyProxy, store: ObjectStore
) -> None:
    drops, words = (
        (DROPS, ("Connection", "SlowDown", "InternalError", "ayload"))
        if is_by_s3fs(store)
        else (
            DROPS[:1],
            ("RemoteDisconnected", "SlowDown", "InternalError", "ended after 3 of 100"),
        )
    )
    proxy.faults += [*drops, status(503, "SlowDown"), status(500, "InternalError"), cut(3)]
    with pytest.raises(StoreUnavailableError) as caught:
        store.get_range("x", 0, 100)
    error = caught.value
    assert error.retriable
    assert error.uri == store.uri("x")
    assert len(error.attempts) == 4
    for word, line in zip(words, error.attempts, strict=True):
        assert word in line
        assert line in str(error)
    assert error.__suppress_context__
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.attempts) == (type(error), str(error), error.attempts)


@pytest.mark.parametrize("fault", [Stall(), hang(0), hang(5)])
def test_stalled_response_is_retried(bucket: Bucket, proxy: FaultyProxy, fault: Fault) -> None:
    options = {
        **bucket.server.options,
        "s3.endpoint": proxy.endpoint,
        "s3.request-timeout": "1",  # the second answer must come in time on a busy machine
    }
    store = open_store(bucket.path, storage_options_from(options), retry_policy=QUICK)
    proxy.faults += [fault]
    assert store.get_range("x", 0, 10) == DATA[:10]
    assert store.counters.retries == 1
    store.close()


def test_second_request_is_sent_if_response_is_late(bucket: Bucket, proxy: FaultyProxy) -> None:
    options = {**bucket.server.options, "s3.endpoint": proxy.endpoint, "s3.request-timeout": "30"}
    policy = RetryPolicy(max_attempts=1, hedge_after_seconds=0.1)
    store = open_store(bucket.path, storage_options_from(options), retry_policy=policy)
    proxy.faults += [Stall()]
    began = time.monotonic()
    assert store.get_range("x", 5, 10) == DATA[5:10]
    assert time.monotonic() - began < 20
    work = store.counters
    assert (work.hedges, work.requests, work.retries) == (1, 2, 0)
    store.close()


def test_each_request_has_a_deadline(bucket: Bucket, proxy: FaultyProxy) -> None:
    options = {**bucket.server.options, "s3.endpoint": proxy.endpoint, "s3.request-timeout": "30"}
    policy = RetryPolicy(max_attempts=1, request_deadline_seconds=0.3)
    store = open_store(bucket.path, storage_options_from(options), retry_policy=policy)
    proxy.faults += [Stall()]
    began = time.monotonic()
    with pytest.raises(
        StoreUnavailableError, match=r"timeout: no complete response by the deadline 0\.3 s"
    ):
        store.get_range("x", 0, 10)
    assert time.monotonic() - began < 20
    store.close()


def test_unreachable_server_raises_store_unavailable_error(bucket: Bucket) -> None:
    options = {**bucket.server.options, "s3.endpoint": "http://127.0.0.1:9"}
    store = open_store(bucket.path, storage_options_from(options), retry_policy=QUICK)
    with pytest.raises(StoreUnavailableError, match="Connection refused"):
        store.get_range("x", 0, 10)
    assert store.counters.retries == 3
    store.close()


# -- permanent errors


FINAL: dict[str, tuple[Callable[[Answer], object], type[StoreError], str]] = {
    "denied": (status(403, "AccessDenied"), AccessDeniedError, "AccessDenied"),
    "signature": (status(403, "SignatureDoesNotMatch"), AccessDeniedError, "Signature"),
    "expired": (status(400, "ExpiredToken"), AccessDeniedError, "ExpiredToken"),
    "archived": (status(403, "InvalidObjectState"), ArchivedObjectError, "archived"),
    "missing": (status(404, "NoSuchKey"), ObjectNotFoundError, "no such object"),
    "unknown key": (status(404, "XAdminUserNotFound"), AccessDeniedError, "XAdminUserNotFound"),
    "bad request": (status(400, "InvalidRequest"), StoreError, "InvalidRequest"),
    "not implemented": (status(501, "NotImplemented"), StoreError, "NotImplemented"),
    "changed": (status(412, "PreconditionFailed"), ObjectChangedError, "was planned"),
    "condition ignored": (change(ETag='"other"'), ObjectChangedError, 'is "other" now'),
    "no ETag": (change(ETag=None), StoreError, "no ETag.* Copy the object through the gateway"),
    "beyond": (status(416, "InvalidRange"), TruncatedObjectError, "ends before"),
    "shorter object": (
        change(Content_Range="bytes 10-59/60"),
        TruncatedObjectError,
        "has 60 bytes",
    ),
}


@pytest.mark.parametrize("name", FINAL)
def test_permanent_errors_are_not_retried(
    proxy: FaultyProxy, store: ObjectStore, name: str
) -> None:
    fault, kind, text = FINAL[name]
    version = store.head("x").version
    before = store.counters
    proxy.faults += [fault]
    with pytest.raises(kind, match=text) as caught:
        store.get_range("x", 10, 110, version=version)
    assert type(caught.value) is kind
    assert not caught.value.retriable
    assert caught.value.uri == store.uri("x")
    assert (store.counters - before).retries == 0
    assert len(proxy.seen) == 2


def test_missing_credentials_error_names_the_options(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp("aws") / "none"))
    options = {"s3.endpoint": bucket.server.endpoint, "s3.region": "us-east-1"}
    store = open_store(bucket.path, storage_options_from(options), retry_policy=QUICK)
    with pytest.raises(AccessDeniedError, match=r"set the options s3\.access-key-id"):
        store.get_range("x", 0, 10)
    store.close()


def test_aws_chain_is_the_default(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-the-environment")
    options = {"s3.endpoint": bucket.server.endpoint, "s3.region": "us-east-1"}
    store = open_store(bucket.path, storage_options_from(options), retry_policy=QUICK)
    assert store.get_range("x", 0, 10) == DATA[:10]
    store.close()


# -- requests


def authorizations(
    bucket: Bucket, options: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, str]]:
    """Looks up and reads an object. Returns the headers of each request."""
    sent: list[dict[str, str]] = []
    with faulty_proxy(bucket.server.endpoint) as proxy:
        import http.server

        original = http.server.BaseHTTPRequestHandler.parse_request

        def parse(handler: http.server.BaseHTTPRequestHandler) -> bool:
            parsed = original(handler)
            sent.append({name.lower(): value for name, value in handler.headers.items()})
            return parsed

        monkeypatch.setattr(http.server.BaseHTTPRequestHandler, "parse_request", parse)
        storage = storage_options_from({**options, "s3.endpoint": proxy.endpoint})
        store = open_store(bucket.path, storage, retry_policy=QUICK)
        assert store.get_range("x", 0, 10, version=store.head("x").version) == DATA[:10]
        store.close()
    return sent


def test_read_sends_one_conditional_ranged_request(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, read = authorizations(bucket, bucket.server.options, monkeypatch)
    assert read["range"] == "bytes=0-9"
    assert read["if-match"].strip('"')
    assert "test-access-key/" in read["authorization"]
    assert "/us-east-1/s3/" in read["authorization"]


def test_session_token_is_sent(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**bucket.server.options, "s3.session-token": "the-token", "s3.region": "eu-west-3"}
    _, read = authorizations(bucket, options, monkeypatch)
    assert read["x-amz-security-token"] == "the-token"
    assert "/eu-west-3/s3/" in read["authorization"]


def test_anonymous_requests_are_not_signed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    client = bucket.server.client()
    client.put_object_acl(Bucket=bucket.name, Key="x", ACL="public-read")
    _, read = authorizations(bucket, {"s3.anonymous": "true"}, monkeypatch)
    assert "authorization" not in read


def test_storage_options_are_passed_to_the_file_system(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"key": "wins", "secret": "wins", "client_kwargs": {"region_name": "ap-south-1"}}
    options = {**bucket.server.options, "storageOptions": json.dumps(extra)}
    _, read = authorizations(bucket, options, monkeypatch)
    assert "Credential=wins/" in read["authorization"]
    assert "/ap-south-1/" in read["authorization"]


# -- listings


@pytest.fixture
def fresh(s3_server: S3Server) -> Bucket:
    bucket = Bucket(s3_server, s3_server.make_bucket())
    bucket.put("x", DATA)
    return bucket


def test_long_listing_is_read_page_by_page(fresh: Bucket) -> None:
    for number in range(5):
        fresh.put(f"f{number}/y", b"")
    options = {
        **fresh.server.options,
        "storageOptions": '{"s3_additional_kwargs": {"MaxKeys": 2}}',
    }
    store = open_store(fresh.path, storage_options_from(options))
    assert [info.key for info in store.list_objects("")] == [*(f"f{n}/y" for n in range(5)), "x"]
    assert store.counters.list_requests == 3
    assert store.list_folders("") == [f"f{n}/" for n in range(5)]
    assert store.counters.list_requests == 6
    store.close()


@pytest.mark.parametrize("status_code", [503, 403])
def test_failed_listing_page_is_retried_or_raises_error(fresh: Bucket, status_code: int) -> None:
    for number in range(5):
        fresh.put(f"f{number}/y", b"")
    with faulty_proxy(fresh.server.endpoint) as proxy:
        options = {
            **fresh.server.options,
            "s3.endpoint": proxy.endpoint,
            "storageOptions": '{"s3_additional_kwargs": {"MaxKeys": 2}}',
        }
        store = open_store(fresh.path, storage_options_from(options), retry_policy=QUICK)
        proxy.faults += [lambda _answer: None, status(status_code, "x")]
        if status_code == 503:
            assert len(list(store.list_objects(""))) == 6
            assert store.counters.retries == 1
        else:
            with pytest.raises(AccessDeniedError):
                list(store.list_objects(""))
        store.close()


def test_listing_with_repeated_token_raises_error(proxy: FaultyProxy, store: ObjectStore) -> None:
    def endless(answer: Answer) -> None:
        answer.status = 200
        answer.body = (
            b"<ListBucketResult><IsTruncated>true</IsTruncated>"
            b"<NextContinuationToken>again</NextContinuationToken></ListBucketResult>"
        )

    proxy.faults += [endless, endless, endless]
    with pytest.raises(StoreError, match="continuation token twice"):
        list(store.list_objects(""))
    assert len(proxy.seen) == 2


def test_folder_markers_are_not_listed(fresh: Bucket) -> None:
    fresh.put("folder/", b"")
    fresh.put("folder/y", b"y")
    store = open_store(fresh.path, fresh.storage)
    assert [info.key for info in store.list_objects("")] == ["folder/y", "x"]
    assert store.list_folders("") == ["folder/"]
    store.close()


def test_storage_class_and_time_are_listed(fresh: Bucket) -> None:
    client = fresh.server.client()
    client.put_object(Bucket=fresh.name, Key="cold", Body=b"1", StorageClass="GLACIER")
    store = open_store(fresh.path, fresh.storage)
    listed = {info.key: info for info in store.list_objects("")}
    assert listed["cold"].storage_class == "GLACIER"
    assert abs((listed["x"].last_modified_ms or 0) - time.time() * 1000) < 3_600_000
    store.close()


def test_leading_slash_is_part_of_an_s3_key(fresh: Bucket) -> None:
    fresh.put("/rooted/y", b"y")
    store = open_store(fresh.path, fresh.storage)
    assert store.list_folders("/") == ["/rooted/"]
    assert store.get_range("/rooted/y", 0, 1) == b"y"
    store.close()


# -- opening


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3"])
def test_schemes_of_hadoop_open_an_s3_store(bucket: Bucket, scheme: str) -> None:
    store = open_store(f"{scheme}://{bucket.name}", bucket.storage)
    assert store.get_range("x", 0, 1) == b"\0"
    assert store.uri("x") == f"s3://{bucket.name}/x"
    store.close()


def test_invalid_paths_are_refused() -> None:
    nothing: Secret[Mapping[str, str]] = Secret({})
    with pytest.raises(InvalidOptionError, match="bucket"):
        open_store("s3://", nothing)
    with pytest.raises(InvalidOptionError, match="bucket"):
        open_store("s3:///key", nothing)
    with pytest.raises(InvalidOptionError, match="empty"):
        open_store(" ", nothing)
    with pytest.raises(InvalidKeyError):
        open_store("s3://bucket/../other", nothing)
    with pytest.raises(InvalidOptionError, match="credentials") as caught:
        open_store("s3://AKIAKEY:very-secret@bucket/x", nothing)
    assert "AKIA" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_secrets_echoed_by_the_server_are_masked(
    bucket: Bucket, proxy: FaultyProxy, store: ObjectStore
) -> None:
    def echo(number: int) -> Callable[[Answer], object]:
        def fault(answer: Answer) -> None:
            answer.error(number, "Odd")
            message = f"bad {bucket.server.secret_key} http://u:p@host/x?X-Amz-Signature=abc"
            answer.body = answer.body.replace(b"by the proxy", message.encode())

        return fault

    for number, kind in ((400, StoreError), (403, AccessDeniedError), (503, StoreUnavailableError)):
        proxy.faults += [echo(number)] * (4 if number == 503 else 1)
        with pytest.raises(kind) as caught:
            store.get_range("x", 0, 1)
        text = str(caught.value) + repr(caught.value) + repr(pickle.dumps(caught.value))
        assert "bad ***" in text
        for secret in (bucket.server.secret_key, "u:p@", "abc"):
            assert secret not in text
