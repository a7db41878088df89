"""A bucket's prefix as an export's target.

Commits rest on `PutObject` with `If-None-Match: *`. A store that ignores the condition would let
two exports commit the same thing, so it is tried out before anything is written.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

from kts_source.errors import (
    AccessDeniedError,
    ExportError,
    InvalidOptionError,
    ObjectNotFoundError,
    StoreError,
    UnsupportedTargetError,
)
from kts_source.export.tables.target_store import TargetObject, require_published
from kts_source.secret import Secret, scrub
from kts_source.store.object_store import check_key
from kts_source.store.storage_options import s3_arguments, secret_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

UPLOAD_PART_BYTES = 8 << 20
_CREATE_ATTEMPTS = 5
_COPY_OF = "kts-copy-of"


class S3Target:
    """Objects of a bucket below a prefix. Retries of single requests are s3fs's own."""

    def __init__(self, bucket: str, prefix: str, storage: Secret[Mapping[str, str]]) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._storage = storage
        self._hidden = Secret(secret_values(storage.reveal()))
        self._opened: Any = None

    def __repr__(self) -> str:
        return f"S3Target({self.uri('')!r})"

    @classmethod
    def from_url(cls, url: str, storage: Secret[Mapping[str, str]]) -> S3Target:
        """The target of `s3://bucket[/prefix]`.

        Raises:
            InvalidOptionError: The URL names no bucket.
        """
        bucket, _, prefix = url.partition("://")[2].partition("/")
        if not bucket:
            raise InvalidOptionError(f"{url} names no bucket; write s3://bucket/prefix")
        prefix = prefix.strip("/")
        check_key(prefix, f"s3://{bucket}/", absolute=True)
        return cls(bucket, f"{prefix}/" if prefix else "", storage)

    def uri(self, key: str) -> str:
        """See `TargetStore.uri`."""
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def require_create(self) -> None:
        """See `TargetStore.require_create`."""
        probe = f"_kts/probe-{uuid.uuid4().hex}"
        try:
            if not self.create(probe, b"1") or self.create(probe, b"2"):
                raise UnsupportedTargetError(
                    f"{self.uri('')} ignores If-None-Match: two exports at once could commit the"
                    " same offsets. Export to a Delta or Iceberg table, or to another store"
                )
        finally:
            self.delete(probe)

    def create(self, key: str, data: bytes) -> bool:
        """See `TargetStore.create`."""
        for attempt in range(_CREATE_ATTEMPTS):
            error = self._put_if_absent(key, data)
            if error is None:
                return True
            status = _status(error)
            if status == 412:
                # A repeated request meets its own first try when that one's answer was lost.
                return self.read(key) == data
            if status != 409 or attempt == _CREATE_ATTEMPTS - 1:
                raise self._translated(error, key) from None
        raise AssertionError("unreachable")

    def _put_if_absent(self, key: str, data: bytes) -> Exception | None:
        try:
            self._filesystem.call_s3(
                "put_object",
                Bucket=self._bucket,
                Key=self._prefix + key,
                Body=data,
                IfNoneMatch="*",
            )
        except Exception as error:  # noqa: BLE001  # told apart by the caller
            return error
        return None

    def open_output(self, key: str) -> Any:  # noqa: ANN401
        """See `TargetStore.open_output`: a multipart upload, complete when closed."""
        return self._try(
            key, lambda: self._filesystem.open(self._path(key), "wb", block_size=UPLOAD_PART_BYTES)
        )

    def read(self, key: str) -> bytes:
        """See `TargetStore.read`."""
        data: bytes = self._try(key, lambda: self._filesystem.cat_file(self._path(key)))
        return data

    def publish(self, source: str, destination: str, size: int) -> None:
        """See `TargetStore.publish`: a server-side copy, then the first name goes.

        The copy names its source, which is unique to one attempt: so the same name is the same
        content. Entity tags do not tell, since those of copies are other than those of uploads.
        """
        found = self._head(destination)
        if found is None:
            # Not found: published by somebody else meanwhile, or lost; the copy tells.
            with contextlib.suppress(ObjectNotFoundError):
                self._try(
                    source,
                    lambda: self._filesystem.cp_file(
                        self._path(source),
                        self._path(destination),
                        MetadataDirective="REPLACE",
                        Metadata={_COPY_OF: source},
                    ),
                )
            found = self._head(destination)
        length = None if found is None else int(found["ContentLength"])
        require_published(length, size, self.uri(source), self.uri(destination))
        if found is not None and found.get("Metadata", {}).get(_COPY_OF) != source:
            raise ExportError(
                f"the name of a committed file is taken by an object that is no copy of"
                f" {self.uri(source)}. Move it away and run again; if an earlier version of this"
                " package was stopped while it published, run that version once instead",
                uri=self.uri(destination),
            )
        self.delete(source)

    def list_objects(self, prefix: str) -> Iterator[TargetObject]:
        """See `TargetStore.list_objects`."""
        found = self._try(prefix, lambda: self._filesystem.find(self._path(prefix), detail=True))
        cut = len(self._bucket) + 1 + len(self._prefix)
        for path, entry in sorted(found.items()):
            modified = entry.get("LastModified")
            modified_ms = 0 if modified is None else round(modified.timestamp() * 1000)
            yield TargetObject(path[cut:], entry["size"], modified_ms)

    def delete(self, key: str) -> None:
        """See `TargetStore.delete`."""
        self._try(
            key,
            lambda: self._filesystem.call_s3(
                "delete_object", Bucket=self._bucket, Key=self._prefix + key
            ),
        )

    def close(self) -> None:
        """Closes the connections."""
        opened, self._opened = self._opened, None
        if opened is not None:
            from fsspec.asyn import sync

            creator = getattr(opened, "_s3creator", None)
            if creator is not None:
                sync(opened.loop, creator.__aexit__, None, None, None)

    def _head(self, key: str) -> Any:  # noqa: ANN401  # botocore's answer; `None` = no such object
        try:
            return self._try(
                key,
                lambda: self._filesystem.call_s3(
                    "head_object", Bucket=self._bucket, Key=self._prefix + key
                ),
            )
        except ObjectNotFoundError:
            return None

    @property
    def _filesystem(self) -> Any:  # noqa: ANN401  # s3fs ships no types
        if self._opened is None:
            import s3fs

            self._opened = s3fs.S3FileSystem(
                **s3_arguments(self._storage.reveal()), skip_instance_cache=True
            )
        return self._opened

    def _path(self, key: str) -> str:
        check_key(key, self.uri(""), absolute=True)
        return f"{self._bucket}/{self._prefix}{key}"

    def _try(self, key: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        try:
            return call()
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._translated(error, key) from None

    def _translated(self, error: Exception, key: str) -> StoreError:
        text = scrub(f"{type(error).__name__}: {error}", self._hidden.reveal())
        if isinstance(error, FileNotFoundError) or _status(error) == 404:
            return ObjectNotFoundError(f"no such object: {text}", uri=self.uri(key))
        if isinstance(error, PermissionError) or _status(error) in (401, 403):
            return AccessDeniedError(f"access denied: {text}", uri=self.uri(key))
        return StoreError(f"the S3 client failed: {text}", uri=self.uri(key))


def _status(error: Exception) -> int:
    """The HTTP status behind an error of s3fs, 0 when there is none."""
    for candidate in (error, error.__cause__):
        response = getattr(candidate, "response", None)
        if isinstance(response, dict):
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return 0
