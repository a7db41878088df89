"""Errors of the source: the root `TieredKafkaError` and a class for each kind of failure.

An error can name the topic, partition, offset, object and byte position it concerns. Messages never
contain credentials: text of client libraries goes through `secret.scrub`.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Final, Self, TypedDict, Unpack

from kts_source.texts import printable


class Place(TypedDict, total=False):
    """Location in the log and in the store that an error concerns."""

    topic: str | None
    partition: int | None
    offset: int | None
    uri: str | None
    position: int | None


_LABELS: Final = {name: name for name in Place.__annotations__} | {
    "uri": "object",
    "position": "byte",
}


class TieredKafkaError(Exception):
    """Root of all errors of the source.

    Attributes:
        retriable: True if the same call may succeed later.
        message: The text without the location.
        topic: Topic, if known.
        partition: Partition number, if known.
        offset: Kafka offset, if known.
        uri: Object or folder, if known, without credentials.
        position: Byte position in that object, if known.
        span: Range of a segment whose bytes were wanted, if `SegmentSource.windows` raised it.
    """

    retriable: ClassVar[bool] = False
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    uri: str | None = None
    position: int | None = None
    span: object | None = None

    # Pickling and copying call this with `args` and then restore all attributes.
    def __init__(self, message: str, **place: Unpack[Place]) -> None:
        super().__init__(message)
        self.message = message
        vars(self).update(_checked(place))

    def __str__(self) -> str:
        facts = ((label, getattr(self, name)) for name, label in _LABELS.items())
        where = [f"{label} {value}" for label, value in facts if value is not None]
        # Object names come from other systems, and terminals and logs show this text.
        return printable(f"{self.message} [{', '.join(where)}]" if where else self.message)

    def located(self, **place: Unpack[Place]) -> Self:
        """Returns a copy that has these facts where this error has none."""
        return self._changed(self._missing(place))

    def extended(self, text: str) -> Self:
        """Returns a copy with more text at the end of the message."""
        return self._changed({"message": f"{self.message}{text}"})

    def in_span(self, span: object, **place: Unpack[Place]) -> Self:
        """Returns a located copy that also has the range that was being read."""
        return self._changed(self._missing(place) | {"span": span})

    def _missing(self, place: Place) -> dict[str, object]:
        facts = _checked(place).items()
        return {name: fact for name, fact in facts if getattr(self, name) is None}

    def _changed(self, attributes: dict[str, object]) -> Self:
        twin = copy.copy(self)
        vars(twin).update(attributes)
        # The copy is raised in place of this error: same cause, same traceback, no chain of both.
        twin.__cause__ = self.__cause__ if self.__suppress_context__ else self.__context__
        return twin.with_traceback(self.__traceback__)


def _checked(place: Place) -> Place:
    if unknown := place.keys() - _LABELS.keys():
        raise TypeError(f"an error has no {', '.join(sorted(unknown))}")
    return place


class InvalidOptionError(TieredKafkaError, ValueError):
    """An option is unknown, malformed or missing, or contradicts another one."""


class KeyPrefixError(InvalidOptionError):
    """A topic's folder name starts with text that should end the key prefix.

    Attributes:
        key_prefix: The corrected key prefix; empty if it is not known.
    """

    def __init__(self, message: str, *, key_prefix: str = "", **place: Unpack[Place]) -> None:
        super().__init__(message, **place)
        self.key_prefix = key_prefix


class TopicNotFoundError(TieredKafkaError, LookupError):
    """The tier has no data of a requested topic or partition."""


class TierNotFoundError(TieredKafkaError, FileNotFoundError):
    """No tier exists at the path and key prefix."""


class DataLossError(TieredKafkaError):
    """Offsets that the tier should hold are missing: a hole, or an object that was deleted."""


class OffsetOutOfRangeError(DataLossError):
    """Requested offsets or timestamps are outside the range that the tier holds."""


class UnsupportedSparkError(TieredKafkaError, ImportError):
    """PySpark is not installed, or older than 4.0, which has no Python data sources."""


class PlanTooLargeError(TieredKafkaError):
    """A plan exceeds the limits that the user set."""


class CorruptSegmentError(TieredKafkaError):
    """Bytes of a segment, an index or a manifest are not the bytes that were written."""


class InvalidValueError(TieredKafkaError, ValueError):
    """A key or value is not in the format that `key.format` or `value.format` names."""


class StoreError(TieredKafkaError):
    """A request to the object store failed.

    Attributes:
        attempts: One line for each failed attempt, oldest first, without credentials.
    """

    def __init__(
        self, message: str, *, attempts: tuple[str, ...] = (), **place: Unpack[Place]
    ) -> None:
        super().__init__(message, **place)
        self.attempts = attempts

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *self.attempts])


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """No object has this key. Some stores answer 403 instead if listing is not allowed."""


class StoreNotFoundError(StoreError, TierNotFoundError):
    """The bucket, container or root folder does not exist."""


class ObjectChangedError(StoreError):
    """The object is no longer the version that was planned."""


class ArchivedObjectError(StoreError):
    """An object is in a storage class that must be restored before it can be read."""


class TruncatedObjectError(StoreError):
    """The object ends before the end of the requested range."""


class ObjectTooLargeError(StoreError):
    """The object is larger than the caller's limit."""


class AccessDeniedError(StoreError, PermissionError):
    """The store denies access: credentials are missing, wrong or expired, or lack permission."""


class InvalidKeyError(StoreError, ValueError):
    """A key could point outside the root of the store."""


class StoreUnavailableError(StoreError):
    """All attempts failed through throttling, server errors, resets or timeouts."""

    retriable: ClassVar[bool] = True


class StreamOffsetError(TieredKafkaError):
    """This version cannot read a position of a checkpoint, or the options contradict it."""


class BrokerError(TieredKafkaError):
    """A broker refuses a request, is too old, or returns an unusable response."""


class BrokerAccessError(BrokerError):
    """The user is not authorized to describe or read a topic."""


class BrokerUnavailableError(BrokerError):
    """No broker returned a valid response within all attempts."""

    retriable: ClassVar[bool] = True


class LeaderChangedError(BrokerError):
    """The leader of a partition, or its log, changed while the partition was planned."""

    retriable: ClassVar[bool] = True


class OldBrokerError(BrokerError):
    """A broker before Kafka 4.0 would read its own tier and may return aborted records."""


class RegistryError(TieredKafkaError):
    """A schema registry returned an unusable response; the records are not at fault."""


class RegistryUnavailableError(RegistryError):
    """A schema registry did not respond, or was overloaded, in all attempts."""

    retriable: ClassVar[bool] = True


class ExportError(TieredKafkaError):
    """An export cannot start or continue."""


class RangeGapError(ExportError):
    """Offsets are missing between the committed ones and the next ones."""


class RangeOverlapError(ExportError):
    """Offsets to commit have been committed before."""


class CommitConflictError(ExportError):
    """Another export committed the same partitions first; nothing was committed."""


class FingerprintError(ExportError):
    """The table was created with other isolation, columns, transform or partitioning."""


class SchemaChangedError(ExportError):
    """The typed columns do not match the columns of the table."""


class TransformError(ExportError):
    """A transform failed, or its result cannot be written."""


class UnsupportedTargetError(ExportError):
    """The target does not support exactly-once exports."""
