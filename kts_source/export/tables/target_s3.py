"""A bucket's prefix as an export's target.

Commits rest on `PutObject` with `If-None-Match: *`. A store that ignores the condition would let
two exports commit the same thing, so it is tried out before anything is written.
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
    """Objects of a bucket below a prefix, to write too."""

    def create(self, key: str, data: bytes) -> bool:
        """See `TargetStore.create`."""
        try:
            self._send("put_object", key, Body=data, IfNoneMatch="*")
        except ObjectChangedError:
            # A repeated request meets its own first try when that one's answer was lost.
            return self.read(key) == data
        return True

    def open_output(self, key: str) -> Any:  # noqa: ANN401
        """See `TargetStore.open_output`: a multipart upload, complete when closed."""
        filesystem = self._client.filesystem
        # The parts of an upload do not pass our own retry loop.
        filesystem.retries = _UPLOAD_ATTEMPTS
        return filesystem.open(self._path(key), "wb", block_size=UPLOAD_PART_BYTES)

    def publish(self, source: str, destination: str, size: int) -> None:
        """See `TargetStore.publish`: a server-side copy, then the first name goes.

        The copy names its source, which is unique to one attempt: so the same name is the same
        content. Entity tags do not tell, since those of copies are other than those of uploads.
        """
        found = self._head(destination)
        if found is None:
            self._copy(source, destination)
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

    def delete(self, key: str) -> None:
        """See `TargetStore.delete`."""
        self._send("delete_object", key)

    def _copy(self, source: str, destination: str) -> None:
        """Does nothing where the source is gone: then somebody else published it, or it is lost."""

        def attempt() -> None:
            # One that is not there is no failure.
            with contextlib.suppress(FileNotFoundError):
                self._client.filesystem.cp_file(
                    self._path(source),
                    self._path(destination),
                    MetadataDirective="REPLACE",
                    Metadata={_COPY_OF: source},
                )

        self._request(attempt, source)

    def _head(self, key: str) -> Any:  # noqa: ANN401  # botocore's answer; `None` = no such object
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
