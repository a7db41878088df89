"""S3 and what speaks like it: ranges by a client of our own (`s3_ranges`), all else by s3fs.

Reads of s3fs go to `get_object` itself: its public ones cannot pin a version, and retry on their
own. With a version, the request says `If-Match` and the answer's ETag is compared as well, for
servers that ignore the condition; the answer must be the very range that was asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kts_source.errors import (
    AccessDeniedError,
    ArchivedObjectError,
    InvalidOptionError,
    StoreError,
    StoreNotFoundError,
)
from kts_source.secret import Secret, scrub
from kts_source.store.client_store import ClientStore
from kts_source.store.http_answer import require_range
from kts_source.store.object_store import ObjectInfo, check_version, is_behind
from kts_source.store.range_reader import EXPIRED_CODES, RangeError
from kts_source.store.retry import DEFAULT_RETRY_POLICY, RetryPolicy, TransientError
from kts_source.store.s3_range_settings import range_settings
from kts_source.store.s3_ranges import S3Reader
from kts_source.store.storage_options import s3_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from kts_source.store.object_store import Data

T = TypeVar("T")

# Error codes that may pass although their HTTP status does not say so.
_TRANSIENT_CODES = frozenset(
    {
        "ConditionalRequestConflict",
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


class S3Store(ClientStore):
    """Objects of `s3://bucket[/prefix]`. The version of an object is its ETag as listed.

    Raises:
        InvalidOptionError: The URL names no bucket.
    """

    pinning = "conditional reads (If-Match), and the ETag of every answer"
    lists_in_pages = True

    def __init__(
        self,
        url: str,
        storage: Secret[Mapping[str, str]],
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
    ) -> None:
        self._bucket, _, prefix = url.partition("://")[2].partition("/")
        if not self._bucket:
            raise InvalidOptionError(
                f"{url} names no bucket; write s3://bucket or s3://bucket/prefix"
            )
        prefix = prefix.rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        super().__init__(url, storage, retry_policy)
        self._check_key(prefix)
        given = Secret(s3_arguments(storage.reveal(), retry_policy))
        self._has_chain = given.reveal().get("key") is None and not given.reveal()["anon"]
        self._ranges = S3Reader(
            f"the bucket {self._bucket}",
            "s3fs",
            lambda: range_settings(self._bucket, given.reveal()),
            retry_policy,
            self._tally,
        )

    @property
    def remarks(self) -> tuple[str, ...]:  # type: ignore[override]  # a constant elsewhere
        """See `ObjectStore.remarks`."""
        return self._ranges.remarks

    def uri(self, key: str) -> str:
        """See `ObjectStore.uri`."""
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def close(self) -> None:
        """See `ObjectStore.close`."""
        self._ranges.close()
        self._client.close(_disconnect)

    # -- listing

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        cut = len(self._prefix)
        folders = {
            self._listed_key(entry["Prefix"], prefix)
            for page in self._pages(prefix, Delimiter="/")
            for entry in page.get("CommonPrefixes", ())
        }
        return sorted(folder[cut:] for folder in folders)

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`. An object that two neighboring pages list comes once."""
        cut = len(self._prefix)
        start = {} if after is None else {"StartAfter": self._prefix + after}
        earlier: set[str] = set()
        for page in self._pages(prefix, **start):
            listed: set[str] = set()
            for entry in page.get("Contents", ()):
                key = self._listed_key(entry["Key"], prefix)[cut:]
                is_new = key not in earlier and key not in listed
                listed.add(key)
                if is_new and not key.endswith("/") and is_behind(key, after):
                    yield _info(key, entry, size=entry["Size"])
            earlier = listed

    def _listed_key(self, key: str, prefix: str) -> str:
        if not key.startswith(self._prefix + prefix):
            raise StoreError(
                f"the listing has {key!r}, which does not begin with the prefix asked for",
                uri=self.uri(prefix),
            )
        return key

    def _pages(self, prefix: str, **arguments: str) -> Iterator[dict[str, Any]]:
        self._check_key(prefix)
        arguments["Prefix"] = self._prefix + prefix

        def page() -> dict[str, Any]:
            answer = self._answer("list_objects_v2", arguments, listing=True)
            # An error document with status 200 would read as an empty listing.
            if "IsTruncated" not in answer:
                raise TransientError("the answer is not a listing")
            return answer

        tokens: set[str] = set()
        while True:
            answer = self._request(page, prefix, listing=True)
            yield answer
            if not answer["IsTruncated"]:
                return
            token = answer.get("NextContinuationToken")
            if not token:
                raise StoreError("the listing has no token for the next page", uri=self.uri(prefix))
            if token in tokens:
                raise StoreError(
                    "the listing returned a continuation token twice and would never end",
                    uri=self.uri(prefix),
                )
            tokens.add(token)
            arguments["ContinuationToken"] = token

    # -- attempts

    def _connect(self) -> Any:  # noqa: ANN401  # s3fs ships no types
        from kts_source.store.s3_client import connect

        return connect(s3_arguments(self._storage.reveal(), self._retry_policy))

    def _look_up(self, key: str) -> ObjectInfo:
        answer = self._answer("head_object", {"Key": self._prefix + key})
        return _info(key, answer, size=answer["ContentLength"])

    def _answer(
        self, method: str, arguments: Mapping[str, str], *, listing: bool = False
    ) -> dict[str, Any]:
        return self._by_s3fs(
            lambda filesystem: filesystem._call_s3(method, Bucket=self._bucket, **arguments),  # noqa: SLF001  # its public methods retry on their own
            listing=listing,
        )

    def _by_s3fs(
        self,
        call: Callable[[Any], Coroutine[Any, Any, T]],
        *,
        hedge: bool = False,
        listing: bool = False,
    ) -> T:
        """As `AsyncClient.run`; once more with what the AWS chain gives then, where its credentials
        do not hold any longer.
        """
        filesystem = self._client.filesystem
        try:
            return self._client.run(call, hedge=hedge)
        except Exception as error:
            if not self._has_chain or not _is_expiry(error):
                raise
        self._client.drop(filesystem)
        self._tally.add(requests=not listing, list_requests=listing)
        return self._client.run(call, hedge=hedge)

    def _read(self, key: str, start: int, stop: int, version: str | None) -> Data:
        return self._ranges.read_or(
            lambda: self._read_by_s3fs(key, start, stop, version),
            self._prefix + key,
            start,
            stop,
            version,
            uri=self.uri(key),
        )

    def _read_by_s3fs(self, key: str, start: int, stop: int, version: str | None) -> bytes:
        uri = self.uri(key)
        arguments = {"Key": self._prefix + key, "Range": f"bytes={start}-{stop - 1}"}
        if version is not None:
            arguments["IfMatch"] = version

        async def read(filesystem: Any) -> bytes:  # noqa: ANN401
            answer = await filesystem._call_s3("get_object", Bucket=self._bucket, **arguments)  # noqa: SLF001  # the only way to a conditional read
            try:
                etag = answer.get("ETag")
                if etag is None and version is not None:
                    raise TransientError("the answer has no ETag")
                check_version(etag, version, uri=uri)
                status = answer["ResponseMetadata"]["HTTPStatusCode"]
                content_range, length = answer.get("ContentRange"), answer.get("ContentLength")
                require_range(status, content_range, length, start, stop, uri=uri)
                return bytes(await answer["Body"].read())
            finally:
                answer["Body"].close()

        return self._by_s3fs(read, hedge=True)

    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        from botocore import exceptions

        if isinstance(error, RangeError):
            text = scrub(error.text, self._secret_values.reveal())
            return self._named(error.status or 503, error.code, text, key, listing=listing)
        origin = _origin(error)
        text = self._text(origin)
        if isinstance(origin, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            raise AccessDeniedError(
                "no AWS credentials found: give s3.access-key-id and s3.secret-access-key, "
                "or s3.anonymous=true",
                uri=self.uri(key),
            ) from None
        if not isinstance(origin, exceptions.ClientError):
            return 503 if _is_transient(origin) else 0, text
        status = int(origin.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(origin.response.get("Error", {}).get("Code", ""))
        return self._named(status, code, text, key, listing=listing)

    def _named(
        self, status: int, code: str, text: str, key: str, *, listing: bool
    ) -> tuple[int, str]:
        """As `_failure`, for what S3 answered."""
        uri = self.uri(key)
        if code == "NoSuchBucket" or (status == 404 and listing):
            raise StoreNotFoundError(f"the bucket {self._bucket} does not exist", uri=uri) from None
        if code == "InvalidObjectState":
            raise ArchivedObjectError(
                f"the object is archived and must be restored first: {text}", uri=uri
            ) from None
        if status in (404, 412, 416):
            return status, text
        # A missing key is denied, too, where the caller may not list the bucket.
        if code in _DENIED_CODES:
            return 403, text
        return 503 if code in _TRANSIENT_CODES else status, text


def _origin(error: Exception) -> Exception:
    """The error of botocore behind one of s3fs."""
    from botocore.exceptions import ClientError

    return error.__cause__ if isinstance(error.__cause__, ClientError) else error


def _is_expiry(error: Exception) -> bool:
    """Whether S3 refused credentials that do not hold any longer. An answer to HEAD has no word."""
    answer = getattr(_origin(error), "response", None)  # `None`, too, where there was no answer
    code = (answer or {}).get("Error", {}).get("Code")
    return code in EXPIRED_CODES or code == "400"


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
        | ResponseParserError
        | aiohttp.ClientError
        | EOFError
        | OSError,
    )


def _info(key: str, entry: dict[str, Any], *, size: int) -> ObjectInfo:
    modified = entry.get("LastModified")
    return ObjectInfo(
        key=key,
        size=size,
        version=entry.get("ETag"),
        last_modified_ms=None if modified is None else round(modified.timestamp() * 1000),
        storage_class=entry.get("StorageClass"),
    )


async def _disconnect(filesystem: Any) -> None:  # noqa: ANN401
    creator = getattr(filesystem, "_s3creator", None)
    if creator is not None:
        await creator.__aexit__(None, None, None)
