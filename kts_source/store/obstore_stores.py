"""Stores for Azure and Google. fsspec lists and looks up objects; obstore reads byte ranges.

obstore uses half as much CPU as adlfs and gcsfs. Its requests name the version of the object, so a
read sends one request instead of two (see `fsspec_store`). obstore reads options that are not set
from environment variables. So the settings here set all of them. Objects whose keys obstore would
change are read through fsspec.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import urllib.parse
import urllib.request
from abc import abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

from kts_source.errors import AccessDeniedError, ArchivedObjectError
from kts_source.libraries import require
from kts_source.secret import Secret
from kts_source.store.client_store import AsyncClient
from kts_source.store.fsspec_store import FsspecStore
from kts_source.store.http_exchange import watch_azure, watch_google
from kts_source.store.object_store import beyond_end, check_version
from kts_source.store.range_reader import (
    FsspecOnlyError,
    Range,
    RangeError,
    RangeReader,
    SharedClients,
    require_known,
)
from kts_source.store.request_policy import DEFAULT_RETRY_POLICY, RetryPolicy, TransientError
from kts_source.store.storage_options import AZURE_SCHEMES, filesystem_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from obstore import GetOptions
    from obstore.store import AzureCredential, ClientConfig, GCSCredential

    from kts_source.store.object_store import Data, Tally

T = TypeVar("T")

_ANSWER: Final = re.compile(
    r"Server returned non-2xx status code: (\d{3})[^:\n]*: ?(.*)", re.DOTALL
)
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_STATUS_OF_CLASS: Final = {
    "FileNotFoundError": 404,
    "NotFoundError": 404,
    "UnauthenticatedError": 401,
    "PermissionDeniedError": 403,
    "AlreadyExistsError": 409,
    "PreconditionError": 412,
    "NotModifiedError": 304,
}
# The second code is Azurite's error for a range of an empty object.
_START_AFTER_END: Final = ("Wanted range starting at", '"bytes 0--1/0"')
# Redirects, and errors about headers that only obstore requires. The fsspec library may succeed.
_DOUBTFUL: Final = ("Received redirect", "ETag Header missing", "Last-Modified Header missing")
_DEBUG: Final = "\n\nDebug source"
_CAUSE: Final = re.compile(r'"([^"\\]+)"|\b(IncompleteMessage|TimedOut|ConnectionReset)\b')


class ObstoreSettings(Protocol):
    """Settings of an obstore store. Stores with equal settings are interchangeable."""

    @property
    def endpoint(self) -> str:
        """URL of the service, such as `https://storage.googleapis.com`."""
        ...

    def open(self) -> Any:  # noqa: ANN401  # obstore's stores have no common base
        """Opens an obstore store that does not retry requests. Sends no request."""
        ...

    def renew(self) -> bool:
        """Requests a new token after the service rejected the current one. Returns whether a new
        token was received.
        """
        ...


class ObstoreReader(RangeReader):
    """Reads byte ranges through obstore.

    obstore's threads do not exist in a forked child process, so a read would never end. So the
    child uses the fsspec library if obstore was used before the fork.

    Args:
        make_settings: Returns the settings for obstore. May raise `FsspecOnlyError`.
        by_generation: True if the version of an object is its generation; False if it is its ETag.
        doubted: HTTP statuses after which the request is repeated with the fsspec library.
    """

    _name = "obstore"

    def __init__(
        self,
        bucket: str,
        library: str,
        make_settings: Callable[[], ObstoreSettings],
        policy: RetryPolicy,
        tally: Tally,
        *,
        by_generation: bool,
        doubted: frozenset[int],
    ) -> None:
        super().__init__(bucket, library, policy, tally)
        self._make_settings = make_settings
        self._by_generation = by_generation
        self._doubted = doubted
        self._requests = AsyncClient(_Loop, policy, tally)

    @property
    def reason(self) -> str:
        """See `RangeReader.reason`."""
        if _use.is_of_parent:
            return "obstore was used before this process was forked"
        return super().reason

    def can_read(self, key: str) -> bool:
        """Returns whether obstore would request exactly this key. obstore drops empty path
        segments, and changes unprintable characters.
        """
        return super().can_read(key) and "" not in key.split("/") and key.isprintable()

    def _prepare(self) -> None:
        self._settings = self._make_settings()
        self._opened = self._open()

    def _open(self) -> Any:  # noqa: ANN401
        from obstore.exceptions import BaseError

        try:
            return _stores.get(self._settings, self._settings.open)
        except (BaseError, OSError, ValueError):  # such as credential files of the environment
            raise FsspecOnlyError(f"{self._name} cannot open the store") from None

    def _client(self) -> Any:  # noqa: ANN401
        return self._opened

    def _renew(self, refused: Any) -> bool:  # noqa: ANN401
        with self._renewing:
            if self._opened is not refused:
                return True
            if not self._settings.renew():
                return False
            _stores.forget(refused)
            try:
                self._opened = self._open()
            except FsspecOnlyError:
                return False
            return True

    def _attempt(self, client: Any, wanted: Range) -> bytes:  # noqa: ANN401
        from obstore import get_async

        key, start, stop, version, uri = wanted
        options: GetOptions = {"range": (start, stop)}
        if version is not None:
            options["version" if self._by_generation else "if_match"] = version

        async def read(_loop: object) -> bytes:
            answer = await get_async(client, key, options=options)
            answered = answer.meta["version"] if self._by_generation else answer.meta["e_tag"]
            if answered is None and version is not None:
                raise TransientError("the response has no version")
            check_version(answered, version, uri=uri)
            first, end = answer.range
            if (first, end) != (start, stop):
                if first == start and end < stop and answer.meta["size"] == end:
                    raise beyond_end(end, start, stop, uri=uri)
                raise TransientError(
                    f"range [{start}, {stop}) was requested, but the response has range"
                    f" [{first}, {end})"
                )
            # Not `bytes_async`, which reads a response of any length into memory.
            length, chunks = 0, []
            async for chunk in answer.stream(min_chunk_size=stop - start):
                length += len(chunk)
                if length > stop - start:
                    raise TransientError(f"the response has more bytes than [{start}, {stop})")
                chunks.append(chunk)
            return bytes(chunks[0]) if len(chunks) == 1 else b"".join(chunks)

        try:
            return self._run(read, hedge=True)
        except RangeError as failure:
            failure.is_doubtful = failure.is_doubtful or self._is_doubtful(failure)
            raise

    def create(self, client: Any, path: str, data: bytes) -> None:  # noqa: ANN401
        """Makes one attempt to create an object with a store of obstore. The request has the
        condition that no object with this path exists.

        Raises:
            RangeError: The request failed. The status is 409 if the object exists.
        """
        from obstore import put_async

        async def put(_loop: object) -> None:
            await put_async(client, path, data, mode="create")

        self._run(put)

    def _run(self, send: Callable[[object], Coroutine[Any, Any, T]], *, hedge: bool = False) -> T:
        from obstore.exceptions import BaseError

        _use.is_ours = True
        try:
            return self._requests.run(send, hedge=hedge)
        except (BaseError, FileNotFoundError) as error:
            raise read_error(type(error).__name__, str(error)) from None

    def _is_doubtful(self, failure: RangeError) -> bool:
        if failure.status != 0:
            return failure.status in self._doubted
        # obstore reports an untrusted certificate like a failed connection.
        is_encrypted = self._settings.endpoint.startswith("https:")
        is_maybe_untrusted = is_encrypted and not self._has_answered
        return is_maybe_untrusted or any(text in failure.text for text in _DOUBTFUL)


def read_error(class_name: str, text: str) -> RangeError:
    """Converts an error of obstore 0.12 to a `RangeError`. Parses the error's text, because only
    the text contains the details.
    """
    message, _, debug = text.partition(_DEBUG)
    answer = _ANSWER.search(message)
    status = _STATUS_OF_CLASS.get(class_name, 0)
    if answer is None:
        reason = message.partition(": ")[2] or message
        if status == 401:
            # The token provider failed, possibly temporarily; no request was sent.
            return RangeError(0, "", reason, is_doubtful=True, was_sent=False)
        if status == 0 and any(words in message for words in _START_AFTER_END):
            status = 416
        _, _, cause = debug.partition("HttpError {")
        causes = ", ".join(quoted or word for quoted, word in _CAUSE.findall(cause))
        return RangeError(status, "", f"no complete response: {causes}" if causes else reason)
    code = _CODE.search(answer[2])
    text = f"{answer[1]} {answer[2]}".strip()
    return RangeError(status or int(answer[1]), "" if code is None else code[1], text)


class _Loop:
    """Stands in for the fsspec file system of an `AsyncClient`. obstore has no such file system,
    and the client needs only its event loop.
    """

    def __init__(self) -> None:
        import fsspec.asyn

        self.loop = fsspec.asyn.get_loop()

    async def set_session(self) -> None:
        """Does nothing, because obstore has no session that requests share."""


class _ObstoreUse:
    """Records whether this process has used obstore, and whether the parent process had used
    obstore before the fork.
    """

    def __init__(self) -> None:
        self.is_ours = False
        self.is_of_parent = False
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.is_of_parent = self.is_of_parent or self.is_ours


_use: Final = _ObstoreUse()
_stores: Final = SharedClients[Any]()


class ObstoreStore(FsspecStore):
    """Base class of the Azure and Google stores."""

    # The service's word for a bucket, the fsspec library, and the extra that installs the library.
    _root_name: ClassVar[str]
    _library: ClassVar[str]
    _extra: ClassVar[str]
    # Arguments of `ObstoreReader`.
    _by_generation: ClassVar[bool] = False
    _doubted: ClassVar[frozenset[int]] = frozenset()

    def __init__(
        self,
        url: str,
        storage: Secret[Mapping[str, str]],
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
    ) -> None:
        require(self._library, self._extra, f"{url.partition('://')[0]}://")
        super().__init__(url, storage, retry_policy)
        self._bucket = self._root.partition("/")[0]
        self._ranges = ObstoreReader(
            f"the {self._root_name} {self._bucket}",
            self._library,
            self._make_settings,
            retry_policy,
            self._tally,
            by_generation=self._by_generation,
            doubted=self._doubted,
        )

    @property
    def remarks(self) -> tuple[str, ...]:  # type: ignore[override]  # a constant elsewhere
        """See `ObjectStore.remarks`."""
        return self._ranges.remarks

    @abstractmethod
    def _settings_of(self, filesystem: Any, arguments: Mapping[str, Any]) -> ObstoreSettings:  # noqa: ANN401
        """Returns obstore settings that have the same effect as the fsspec file system and its
        arguments. Raises `FsspecOnlyError` if obstore does not support the arguments.
        """

    @abstractmethod
    def _can_require_version(self, version: str) -> bool:
        """Returns whether obstore can request this version of an object."""

    def _make_settings(self) -> ObstoreSettings:
        if find_spec("obstore") is None:
            raise FsspecOnlyError("obstore is not installed")
        try:
            filesystem = self._client.filesystem
        except Exception:  # noqa: BLE001  # the first request reports it
            raise FsspecOnlyError(f"{self._library} cannot be opened") from None
        arguments = filesystem_arguments(self._url, self._storage.reveal())
        return self._settings_of(filesystem, arguments)

    def _read(self, key: str, start: int, stop: int, version: str | None) -> Data:
        def read_by_fsspec() -> Data:
            return super(ObstoreStore, self)._read(key, start, stop, version)

        if version is not None and not self._can_require_version(version):
            return read_by_fsspec()
        path = self._path(key).partition("/")[2]
        return self._ranges.read(Range(path, start, stop, version, self.uri(key)), read_by_fsspec)

    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        if not isinstance(error, RangeError):
            return super()._failure(error, key, listing=listing)
        return error.status or 503, self._scrub(error.text)


def client_options(endpoint: str, policy: RetryPolicy) -> ClientConfig:
    """Returns the options of obstore's HTTP client for the service at `endpoint`."""
    return {
        "allow_http": endpoint.startswith("http:"),
        "connect_timeout": _microseconds(policy.connect_timeout_seconds),
        "read_timeout": _microseconds(policy.read_timeout_seconds),
        # Longer than the deadline of `RetryPolicy`, which is enforced separately.
        "timeout": _microseconds(policy.request_deadline_seconds + 5),
        "http1_only": True,
    }


def _microseconds(seconds: float) -> str:
    return f"{round(seconds * 1e6)}us"


def require_supported(
    unknown: Iterable[str], schemes: Iterable[str], prefix: str, endpoint: str
) -> None:
    """Raises `FsspecOnlyError` unless obstore would connect to the endpoint like the fsspec
    library.

    Args:
        unknown: Names of arguments that only the fsspec library supports.
        schemes: URL schemes of the store.
        prefix: Prefix of environment variables that obstore reads and the fsspec library ignores.
        endpoint: URL of the service.
    """
    require_known(unknown, schemes)
    for name in (
        "ALLOW_INVALID_CERTIFICATES",
        "PROXY_URL",
        "PROXY_EXCLUDES",
        "PROXY_CA_CERTIFICATE",
    ):
        if os.environ.get(prefix + name):
            raise FsspecOnlyError(f"{prefix}{name} is set")
    if urllib.request.getproxies().keys() & {"http", "https", "all"}:
        raise FsspecOnlyError("the environment names a proxy")
    if endpoint.startswith("https:") and os.environ.get("REQUESTS_CA_BUNDLE"):
        raise FsspecOnlyError("REQUESTS_CA_BUNDLE names a bundle of certificates")


# Errors of Azure's library if no login succeeds. They have no HTTP status, except if the store
# itself rejects the credentials.
_LOGIN_ERRORS: Final = ("ClientAuthenticationError", "CredentialUnavailableError")
# Errors of Azure's library for failed connections and malformed responses.
_TRANSIENT: Final = ("ServiceRequestError", "ServiceResponseError", "DecodeError")
_ETAG: Final = re.compile(r'"[^"]+"')
# Arguments of adlfs that are supported with obstore, too.
_AZURE_ARGUMENTS: Final = {
    *("account_name", "account_key", "sas_token", "connection_string", "credential", "anon"),
    *("client_id", "client_secret", "tenant_id", "account_host", "assume_container_exists"),
    *("use_listings_cache", "listings_expiry_time", "max_paths", "blocksize", "max_concurrency"),
    *("default_fill_cache", "default_cache_type"),
}
_CONTAINER: Final = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")
_AZURE_HOST: Final = re.compile(
    r"https://[^/]+\.(core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)|storage\.azure\.net)"
)
AZURE_SCOPE: Final = "https://storage.azure.com/.default"


@dataclass(frozen=True, slots=True)
class AzureSettings:
    """Settings of an obstore store for an Azure container.

    Attributes:
        endpoint: URL of the account, without a query.
        keys: An account key or a shared access signature, as the name of an obstore option and its
            value; `None` if neither is used.
        token: Credential object that issues Entra ID tokens; `None` if no tokens are used.
    """

    endpoint: str
    container: str
    account: str
    keys: Secret[tuple[str, str] | None]
    token: Any
    client_options: ClientConfig

    def renew(self) -> bool:
        """Returns False. Azure's library renews tokens automatically, and has no function to renew
        them earlier.
        """
        return False

    def open(self) -> Any:  # noqa: ANN401
        """See `ObstoreSettings.open`."""
        from obstore.store import AzureStore as Store

        provider = self._provider()
        # A credential provider, because obstore would mix explicit keys with environment variables.
        named: dict[str, Any] = {} if provider is None else {"credential_provider": provider}
        return Store(
            container_name=self.container,
            account_name=self.account,
            endpoint=self.endpoint,
            use_emulator=False,
            **named,
            skip_signature=provider is None,
            client_options=self.client_options,
            retry_config={"max_retries": 0},
        )

    def _provider(self) -> Callable[[], Any] | None:
        keys = self.keys.reveal()
        if keys is not None:
            name, value = keys
            return lambda: {name: value, "expires_at": None}
        if self.token is None:
            return None

        async def issue() -> AzureCredential:
            token = await self.token.get_token(AZURE_SCOPE)
            return {
                "token": token.token,
                "expires_at": datetime.fromtimestamp(token.expires_on, UTC),
            }

        return issue


class AzureStore(ObstoreStore):
    """Objects of `abfs://container[/prefix]` or `abfss://container@account.dfs.…[/prefix]`. The
    version of a blob is its ETag.
    """

    pinning = "conditional reads (If-Match), or the ETag looked up after every read"
    _root_name = "container"
    _library = "adlfs"
    _extra = "azure"

    def _connect(self) -> Any:  # noqa: ANN401  # adlfs ships no types
        # Azure's library logs a page of text if no login succeeds. Without a handler, Python would
        # print it to standard error. Handlers of the user still receive it.
        logging.getLogger("azure").addHandler(logging.NullHandler())
        filesystem = super()._connect()
        watch_azure(filesystem.service_client)
        return filesystem

    def _settings_of(self, filesystem: Any, arguments: Mapping[str, Any]) -> AzureSettings:  # noqa: ANN401
        client = filesystem.service_client
        address = urllib.parse.urlsplit(client.url)
        endpoint = address._replace(query="", path=address.path.rstrip("/")).geturl()
        unknown = arguments.keys() - _AZURE_ARGUMENTS
        require_supported(unknown, AZURE_SCHEMES, "AZURE_", endpoint)
        if not _CONTAINER.fullmatch(self._bucket) and self._bucket != "$root":
            raise FsspecOnlyError("the container's name is unusual")
        if os.environ.get("AZURE_ENCRYPTION_KEY"):
            raise FsspecOnlyError("AZURE_ENCRYPTION_KEY is set")
        keys, token = azure_credentials(client.credential, address.query)
        if token is not None and address.scheme != "https":
            raise FsspecOnlyError("obstore sends tokens only over encrypted connections")
        if keys is not None and keys[0] == "sas_token" and not _AZURE_HOST.fullmatch(endpoint):
            # obstore follows redirects to any host and sends the signed URL to it as `Referer`.
            raise FsspecOnlyError(
                "a shared access signature with a custom endpoint is not supported"
            )
        return AzureSettings(
            endpoint,
            self._bucket,
            getattr(client.credential, "account_name", None) or client.account_name or "unknown",
            Secret(keys),
            token,
            client_options(endpoint, self._retry_policy),
        )

    def _can_require_version(self, version: str) -> bool:
        return _ETAG.fullmatch(version) is not None  # older versions of adlfs drop the quotes

    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        status, text = super()._failure(error, key, listing=listing)
        if type(error).__name__ in _LOGIN_ERRORS and not status:
            raise AccessDeniedError(
                "no Azure credentials work. Give account_key, sas_token, or tenant_id, client_id"
                " and client_secret in storageOptions, log in with `az login`, or set anon=true for"
                " a public container",
                uri=self.uri(key),
            ) from None
        if any(base.__name__ in _TRANSIENT for base in type(error).__mro__):
            status = 503
        if isinstance(error, RangeError) and error.code == "BlobArchived":
            raise ArchivedObjectError(
                f"the object is archived and must be restored first: {text}", uri=self.uri(key)
            ) from None
        return status, text


def azure_credentials(credential: Any, query: str) -> tuple[tuple[str, str] | None, Any]:  # noqa: ANN401
    """Returns the account key or shared access signature, and the object that issues tokens. At
    least one of the two is `None`.
    """
    if credential is None:
        if not query:
            return None, None
        if "sig" in urllib.parse.parse_qs(query):
            return ("sas_token", query), None
    elif isinstance(key := getattr(credential, "account_key", None), str):
        return ("access_key", key), None
    elif hasattr(credential, "get_token"):
        return None, credential
    raise FsspecOnlyError("obstore does not support this kind of credentials")


# Arguments of gcsfs that are supported with obstore, too.
_GCS_ARGUMENTS: Final = {
    *("project", "access", "token", "endpoint_url", "default_location", "consistency"),
    *("use_listings_cache", "listings_expiry_time", "max_paths", "cache_timeout", "block_size"),
}
_EXPIRED: Final = datetime(2000, 1, 1)  # Google's library compares without a time zone
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class GcsSettings:
    """Settings of an obstore store for a Google Cloud Storage bucket. `login` is a
    `GoogleCredentials` object of gcsfs, which renews tokens; `None` for unsigned requests.
    """

    endpoint: str
    bucket: str
    login: Any
    client_options: ClientConfig

    def renew(self) -> bool:
        """Requests a new token. Returns False if that is impossible, for example because the
        options contain a fixed token.
        """
        if self.login is None:
            return False
        credentials = self.login.credentials
        expiry, credentials.expiry = credentials.expiry, _EXPIRED
        try:
            self.login.maybe_refresh()
        except Exception:  # noqa: BLE001  # the refusal is the better error
            credentials.expiry = expiry
            return False
        return True

    def open(self) -> Any:  # noqa: ANN401
        """See `ObstoreSettings.open`."""
        from obstore.store import GCSStore

        async def issue() -> GCSCredential:
            await asyncio.to_thread(self.login.maybe_refresh)
            credentials = self.login.credentials
            expiry = credentials.expiry
            expires_at = None if expiry is None else expiry.replace(tzinfo=UTC)
            return {"token": credentials.token, "expires_at": expires_at}

        named: dict[str, Any] = {} if self.login is None else {"credential_provider": issue}
        return GCSStore(
            self.bucket,
            base_url=self.endpoint,
            **named,
            skip_signature=self.login is None,
            client_options=self.client_options,
            retry_config={"max_retries": 0},
        )


class GcsStore(ObstoreStore):
    """Objects of `gs://bucket[/prefix]`. The version of an object is its generation."""

    pinning = "reads of a generation, or the generation looked up after every read"
    _version_names = ("generation", "etag", "md5Hash")
    _root_name = "bucket"
    _library = "gcsfs"
    _extra = "gcs"
    _by_generation = True
    # Status 404 is also returned for an overwritten generation and by an endpoint without the XML
    # API. Zonal buckets return 400.
    _doubted = frozenset({400, 404})
    _session_argument = "session_kwargs"

    def _connect(self) -> Any:  # noqa: ANN401  # gcsfs ships no types
        filesystem = super()._connect()
        watch_google(filesystem, self._bucket)
        return filesystem

    def _settings_of(self, filesystem: Any, arguments: Mapping[str, Any]) -> GcsSettings:  # noqa: ANN401
        # gcsfs's location considers environment variables and the universe domain.
        endpoint = str(filesystem._location).rstrip("/")  # noqa: SLF001
        require_supported(arguments.keys() - _GCS_ARGUMENTS, ("gs", "gcs"), "GOOGLE_", endpoint)
        if not _BUCKET.fullmatch(self._bucket):
            raise FsspecOnlyError("the bucket's name is unusual")
        if getattr(filesystem, "_use_client_cert", False):
            raise FsspecOnlyError("the client uses a client certificate")
        login = filesystem.credentials
        if login.credentials is None:
            login = None
        elif not endpoint.startswith("https:"):
            raise FsspecOnlyError("obstore sends tokens only over encrypted connections")
        elif getattr(login.credentials, "quota_project_id", None):
            raise FsspecOnlyError("the credentials name a billing project")
        return GcsSettings(
            endpoint, self._bucket, login, client_options(endpoint, self._retry_policy)
        )

    def _can_require_version(self, version: str) -> bool:
        return version.isdecimal()

    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        from gcsfs.retry import is_retriable

        status, text = super()._failure(error, key, listing=listing)
        if isinstance(error, RangeError):
            return status, text
        if type(error) is OSError and str(error).startswith("Forbidden"):
            status = 403  # gcsfs has no class for it
        elif status not in (401, 403) and (
            is_retriable(error) or getattr(error, "retryable", False)
        ):
            status = 503
        return status, text
