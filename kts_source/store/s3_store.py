"""S3 and compatible stores. `s3_ranges` reads byte ranges; s3fs does everything else.

If `s3_ranges` does not support the options, s3fs reads ranges, too. The store then calls
`get_object` directly, because the public methods of s3fs retry automatically and cannot require a
version. A request for a version has the header `If-Match`. Some servers ignore this header, so the
ETag of the response is compared, too. The response must have exactly the requested range.
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kts_source.errors import (
    AccessDeniedError,
    ArchivedObjectError,
    InvalidOptionError,
    StoreError,
    StoreNotFoundError,
)
from kts_source.secret import Secret
from kts_source.store.client_store import ClientStore
from kts_source.store.http_exchange import require_range
from kts_source.store.object_store import ObjectInfo, check_version, sorts_after
from kts_source.store.range_reader import EXPIRED_CODES, Range, RangeError
from kts_source.store.request_policy import DEFAULT_RETRY_POLICY, RetryPolicy, TransientError
from kts_source.store.s3_ranges import S3Reader, hide_tokens
from kts_source.store.storage_options import expiry_advice, s3_arguments
from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

    from kts_source.store.object_store import Data

T = TypeVar("T")

log = logging.getLogger(__name__)

# Error codes after which a retry may succeed, although their HTTP status is not retriable.
_TRANSIENT_CODES: Final = frozenset(
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
_LOST_CODES: Final = frozenset({"", "404", "NotFound", "NoSuchKey", "NoSuchVersion"})
"""Error codes that mean, with status 404, that the object does not exist. A response to HEAD has no
code.
"""
_DENIED_CODES: Final = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    }
)
# Errors of botocore and its plugins if the credentials cannot be determined.
_LOGIN_ERRORS: Final = frozenset(
    {
        "ConfigNotFound",
        "ConfigParseError",
        "CredentialRetrievalError",
        "InvalidConfigError",
        "LoginError",
        "ProfileNotFound",
        "RefreshWithMFAUnsupportedError",
        "SSOError",
        "TokenRetrievalError",
        "UnknownCredentialError",
    }
)
_EXPIRED_CODES: Final = frozenset({"ExpiredToken", "TokenRefreshRequired"})


class S3Store(ClientStore):
    """Objects of `s3://bucket[/prefix]`. The version of an object is the ETag in the listing.

    Raises:
        InvalidOptionError: The URL names no bucket.
    """

    pinning = "conditional reads (If-Match), and the ETag of every response"
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
        arguments = s3_arguments(storage.reveal(), retry_policy)
        self._has_chain = arguments.get("key") is None and not arguments["anon"]
        self._ranges = S3Reader(self._bucket, Secret(arguments), retry_policy, self._tally)

    @property
    def remarks(self) -> tuple[str, ...]:  # type: ignore[override]  # a constant elsewhere
        """See `ObjectStore.remarks`."""
        return self._ranges.remarks

    def uri(self, key: str) -> str:
        """See `ObjectStore.uri`."""
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def close(self) -> None:
        """See `ObjectStore.close`."""
        self._client.close(_disconnect)

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
        """See `ObjectStore.list_objects`. If an object appears on two consecutive pages, it is
        returned once.
        """
        cut = len(self._prefix)
        start = {} if after is None else {"StartAfter": self._prefix + after}
        last_page: set[str] = set()
        for page in self._pages(prefix, **start):
            this_page: set[str] = set()
            for entry in page.get("Contents", ()):
                key = self._listed_key(entry["Key"], prefix)[cut:]
                is_new = key not in last_page and key not in this_page
                this_page.add(key)
                if is_new and not key.endswith("/") and sorts_after(key, after):
                    yield _info(key, entry, size=entry["Size"])
            last_page = this_page

    def _listed_key(self, key: str, prefix: str) -> str:
        if not key.startswith(self._prefix + prefix):
            raise StoreError(
                f"the listing has {key!r}, which does not begin with the requested prefix",
                uri=self.uri(prefix),
            )
        return key

    def _pages(self, prefix: str, **arguments: str) -> Iterator[dict[str, Any]]:
        self._check_key(prefix)
        arguments["Prefix"] = self._prefix + prefix

        def request_page() -> dict[str, Any]:
            answer = self._answer("list_objects_v2", arguments, listing=True)
            # An error document with status 200 looks like an empty listing.
            if "IsTruncated" not in answer:
                raise TransientError("the response is not a listing")
            return answer

        tokens: set[str] = set()
        while True:
            answer = self._request(request_page, prefix, listing=True)
            yield answer
            if not answer["IsTruncated"]:
                return
            token = answer.get("NextContinuationToken")
            if not token:
                raise StoreError("the listing has no token for the next page", uri=self.uri(prefix))
            if token in tokens:
                raise StoreError(
                    "the listing returned a continuation token twice, so it would never end",
                    uri=self.uri(prefix),
                )
            tokens.add(token)
            arguments["ContinuationToken"] = token

    def _connect(self) -> Any:  # noqa: ANN401  # s3fs ships no types
        return connect(s3_arguments(self._storage.reveal(), self._retry_policy))

    def _look_up(self, key: str) -> ObjectInfo:
        answer = self._answer("head_object", {"Key": self._prefix + key})
        return _info(key, answer, size=answer["ContentLength"])

    def _answer(
        self, method: str, arguments: Mapping[str, str], *, listing: bool = False
    ) -> dict[str, Any]:
        return self._call_s3fs(
            lambda filesystem: filesystem._call_s3(method, Bucket=self._bucket, **arguments),  # noqa: SLF001  # its public methods retry on their own
            listing=listing,
        )

    def _call_s3fs(
        self,
        call: Callable[[Any], Coroutine[Any, Any, T]],
        *,
        hedge: bool = False,
        listing: bool = False,
    ) -> T:
        """Calls `AsyncClient.run`. If S3 reports that the credentials have expired, renews them and
        repeats the call once.
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
        wanted = Range(self._prefix + key, start, stop, version, self.uri(key))
        return self._ranges.read(wanted, lambda: self._read_by_s3fs(key, start, stop, version))

    def _read_by_s3fs(self, key: str, start: int, stop: int, version: str | None) -> bytes:
        uri = self.uri(key)
        arguments = {"Key": self._prefix + key, "Range": f"bytes={start}-{stop - 1}"}
        if version is not None:
            arguments["IfMatch"] = version

        async def read(filesystem: Any) -> bytes:  # noqa: ANN401
            answer = await filesystem._call_s3("get_object", Bucket=self._bucket, **arguments)  # noqa: SLF001  # the only way to a conditional read
            try:
                check_version(answer.get("ETag"), version, uri=uri)
                status = answer["ResponseMetadata"]["HTTPStatusCode"]
                content_range, length = answer.get("ContentRange"), answer.get("ContentLength")
                require_range(status, content_range, length, start, stop, uri=uri)
                return bytes(await answer["Body"].read())
            finally:
                answer["Body"].close()

        return self._call_s3fs(read, hedge=True)

    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        from botocore import exceptions

        if isinstance(error, RangeError):
            text = self._scrub(error.text)
            return self._status_of_response(
                error.status or 503, error.code, text, key, listing=listing
            )
        origin = _botocore_error(error)
        text = self._text(origin)
        if isinstance(origin, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            raise AccessDeniedError(
                "no AWS credentials found. Set AWS_PROFILE, log in with the AWS CLI, or set the"
                " options s3.access-key-id and s3.secret-access-key. For a public bucket, set"
                " s3.anonymous=true",
                uri=self.uri(key),
            ) from None
        if any(base.__name__ in _LOGIN_ERRORS for base in type(origin).__mro__):
            raise AccessDeniedError(
                f"the login to AWS failed: {text}. Check the profile, or log in again",
                uri=self.uri(key),
            ) from None
        if not isinstance(origin, exceptions.ClientError):
            return 503 if _is_transient(origin) else 0, text
        status = int(origin.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(origin.response.get("Error", {}).get("Code", ""))
        return self._status_of_response(status, code, text, key, listing=listing)

    def _status_of_response(
        self, status: int, code: str, text: str, key: str, *, listing: bool
    ) -> tuple[int, str]:
        """Converts an error response of S3 to the HTTP status and the text that `_failure` returns.
        Raises `StoreNotFoundError` if the bucket does not exist, and `ArchivedObjectError` if the
        object must be restored first.
        """
        uri = self.uri(key)
        is_lost = code in _LOST_CODES
        if code == "NoSuchBucket" or (status == 404 and listing and is_lost):
            raise StoreNotFoundError(f"the bucket {self._bucket} does not exist", uri=uri) from None
        if code == "InvalidObjectState":
            raise ArchivedObjectError(
                f"the object is archived and must be restored first: {text}", uri=uri
            ) from None
        if status in (412, 416) or (status == 404 and is_lost):
            return status, text
        if status == 404:  # some services answer so to an unknown access key
            return 403, text
        # S3 also denies access to a missing key if the user may not list the bucket.
        if code in _EXPIRED_CODES:
            text = text.rstrip(". ")
            return 403, f"{text}. {expiry_advice(self._storage.reveal(), os.environ)}"
        if code in _DENIED_CODES:
            return 403, text
        return 503 if code in _TRANSIENT_CODES else status, text


def _botocore_error(error: Exception) -> Exception:
    """Returns botocore's error that an error of s3fs wraps. Returns other errors unchanged."""
    from botocore.exceptions import ClientError

    return error.__cause__ if isinstance(error.__cause__, ClientError) else error


def _is_expiry(error: Exception) -> bool:
    """Returns whether S3 rejected a request because its credentials have expired. Also returns True
    for status 400 without an error code, because responses to HEAD contain no error code.
    """
    answer = getattr(_botocore_error(error), "response", None)  # also `None` without a response
    code = (answer or {}).get("Error", {}).get("Code")
    return code in EXPIRED_CODES or code == "400"


def _is_transient(error: BaseException) -> bool:
    import aiohttp
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    if isinstance(error, exceptions.SSLError):
        return False  # a retry does not make a certificate valid
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


def connect(arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401  # s3fs ships no types
    """Opens an s3fs file system that does not retry requests. Sends no request.

    A forked Spark worker opens a session before it reads the first byte of a short query. To save
    time, this function builds the session with internals of s3fs and botocore. If a new version of
    these libraries has other internals, or with `KTS_TUNING=off` (`docs/tuning.md`), s3fs builds
    its own session.

    Args:
        arguments: Arguments of `s3fs.S3FileSystem`, see `storage_options.s3_arguments`.
    """
    import s3fs

    hide_tokens()
    filesystem = s3fs.S3FileSystem(**arguments, skip_instance_cache=True)
    filesystem.retries = 1
    if is_on():
        try:
            if filesystem.session is None:
                filesystem.session = _fast_session(filesystem.kwargs)
        except Exception as error:  # noqa: BLE001  # the session only saves time
            # The error's text is omitted, because it may contain secret arguments.
            log.info("s3fs builds its own session: %s", type(error).__name__)
    return filesystem


def _fast_session(arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401
    import aiobotocore.session

    session = aiobotocore.session.AioSession(**arguments)
    loader = _loader(session.get_config_variable("data_path"))
    session.register_component("data_loader", loader)
    return session


@functools.cache
def _loader(data_path: str | None) -> Any:  # noqa: ANN401
    """Returns botocore's loader of service descriptions, which all sessions of this process share.

    Every task opens a session. Parsing the descriptions each time would take ten times as long as
    all other steps of creating a client. The loader does not search the 900 folders of other
    services.
    """
    import botocore.loaders

    loader = botocore.loaders.create_loader(data_path)
    if "s3" not in _service_folders(loader.search_paths, "service-2"):
        raise LookupError("botocore has its service descriptions in another location")
    loader.list_available_services = functools.partial(_service_folders, loader.search_paths)
    return loader


def _service_folders(search_paths: Iterable[str], type_name: str) -> list[str]:
    """Returns the names of all folders in the search paths. botocore then checks which of them have
    service descriptions.
    """
    folders = (Path(path) for path in search_paths)
    return sorted({entry.name for path in folders if path.is_dir() for entry in path.iterdir()})
