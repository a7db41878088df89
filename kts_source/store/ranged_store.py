"""Clouds whose listings and look-ups come from fsspec's file systems, and whose ranges come from
obstore where it can read them (`obstore_ranges`).

obstore asks for a version, so a read is one request; by a file system it is two, see
`fsspec_store`.
"""

from __future__ import annotations

from abc import abstractmethod
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from kts_source.libraries import require
from kts_source.secret import Secret, scrub
from kts_source.store.fsspec_store import FsspecStore
from kts_source.store.obstore_ranges import ObstoreReader
from kts_source.store.range_reader import RangeError
from kts_source.store.range_settings import LeftToFsspecError
from kts_source.store.retry import DEFAULT_RETRY_POLICY, RetryPolicy
from kts_source.store.storage_options import extra_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.store.object_store import Data
    from kts_source.store.range_settings import RangeSettings


class RangedStore(FsspecStore):
    """A store of one of these clouds; a subclass says which."""

    # What people call a root there, and the library behind fsspec.
    _place: ClassVar[str]
    _library: ClassVar[str]
    # Of this package; it brings the library.
    _extra: ClassVar[str]
    # See `ObstoreReader`.
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
            f"the {self._place} {self._bucket}",
            self._library,
            self._settings,
            retry_policy,
            self._tally,
            by_generation=self._by_generation,
            doubted=self._doubted,
        )

    @property
    def remarks(self) -> tuple[str, ...]:  # type: ignore[override]  # a constant elsewhere
        """See `ObjectStore.remarks`."""
        return self._ranges.remarks

    def close(self) -> None:
        """See `ObjectStore.close`."""
        self._ranges.close()
        super().close()

    # -- what a subclass does

    @abstractmethod
    def _settings_of(self, filesystem: Any, arguments: Mapping[str, Any]) -> RangeSettings:  # noqa: ANN401
        """What obstore is told. Raises `LeftToFsspecError`."""

    @abstractmethod
    def _can_pin(self, version: str) -> bool:
        """Whether obstore can ask for this version."""

    # -- attempts

    def _settings(self) -> RangeSettings:
        if find_spec("obstore") is None:
            raise LeftToFsspecError("obstore is not installed")
        try:
            filesystem = self._client.filesystem
        except Exception:  # noqa: BLE001  # it says so itself when it is asked for something
            raise LeftToFsspecError(f"{self._library} cannot be opened") from None
        return self._settings_of(filesystem, extra_arguments(self._storage.reveal()))

    def _read(self, key: str, start: int, stop: int, version: str | None) -> Data:
        def by_filesystem() -> Data:
            return super(RangedStore, self)._read(key, start, stop, version)

        if version is not None and not self._can_pin(version):
            return by_filesystem()
        path = self._path(key).partition("/")[2]
        return self._ranges.read_or(by_filesystem, path, start, stop, version, uri=self.uri(key))

    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        if not isinstance(error, RangeError):
            return super()._failure(error, key, listing=listing)
        return error.status or 503, scrub(error.text, self._secret_values.reveal())
