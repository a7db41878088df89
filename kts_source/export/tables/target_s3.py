"""A prefix of an S3 bucket as the target of an export.

Commits depend on `PutObject` with `If-None-Match: *`. A store that ignores the condition would let
two exports commit the same offsets, so `require_create` probes it before anything is written.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from kts_source.errors import ExportError, ObjectChangedError, ObjectNotFoundError
from kts_source.export.tables.target_store import TargetStore, require_published
from kts_source.store.s3_store import S3Store

UPLOAD_PART_BYTES: Final = 8 << 20
_UPLOAD_ATTEMPTS: Final = 5
_COPY_OF: Final = "kts-copy-of"


class S3Target(S3Store, TargetStore):
    """Readable and writable objects of a bucket below a prefix."""

    def create(self, key: str, data: bytes) -> bool:
        """See `TargetStore.create`."""
        try:
            self._send("put_object", key, Body=data, IfNoneMatch="*")
        except ObjectChangedError:
            # If the response was lost, the repeated request finds its own first attempt.
            return self.read(key) == data
        return True

    def open_output(self, key: str) -> Any:  # noqa: ANN401
        """See `TargetStore.open_output`; a multipart upload, complete once it is closed."""
        filesystem = self._client.filesystem
        # Parts of an upload do not pass through our own retry loop.
        filesystem.retries = _UPLOAD_ATTEMPTS
        return filesystem.open(self._path(key), "wb", block_size=UPLOAD_PART_BYTES)

    def publish(self, source: str, destination: str, size: int) -> None:
        """See `TargetStore.publish`; copies on the server, then deletes the source.

        The metadata of the copy names its source, which is unique to one attempt, so an equal name
        means equal content. ETags of copies and uploads differ, so they prove nothing.
        """
        copy = self._head(destination)
        if copy is None:
            self._copy(source, destination)
            copy = self._head(destination)
        length = None if copy is None else int(copy["ContentLength"])
        require_published(length, size, self.uri(source), self.uri(destination))
        if copy is not None and copy.get("Metadata", {}).get(_COPY_OF) != source:
            raise ExportError(
                f"an object that is not a copy of {self.uri(source)} has the name of a committed"
                " file. Move it away and run again",
                uri=self.uri(destination),
            )
        self.delete(source)

    def delete(self, key: str) -> None:
        """See `TargetStore.delete`."""
        self._send("delete_object", key)

    def _copy(self, source: str, destination: str) -> None:
        """Does nothing without the source: another process published it, or it is lost."""

        def attempt() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._client.filesystem.cp_file(
                    self._path(source),
                    self._path(destination),
                    MetadataDirective="REPLACE",
                    Metadata={_COPY_OF: source},
                )

        self._request(attempt, source)

    def _head(self, key: str) -> Any:  # noqa: ANN401  # the response of botocore
        try:
            return self._send("head_object", key)
        except ObjectNotFoundError:
            return None

    def _send(self, method: str, key: str, **arguments: Any) -> Any:  # noqa: ANN401
        self._check_key(key)
        arguments["Key"] = self._prefix + key
        return self._request(lambda: self._answer(method, arguments), key)

    def _path(self, key: str) -> str:
        self._check_key(key)
        return f"{self._bucket}/{self._prefix}{key}"
