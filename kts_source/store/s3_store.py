"""S3 and what speaks like it, through s3fs.

Reads go to `get_object` itself: s3fs's public reads cannot pin a version, and retry on their own.
With a version, the request says `If-Match` and the answer's ETag is compared as well, for servers
that ignore the condition; the answer must be the very range that was asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kts_source.errors import (
    AccessDeniedError,
    ArchivedObjectError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    StoreError,
    StoreNotFoundError,
    TieredKafkaError,
    TruncatedObjectError,
)
from kts_source.secret import Secret, scrub
from kts_source.store.async_client import AsyncClient
from kts_source.store.cancel import CancelledFetchError
from kts_source.store.counters import StoreCounters, Tally
from kts_source.store.http_answer import require_length, require_range
from kts_source.store.object_store import ObjectInfo, check_key, check_range
from kts_source.store.retry import DEFAULT_RETRY_POLICY, RetryPolicy, TransientError
from kts_source.store.storage_options import s3_arguments, secret_values

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

# Error codes that may pass although their HTTP status does not say so.
_TRANSIENT_CODES = frozenset(
    {
        "InternalError",
        "OperationAborted",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
    }
)
_DENIED_CODES = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)


class S3Store:
    """Objects of a bucket below a prefix. The version of an object is its ETag as listed."""

    pinning = "conditional reads (If-Match), and the ETag of every answer"
    is_near = False

    def __init__(
        self,
        bucket: str,
        prefix: str,
        storage: Secret[Mapping[str, str]],
        *,
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._storage = storage
        self._retry_policy = retry_policy
        self._tally = Tally()
        self._hidden = Secret(secret_values(storage.reveal()))
        self._client = AsyncClient(
            self._connect,
            deadline_seconds=retry_policy.request_deadline_seconds,
            prepare=lambda filesystem: filesystem.set_session(),
        )

    @classmethod
    def from_url(
        cls,
        url: str,
        storage: Secret[Mapping[str, str]],
        *,
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
    ) -> S3Store:
        """The store of `s3://bucket[/prefix]` (also `s3a` and `s3n`).

        Raises:
            InvalidOptionError: The URL names no bucket.
        """
        bucket, _, prefix = url.partition("://")[2].partition("/")
        if not bucket:
            raise InvalidOptionError(
                f"{url} names no bucket; write s3://bucket or s3://bucket/prefix"
            )
        prefix = prefix.rstrip("/")
        check_key(prefix, f"s3://{bucket}/", absolute=True)
        prefix = f"{prefix}/" if prefix else ""
        return cls(bucket, prefix, storage, retry_policy=retry_policy)

    def __repr__(self) -> str:
        return f"S3Store({self.uri('')!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self._bucket, self._prefix, self._storage, self._retry_policy)

    @property
    def counters(self) -> StoreCounters:
        """Work done so far; each page of a listing is a request of its own."""
        return self._tally.snapshot

    def uri(self, key: str) -> str:
        """The object's `s3://` URL."""
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def close(self) -> None:
        """Closes the connections of this process."""
        self._client.close(_close_session)

    # -- listing

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        cut = len(self._prefix)
        return sorted(
            entry["Prefix"][cut:]
            for page in self._pages(prefix, Delimiter="/")
            for entry in page.get("CommonPrefixes", ())
        )

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`."""
        cut = len(self._prefix)
        start = {} if after is None else {"StartAfter": self._prefix + after}
        for page in self._pages(prefix, **start):
            for entry in page.get("Contents", ()):
                if not entry["Key"].endswith("/"):
                    yield _info(entry["Key"][cut:], entry, size=entry["Size"])

    def _pages(self, prefix: str, **extra: str) -> Iterator[dict[str, Any]]:
        check_key(prefix, self.uri(""), absolute=True)
        arguments = {"Prefix": self._prefix + prefix, **extra}
        token = None
        while True:
            page = self._request(
                "list_objects_v2", prefix, _require_listing, arguments, listing=True
            )
            yield page
            if not page.get("IsTruncated"):
                return
            following = page.get("NextContinuationToken")
            if not following or following == token:
                raise StoreError(
                    "the listing does not go on where it says so", uri=self.uri(prefix)
                )
            token = following
            arguments = {**arguments, "ContinuationToken": token}

    # -- reading

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        check_key(key, self.uri(""), absolute=True)
        answer = self._request("head_object", key, lambda _response: _no_body(), self._named(key))
        return _info(key, answer, size=answer["ContentLength"])

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        """See `ObjectStore.get_range`."""
        check_range(start, stop)
        check_key(key, self.uri(""), absolute=True)
        if start == stop:
            return b""

        def read(response: dict[str, Any]) -> Awaitable[bytes]:
            self._require_version(response, key, version)
            length = response.get("ContentLength")
            require_range(response.get("ContentRange"), length, start, stop, uri=self.uri(key))
            return _body(response, stop - start)

        arguments = {"Range": f"bytes={start}-{stop - 1}", **self._named(key, version)}
        return self._received(self._request("get_object", key, read, arguments))

    def get_object(self, key: str, *, max_bytes: int, version: str | None = None) -> bytes:
        """See `ObjectStore.get_object`."""
        check_key(key, self.uri(""), absolute=True)

        def read(response: dict[str, Any]) -> Awaitable[bytes]:
            self._require_version(response, key, version)
            size = require_length(response.get("ContentLength"))
            if size > max_bytes:
                raise ObjectTooLargeError(
                    f"the object has {size} bytes, more than the {max_bytes} allowed here",
                    uri=self.uri(key),
                )
            return _body(response, size)

        return self._received(self._request("get_object", key, read, self._named(key, version)))

    def _named(self, key: str, version: str | None = None) -> dict[str, str]:
        arguments = {"Key": self._prefix + key}
        if version is not None:
            arguments["IfMatch"] = version
        return arguments

    def _received(self, data: bytes) -> bytes:
        self._tally.add(received=len(data))
        return data

    def _require_version(self, response: dict[str, Any], key: str, version: str | None) -> None:
        if version is not None and (etag := response.get("ETag")) != version:
            if etag is None:
                raise TransientError("the answer has no ETag")
            raise self._changed(key, version, etag)

    def _changed(self, key: str, version: str, now: str | None = None) -> ObjectChangedError:
        found = f", now {now}" if now else ""
        return ObjectChangedError(
            f"the object changed: version {version} was planned{found}", uri=self.uri(key)
        )

    # -- requests

    def _connect(self) -> Any:  # noqa: ANN401  # s3fs ships no types
        from kts_source.store.s3_client import connect

        return connect(
            s3_arguments(
                self._storage.reveal(),
                connect_timeout_seconds=self._retry_policy.connect_timeout_seconds,
                read_timeout_seconds=self._retry_policy.read_timeout_seconds,
            )
        )

    def _request(
        self,
        method: str,
        key: str,
        read: Callable[[dict[str, Any]], Awaitable[Any]],
        arguments: dict[str, str],
        *,
        listing: bool = False,
    ) -> Any:  # noqa: ANN401
        async def call(filesystem: Any) -> Any:  # noqa: ANN401
            response = await filesystem._call_s3(method, Bucket=self._bucket, **arguments)  # noqa: SLF001  # the only way to a conditional read
            try:
                body = await read(response)
            except BaseException:
                if "Body" in response:
                    response["Body"].close()
                raise
            return response if body is None else body

        hedge = self._retry_policy.hedge_after_seconds if "Range" in arguments else None

        def attempt() -> Any:  # noqa: ANN401
            self._tally.add(requests=not listing, list_requests=listing)
            try:
                return self._client.run(
                    call,
                    hedge_after_seconds=hedge,
                    on_hedge=lambda: self._tally.add(requests=1, hedges=1),
                )
            except (TransientError, TieredKafkaError, CancelledFetchError):
                raise
            except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
                raise self._translated(error, key, arguments) from None

        return self._retry_policy.run(attempt, uri=self.uri(key), tally=self._tally)

    def _translated(
        self, error: Exception, key: str, arguments: dict[str, str]
    ) -> StoreError | TransientError:
        from botocore import exceptions

        origin = error.__cause__ if isinstance(error.__cause__, exceptions.ClientError) else error
        text = scrub(f"{type(origin).__name__}: {origin}", self._hidden.reveal())
        if isinstance(origin, exceptions.ClientError):
            return self._refused(origin.response, text, key, arguments)
        if isinstance(origin, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            return AccessDeniedError(
                "no AWS credentials found: give s3.access-key-id and s3.secret-access-key, "
                "or s3.anonymous=true",
                uri=self.uri(key),
            )
        if _is_transient(origin):
            return TransientError(text)
        return StoreError(f"the S3 client failed: {text}", uri=self.uri(key))

    def _refused(
        self, response: dict[str, Any], text: str, key: str, arguments: dict[str, str]
    ) -> StoreError | TransientError:
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(response.get("Error", {}).get("Code", ""))
        uri = self.uri(key)
        if code == "NoSuchBucket" or (status == 404 and "Key" not in arguments):
            return StoreNotFoundError(f"the bucket {self._bucket} does not exist", uri=uri)
        match status:
            case 404:
                return ObjectNotFoundError("no such object", uri=uri)
            case 412:
                return self._changed(key, arguments.get("IfMatch", "?"))
            case 416:
                wanted = arguments.get("Range", "")
                return TruncatedObjectError(f"the object ends before {wanted}", uri=uri)
        if code == "InvalidObjectState":
            return ArchivedObjectError(
                f"the object is archived and must be restored first: {text}", uri=uri
            )
        if status in (401, 403) or code in _DENIED_CODES:
            # A missing key looks the same where the caller may not list the bucket.
            return AccessDeniedError(f"access denied: {text}", uri=uri)
        if status == 429 or (status >= 500 and status != 501) or code in _TRANSIENT_CODES:
            return TransientError(text)
        return StoreError(f"the store refuses: {text}", uri=uri)


def _reopened(
    bucket: str, prefix: str, storage: Secret[Mapping[str, str]], retry_policy: RetryPolicy
) -> S3Store:
    return S3Store(bucket, prefix, storage, retry_policy=retry_policy)


def _is_transient(error: BaseException) -> bool:
    import aiohttp
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    if isinstance(error, exceptions.SSLError):
        return False  # a certificate does not become valid by asking again
    return isinstance(
        error,
        exceptions.HTTPClientError
        | exceptions.ConnectionError
        | exceptions.IncompleteReadError
        | exceptions.ResponseStreamingError
        | ResponseParserError
        | aiohttp.ClientError
        | TimeoutError
        | ConnectionError
        | EOFError
        | OSError,
    )


async def _no_body() -> None:
    return None


async def _require_listing(response: dict[str, Any]) -> None:
    # An error document with status 200 has no member of a listing, and would read as an empty one.
    if "IsTruncated" not in response:
        raise TransientError("the answer is no listing")


async def _body(response: dict[str, Any], size: int) -> bytes:
    body = response["Body"]
    data = bytes(await body.read())
    body.close()
    if len(data) != size:
        raise TransientError(f"the answer broke off after {len(data)} of {size} bytes")
    return data


def _info(key: str, entry: dict[str, Any], *, size: int) -> ObjectInfo:
    modified = entry.get("LastModified")
    return ObjectInfo(
        key=key,
        size=size,
        version=entry.get("ETag"),
        last_modified_ms=None if modified is None else round(modified.timestamp() * 1000),
        storage_class=entry.get("StorageClass"),
    )


def _close_session(filesystem: Any) -> Any:  # noqa: ANN401
    creator = getattr(filesystem, "_s3creator", None)
    return None if creator is None else creator.__aexit__(None, None, None)
