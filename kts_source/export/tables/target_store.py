"""The store to which an export writes.

Keys are relative to the target's root. The commit protocol of Parquet folders relies on two
guarantees. `create` is atomic and reports whether this call created the object. `publish` is
idempotent.

`create` sends a condition: `If-None-Match: *` to S3 and Azure, and `ifGenerationMatch=0` to Google.
If a store ignores the condition, two exports could commit the same offsets. So `require_create`
tests the store before anything is written.

S3, Azure and Google cannot rename objects, so `publish` copies them. The metadata of a copy contain
the key of its source. Azure and Google copy the metadata of an object together with its bytes. So
there, each file has its own key in its metadata.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import urllib.parse
import uuid
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from kts_source.errors import (
    ExportError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TieredKafkaError,
    UnsupportedTargetError,
)
from kts_source.store.local_store import LocalStore, local_root
from kts_source.store.object_store import ObjectStore, check_key
from kts_source.store.obstore_stores import (
    AZURE_SCOPE,
    AzureStore,
    GcsStore,
    ObstoreStore,
    azure_credentials,
)
from kts_source.store.open_store import refuse_credentials, scheme_of
from kts_source.store.range_reader import FsspecOnlyError, RangeError
from kts_source.store.request_policy import TransientError
from kts_source.store.s3_ranges import open_session
from kts_source.store.s3_store import S3Store
from kts_source.store.storage_options import AZURE_SCHEMES, filesystem_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kts_source.secret import Secret


UPLOAD_PART_BYTES: Final = 8 << 20
_WRITE_BACK_BYTES: Final = 8 << 20
_UPLOAD_ATTEMPTS: Final = 5
_COPY_OF: Final = "kts-copy-of"
_ORIGIN: Final = "kts_origin"
"""Name of the metadata with the key under which an object was written. Azure allows no hyphen."""
_GOOGLE: Final = "https://storage.googleapis.com"
_RETRY_PAUSE_SECONDS: Final = 1
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of file systems that cannot create hard links."""


class TargetStore(ObjectStore, Protocol):
    """A store that an export reads and writes. Its keys are relative to a root. The root need not
    exist yet.
    """

    def read(self, key: str) -> bytes:
        """Returns a whole object.

        Raises:
            ObjectNotFoundError: The object does not exist.
        """
        info = self.head(key)
        return bytes(self.get_range(key, 0, info.size, version=info.version))

    def create(self, key: str, data: bytes) -> bool:
        """Creates an object atomically with all its bytes. Does nothing if an object with this key
        exists.

        Returns:
            True if this call created the object.
        """
        ...

    def open_output(self, key: str) -> Any:  # noqa: ANN401  # a binary file
        """Returns a binary file that writes a new object. The object becomes visible when the file
        is closed.
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Writes a small object. Replaces an existing one."""
        with self.open_output(key) as file:
            file.write(data)

    def publish(self, source: str, destination: str, size: int) -> None:
        """Moves an object to its final key. Does nothing if it was already moved.

        Args:
            source: Key under which the object was written.
            destination: Final key.
            size: Bytes of the object.

        Raises:
            ExportError: Neither `source` nor `destination` exists, or `destination` is another
                object.
        """
        ...

    def delete(self, key: str) -> None:
        """Deletes an object if it exists."""
        ...

    def delta_options(self) -> dict[str, str] | None:
        """Returns the storage options of delta-rs for this store; `None` for a local folder.

        Raises:
            InvalidOptionError: delta-rs has no option for one of the store's options.
            UnsupportedTargetError: delta-rs does not support the credentials.
        """
        ...

    def create_for_delta(self, key: str, data: bytes) -> bool:
        """Like `create`, but sends the request that delta-rs sends for a commit."""
        return self.create(key, data)


def open_target(path: str, storage: Secret[Mapping[str, str]]) -> TargetStore:
    """Opens the store of a target path, without sending a request.

    Args:
        path: A local folder (plain or `file:///…`), or a URL of S3, Azure or Google Cloud Storage.
        storage: As for `kts_source.store.open_store.open_store`.

    Raises:
        InvalidOptionError: The path is empty or contains credentials.
        UnsupportedTargetError: Exports cannot write to stores of this scheme.
    """
    path = path.strip()
    if not path:
        raise InvalidOptionError("the target is empty: give a folder or s3://bucket/prefix")
    scheme = scheme_of(path)
    if scheme == "file":
        return LocalTarget(local_root(path))
    refuse_credentials(path)
    if scheme == "s3":
        bucket, _, prefix = path.partition("://")[2].partition("/")
        return S3Target(f"s3://{bucket}/{prefix.strip('/')}", storage)
    if scheme in AZURE_SCHEMES:
        return AzureTarget(path, storage)
    if scheme in ("gs", "gcs"):
        return GcsTarget(path, storage)
    raise UnsupportedTargetError(
        f"cannot export to {scheme}://: targets are local folders, s3://bucket/prefix,"
        " abfss://container@account.dfs.core.windows.net/prefix and gs://bucket/prefix"
    )


def require_create(target: TargetStore, *, for_delta: bool = False) -> None:
    """Checks with a test object that `create` is atomic in a store.

    Args:
        target: The store.
        for_delta: True to check the requests of delta-rs instead.

    Raises:
        UnsupportedTargetError: `create` is not atomic.
    """
    probe = f"_kts/probe-{uuid.uuid4().hex}"
    create = target.create_for_delta if for_delta else target.create
    try:
        if create(probe, b"1") and not create(probe, b"2"):
            return
    finally:
        target.delete(probe)
    raise UnsupportedTargetError(
        "creating an object replaces an existing one (the store ignores conditions of writes), so"
        " two concurrent exports could commit the same offsets. Export into an Iceberg table, or to"
        " another store",
        uri=target.uri(""),
    )


def require_published(actual: int | None, size: int, source: str, destination: str) -> None:
    """Raises `ExportError` if the object with the final key is missing or has another size than was
    committed. `actual` is its size, or `None` if it is missing.
    """
    if actual is None:
        raise ExportError(
            f"a committed file is missing: neither {source} nor {destination} exists. Restore it,"
            " or export into another folder",
            uri=destination,
        )
    if actual != size:
        raise ExportError(
            f"a committed file has {actual} bytes instead of {size}: another writer has replaced"
            " it. Restore the file, or export into another folder",
            uri=destination,
        )


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Converts the errors of the operating system that the block raises to errors of the package.

    Raises:
        StoreUnavailableError: A file system of another machine does not respond.
        ExportError: The operating system raised another error.
    """
    try:
        yield
    except TieredKafkaError:
        raise
    except OSError as error:
        is_outage = isinstance(error, TimeoutError | ConnectionError)
        kind = StoreUnavailableError if is_outage else ExportError
        raise kind(
            f"a file cannot be written: {error.strerror or error}. Commits are kept: correct this"
            " and run again to continue",
            uri=str(path),
        ) from error


class LocalTarget(LocalStore, TargetStore):
    """A local folder, or a folder of a shared file system."""

    def create(self, key: str, data: bytes) -> bool:
        """See `TargetStore.create`. Writes a temporary file and creates a hard link to it. So the
        file appears with all its bytes or not at all.
        """
        path = self._path(key)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.draft")
        with _write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with _SyncedFile(draft) as file:
                    file.write(data)
                if not _link(draft, path):
                    return False
            finally:
                draft.unlink(missing_ok=True)
            _sync_folder(path.parent)
        return True

    def open_output(self, key: str) -> Any:  # noqa: ANN401
        """See `TargetStore.open_output`."""
        path = self._path(key)
        with _write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            return _SyncedFile(path)

    def publish(self, source: str, destination: str, size: int) -> None:
        """See `TargetStore.publish`. Creates a hard link at `destination`, and then deletes
        `source`.
        """
        draft, path = self._path(source), self._path(destination)
        with _write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # published before, or missing
                # If there is a file, another process has stopped between linking and removing, or
                # publishes the file concurrently.
                if not _link(draft, path) and not draft.samefile(path):
                    raise ExportError(
                        "another file has the name of a committed file. Move it away and run again",
                        uri=str(path),
                    )
            length = path.stat().st_size if path.exists() else None
            require_published(length, size, self.uri(source), self.uri(destination))
            _sync_folder(path.parent)
            draft.unlink(missing_ok=True)

    def delta_options(self) -> None:
        """See `TargetStore.delta_options`."""

    def delete(self, key: str) -> None:
        """See `TargetStore.delete`."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        """Returns the path of the file with key `key`, for writing or deleting it.

        Raises:
            InvalidKeyError: The path leads out of the root through a symbolic link.
        """
        check_key(key, self.uri(""))
        self._target(key.split("/")[:-1], key)
        return self._root / key

    def _require_root(self) -> None:
        """Does nothing. Unlike in a tier, the root may be missing, because creating the first
        object creates it.
        """


class _SyncedFile(io.BufferedWriter):
    """A new file that is synced to disk when it is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("xb", buffering=0))
        self._path = path
        self._waiting = 0

    def write(self, data: Any) -> int:  # noqa: ANN401  # any buffer
        with _write_errors(self._path):
            return self._write(data)

    def _write(self, data: Any) -> int:  # noqa: ANN401
        written = super().write(data)
        self._waiting += written
        # Start writing these bytes to disk while the next rows are compressed, so that `close` need
        # not wait for all bytes. Drop the written pages from the page cache, because they are not
        # read again soon.
        if self._waiting >= _WRITE_BACK_BYTES and hasattr(os, "posix_fadvise"):  # not on macOS
            self._waiting = 0
            self.flush()
            os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return written

    def close(self) -> None:
        with _write_errors(self._path):
            try:
                if not self.closed:
                    self.flush()
                    os.fsync(self.fileno())
            except OSError:
                self.raw.close()  # a later call must not write the rest
                raise
            super().close()


def _link(draft: Path, path: Path) -> bool:
    """Creates a hard link to `draft`. Returns False if `path` exists."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise UnsupportedTargetError(
            f"commits need a file system that creates files atomically: {error.strerror}. Export"
            " into another folder",
            uri=str(path),
        ) from error
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class CopyingTarget(TargetStore, Protocol):
    """A target that publishes an object by copying it on the server, because the store cannot
    rename objects.

    A copy records the key of its source. A source key is used by only one attempt, so a copy with
    this key has the right content. ETags cannot be compared, because the ETags of a copy and of its
    source may differ.
    """

    def publish(self, source: str, destination: str, size: int) -> None:
        """See `TargetStore.publish`. Copies the object on the server, and then deletes the
        source.
        """
        copy = self._find_copy(destination)
        if copy is None:
            self._copy(source, destination)
            copy = self._find_copy(destination)
        length, origin = (None, None) if copy is None else copy
        require_published(length, size, self.uri(source), self.uri(destination))
        if origin != source:
            raise ExportError(
                f"an object that is not a copy of {self.uri(source)} has the name of a committed"
                " file. Move it away and run again",
                uri=self.uri(destination),
            )
        self.delete(source)

    def _find_copy(self, key: str) -> tuple[int, str | None] | None:
        """Returns the size of an object, and the key of the object of which it is a copy. Returns
        `None` if the object does not exist.
        """
        ...

    def _copy(self, source: str, destination: str) -> None:
        """Copies an object on the server. Does nothing if the source does not exist. In this case,
        it was already published or is lost.
        """
        ...


class S3Target(S3Store, CopyingTarget):
    """Objects in a bucket below a prefix, for reading and writing."""

    def create(self, key: str, data: bytes) -> bool:
        """See `TargetStore.create`."""
        try:
            self._send("put_object", key, Body=data, IfNoneMatch="*")
        except ObjectChangedError:
            # If the response of the first attempt was lost, a repeated request finds the object
            # that the first attempt created.
            return self.read(key) == data
        return True

    def put(self, key: str, data: bytes) -> None:
        """See `TargetStore.put`."""
        self._send("put_object", key, Body=data)

    def open_output(self, key: str) -> Any:  # noqa: ANN401
        """See `TargetStore.open_output`. The file is a multipart upload, which is completed when
        the file is closed.
        """
        filesystem = self._client.filesystem
        # Requests for the parts of an upload are not sent through our retry loop.
        filesystem.retries = _UPLOAD_ATTEMPTS
        file = filesystem.open(self._path(key), "wb", block_size=UPLOAD_PART_BYTES)
        return self._upload(file, key)

    def delete(self, key: str) -> None:
        """See `TargetStore.delete`."""
        self._send("delete_object", key)

    def delta_options(self) -> dict[str, str]:
        """See `TargetStore.delta_options`."""
        return _delta_options_of_s3(self._storage.reveal())

    def _copy(self, source: str, destination: str) -> None:
        def attempt() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._client.filesystem.cp_file(
                    self._path(source),
                    self._path(destination),
                    MetadataDirective="REPLACE",
                    Metadata={_COPY_OF: source},
                )

        self._request(attempt, source)

    def _find_copy(self, key: str) -> tuple[int, str | None] | None:
        try:
            answer = self._send("head_object", key)
        except ObjectNotFoundError:
            return None
        return int(answer["ContentLength"]), answer.get("Metadata", {}).get(_COPY_OF)

    def _send(self, method: str, key: str, **arguments: Any) -> Any:  # noqa: ANN401
        self._check_key(key)
        arguments["Key"] = self._prefix + key
        return self._request(lambda: self._answer(method, arguments), key)

    def _path(self, key: str) -> str:
        self._check_key(key)
        return f"{self._bucket}/{self._prefix}{key}"


def _delta_options_of_s3(storage: Mapping[str, str]) -> dict[str, str]:
    """Converts the names of `s3.*` options to the names that delta-rs uses.

    Raises:
        InvalidOptionError: delta-rs has no option for an `s3.*` option.
    """
    names = {
        "s3.endpoint": "AWS_ENDPOINT_URL",
        "s3.access-key-id": "AWS_ACCESS_KEY_ID",
        "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
        "s3.session-token": "AWS_SESSION_TOKEN",
        "s3.region": "AWS_REGION",
        "s3.anonymous": "AWS_SKIP_SIGNATURE",
        "s3.proxy-uri": "PROXY_URL",
        "s3.profile-name": "AWS_PROFILE",
    }
    options: dict[str, str] = {}
    for name, value in storage.items():
        if name in names:
            options[names[name]] = value
        elif name == "s3.path-style-access":
            options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = (
                "false" if value.strip().lower() == "true" else "true"
            )
        elif name == "s3.force-virtual-addressing":
            options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = value.strip().lower()
        elif name not in ("s3.connect-timeout", "s3.request-timeout"):
            raise InvalidOptionError(
                f"option {name} is not supported for a Delta table on S3: remove it"
            )
    if options.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    if not options.keys() & {"AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE"}:
        options |= _keys_of_profile(options.get("AWS_PROFILE"))
    return options


_KNOWN_TO_DELTA: Final = frozenset(
    {"env", "iam-role", "container-role", "assume-role-with-web-identity"}
)
"""Sources of credentials that delta-rs reads and renews itself, with botocore's names."""


def _keys_of_profile(profile: str | None) -> dict[str, str]:
    """Returns the keys of the AWS credential chain if they come from a source that delta-rs does
    not read, such as the shared credentials file or a login of the AWS CLI.
    """
    from botocore.exceptions import BotoCoreError

    try:
        credentials = open_session(profile, with_credentials=True).get_credentials()
        if credentials is None or credentials.method in _KNOWN_TO_DELTA:
            return {}
        keys = credentials.get_frozen_credentials()
    except (BotoCoreError, FsspecOnlyError):
        return {}  # delta-rs explains what it tried
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    return {name: key for name, key in zip(names, keys[:3], strict=True) if key}


class CloudTarget(ObstoreStore, CopyingTarget):
    """Base class of the Azure and Google targets."""

    # Arguments that make `pipe_file` of the fsspec library create an object only if it is new.
    _if_new: ClassVar[Mapping[str, Any]]

    def create(self, key: str, data: bytes) -> bool:
        """See `TargetStore.create`."""
        return self._create(
            key, data, lambda: self._call("pipe_file", self._path(key), data, **self._if_new)
        )

    def _create(self, key: str, data: bytes, attempt: Callable[[], None]) -> bool:
        self._check_key(key)
        try:
            self._request(attempt, key)
        except ObjectChangedError:
            # If the response of the first attempt was lost, a repeated request finds the object
            # that the first attempt created.
            return self.read(key) == data
        except ObjectNotFoundError:
            raise ExportError(
                f"the {self._root_name} {self._bucket} does not exist. Create it, or correct the"
                " target",
                uri=self.uri(key),
            ) from None
        return True

    def open_output(self, key: str) -> Any:  # noqa: ANN401
        """See `TargetStore.open_output`. The file is uploaded in parts, and the upload is completed
        when the file is closed.
        """
        self._check_key(key)
        filesystem = self._client.filesystem
        # Requests for the parts of an upload are not sent through our retry loop.
        self._retry_uploads(filesystem)
        metadata = {_ORIGIN: urllib.parse.quote(key)}
        file = filesystem.open(
            self._path(key), "wb", block_size=UPLOAD_PART_BYTES, metadata=metadata
        )
        return self._upload(file, key)

    def delete(self, key: str) -> None:
        """See `TargetStore.delete`."""
        self._check_key(key)
        with contextlib.suppress(ObjectNotFoundError):
            self._request(lambda: self._call("rm_file", self._path(key)), key)

    @abstractmethod
    def _retry_uploads(self, filesystem: Any) -> None:  # noqa: ANN401
        """Makes the file system repeat failed requests."""

    def _copy(self, source: str, destination: str) -> None:
        self._check_key(destination)
        with contextlib.suppress(ObjectNotFoundError):
            self._request(
                lambda: self._call("cp_file", self._path(source), self._path(destination)), source
            )

    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        # Older versions of adlfs raise the error of Azure's library.
        is_existing = type(error).__name__ == "ResourceExistsError"
        if isinstance(error, RangeError):
            is_existing = error.status == 409
        if is_existing or isinstance(error, FileExistsError):
            return 412, "the object exists"
        return super()._failure(error, key, listing=listing)

    def _unsupported(self, credentials: str, advice: str) -> UnsupportedTargetError:
        return UnsupportedTargetError(
            f"delta-rs, which writes Delta tables, does not support {credentials}. {advice}",
            uri=self.uri(""),
        )


class AzureTarget(CloudTarget, AzureStore):
    """Blobs in a container below a prefix, for reading and writing."""

    _if_new: ClassVar[Mapping[str, Any]] = {"overwrite": False}

    def delta_options(self) -> dict[str, str]:
        """See `TargetStore.delta_options`."""
        client = self._client.filesystem.service_client
        address = urllib.parse.urlsplit(client.url)
        try:
            keys, token = azure_credentials(client.credential, address.query)
        except FsspecOnlyError:
            raise self._unsupported(
                "this kind of Azure credentials",
                "Give account_key, sas_token, or tenant_id, client_id and client_secret in"
                " storageOptions",
            ) from None
        account = getattr(client.credential, "account_name", None) or client.account_name
        options = {
            "azure_storage_account_name": str(account),
            "azure_endpoint": address._replace(query="", path=address.path.rstrip("/")).geturl(),
            "allow_http": str(address.scheme == "http").lower(),
        }
        if keys is not None:
            kind, value = keys
            options[
                "azure_storage_account_key" if kind == "access_key" else "azure_storage_sas_key"
            ] = value
        elif token is not None:
            options["azure_storage_token"] = self._token(token)
        else:
            options["azure_skip_signature"] = "true"
        return options

    def _token(self, credential: Any) -> str:  # noqa: ANN401
        async def issue(_filesystem: Any) -> str:  # noqa: ANN401
            return str((await credential.get_token(AZURE_SCOPE)).token)

        return self._request(lambda: self._client.run(issue), "")

    def _retry_uploads(self, filesystem: Any) -> None:  # noqa: ANN401
        for policy in filesystem.service_client._pipeline._impl_policies:  # noqa: SLF001
            if hasattr(policy, "total_retries"):
                policy.total_retries = _UPLOAD_ATTEMPTS - 1
                policy.initial_backoff = _RETRY_PAUSE_SECONDS

    def _find_copy(self, key: str) -> tuple[int, str | None] | None:
        container, _, name = self._path(key).partition("/")

        async def look_up(filesystem: Any) -> Any:  # noqa: ANN401
            async with filesystem.service_client.get_blob_client(container, name) as blob:
                return await blob.get_blob_properties()

        def attempt() -> Any:  # noqa: ANN401
            found = self._client.run(look_up)
            if found.copy.status == "pending":
                raise TransientError("the copy of the blob is not complete")
            return found

        try:
            found = self._request(attempt, key)
        except ObjectNotFoundError:
            return None
        if found.copy.status in ("aborted", "failed"):
            return None  # an incomplete copy, which the next copy replaces
        return int(found.size), _origin(found.metadata)


class GcsTarget(CloudTarget, GcsStore):
    """Objects in a bucket below a prefix, for reading and writing."""

    _if_new: ClassVar[Mapping[str, Any]] = {"mode": "create"}

    def create_for_delta(self, key: str, data: bytes) -> bool:
        """See `TargetStore.create_for_delta`. delta-rs uses the XML API, and gcsfs the JSON API. A
        service may check conditions in only one of them. obstore contains delta-rs's client.
        """
        from obstore.store import from_url

        options: Any = self.delta_options()
        allow_http = options.pop("allow_http", "false") == "true"
        client = from_url(
            f"gs://{self._bucket}",
            config=options,
            client_options={"allow_http": allow_http},
            retry_config={"max_retries": 0},
        )

        def attempt() -> None:
            try:
                self._ranges.create(client, self._path(key).partition("/")[2], data)
            except RangeError as error:
                if error.status not in (400, 405, 501):
                    raise
                raise UnsupportedTargetError(
                    "the store does not create objects through Google's XML API, which Delta tables"
                    f" need: {self._scrub(error.text)}. Export into a Parquet folder or an Iceberg"
                    " table",
                    uri=self.uri(""),
                ) from None

        return self._create(key, data, attempt)

    def delta_options(self) -> dict[str, str]:
        """See `TargetStore.delta_options`."""
        filesystem = self._client.filesystem
        endpoint = str(filesystem._location).rstrip("/")  # noqa: SLF001
        if filesystem.credentials.credentials is None:
            if endpoint == _GOOGLE:
                return {"google_skip_signature": "true"}
            # All versions of delta-rs take the endpoint from a service account.
            account = {"gcs_base_url": endpoint, "disable_oauth": True}
            unused = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            return {
                "google_service_account_key": json.dumps({**account, **unused}),
                "allow_http": str(endpoint.startswith("http:")).lower(),
            }
        options = {} if endpoint == _GOOGLE else {"google_base_url": endpoint}
        return {**options, **self._login_options()}

    def _login_options(self) -> dict[str, str]:
        token = filesystem_arguments(self._url, self._storage.reveal()).get("token")
        if token in (None, "google_default", "cloud"):
            return {}  # delta-rs looks for the same default credentials
        with contextlib.suppress(OSError, ValueError):
            text = json.dumps(token) if isinstance(token, dict) else Path(str(token)).read_text()
            if json.loads(text).get("type") == "service_account":
                return {"google_service_account_key": text}
            if not isinstance(token, dict):
                return {"google_application_credentials": str(token)}
        raise self._unsupported(
            "this kind of Google credentials",
            "Give the file of a service account as token in storageOptions, or log in with `gcloud"
            " auth application-default login`",
        )

    def _retry_uploads(self, filesystem: Any) -> None:  # noqa: ANN401
        # Restore the method with retries, which the store replaced.
        vars(filesystem).pop("_request", None)

    def _find_copy(self, key: str) -> tuple[int, str | None] | None:
        self._check_key(key)
        try:
            found = self._request(lambda: self._call_uncached("info", self._path(key)), key)
        except ObjectNotFoundError:
            return None
        if found["type"] == "directory":
            return None
        return int(found["size"]), _origin(found.get("metadata"))


def _origin(metadata: Mapping[str, str] | None) -> str | None:
    """Returns the key in the metadata of an object. Returns `None` if there is no key."""
    names = {name.lower(): value for name, value in (metadata or {}).items()}
    return urllib.parse.unquote(names[_ORIGIN]) if _ORIGIN in names else None
