"""The exceptions of the source: one root, `TieredKafkaError`, and a class per kind of failure.

Errors may carry topic, partition, offset, object and byte position. The layer that knows one of
them adds it with `located`. Texts never have credentials: messages of client libraries pass
`secret.scrub`.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Final, Self, TypedDict, Unpack

from kts_source.texts import printable


class Place(TypedDict, total=False):
    """The location that an error concerns."""

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
        span: Range of a segment that was being read, if `SegmentSource.windows` raised the error.
    """

    retriable: ClassVar[bool] = False
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    uri: str | None = None
    position: int | None = None
    span: object | None = None

    # Unpickling calls this with `args`, then restores all attributes.
    def __init__(self, message: str, **location: Unpack[Place]) -> None:
        super().__init__(message)
        self.message = message
        vars(self).update(_checked(location))

    def __str__(self) -> str:
        facts = ((label, getattr(self, name)) for name, label in _LABELS.items())
        where = [f"{label} {value}" for label, value in facts if value is not None]
        # Object names come from other systems, and terminals and logs show this text.
        return printable(f"{self.message} [{', '.join(where)}]" if where else self.message)

    def located(self, **location: Unpack[Place]) -> Self:
        """Returns a copy in which missing facts of the location are set to these."""
        return self._changed(self._missing(location))

    def extended(self, text: str) -> Self:
        """Returns a copy with more text at the end of the message."""
        return self._changed({"message": f"{self.message}{text}"})

    def in_span(self, span: object, **location: Unpack[Place]) -> Self:
        """Returns a copy with the location, as `located` does, and with the range of the read."""
        return self._changed(self._missing(location) | {"span": span})

    def _missing(self, location: Place) -> dict[str, object]:
        facts = _checked(location).items()
        return {name: fact for name, fact in facts if getattr(self, name) is None}

    def _changed(self, attributes: dict[str, object]) -> Self:
        twin = copy.copy(self)
        vars(twin).update(attributes)
        # The copy is raised in place of this error: same cause, same traceback, no chain of both.
        twin.__cause__ = self.__cause__ if self.__suppress_context__ else self.__context__
        return twin.with_traceback(self.__traceback__)


def _checked(location: Place) -> Place:
    if unknown := location.keys() - _LABELS.keys():
        raise TypeError(f"an error has no {', '.join(sorted(unknown))}")
    return location


class InvalidOptionError(TieredKafkaError, ValueError):
    """An option is unknown, malformed or missing, or contradicts another one."""


class KeyPrefixError(InvalidOptionError):
    """The key prefix is too short: names of topic folders begin with the rest of it.

    Attributes:
        key_prefix: The correct key prefix; empty if unknown.
    """

    def __init__(self, message: str, *, key_prefix: str = "", **location: Unpack[Place]) -> None:
        super().__init__(message, **location)
        self.key_prefix = key_prefix


class TopicNotFoundError(TieredKafkaError, LookupError):
    """A requested topic or partition has no data in the tier."""


class TierNotFoundError(TieredKafkaError, FileNotFoundError):
    """There is no tier at the path and key prefix."""


class DataLossError(TieredKafkaError):
    """Offsets that the tier should have are missing, for example deleted by retention."""


class OffsetOutOfRangeError(DataLossError):
    """Requested offsets or timestamps are outside the range that the tier has."""


class UnsupportedSparkError(TieredKafkaError, ImportError):
    """Spark is missing, or has no Python data sources (before 4.0)."""


class PlanTooLargeError(TieredKafkaError):
    """The plan exceeds `maxPlanBytes` or `maxPlanRequests`."""


class CorruptSegmentError(TieredKafkaError):
    """A segment, an index or a manifest is damaged."""


class InvalidValueError(TieredKafkaError, ValueError):
    """A key or value does not match `key.format` or `value.format`."""


class StoreError(TieredKafkaError):
    """A request to the object store failed.

    Attributes:
        attempts: One line per earlier failed attempt, oldest first, free of credentials.
    """

    def __init__(
        self, message: str, *, attempts: tuple[str, ...] = (), **location: Unpack[Place]
    ) -> None:
        super().__init__(message, **location)
        self.attempts = attempts

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *self.attempts])


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """The object does not exist. Some stores answer 403 instead if listing is not allowed."""


class StoreNotFoundError(StoreError, TierNotFoundError):
    """The bucket, container or root folder does not exist."""


class ObjectChangedError(StoreError):
    """The object is no longer the version that was planned."""


class ArchivedObjectError(StoreError):
    """Objects are in a storage class that must be restored before they can be read."""


class TruncatedObjectError(StoreError):
    """The object ends before the requested range."""


class ObjectTooLargeError(StoreError):
    """The object is larger than the caller accepts."""


class AccessDeniedError(StoreError, PermissionError):
    """Credentials are missing, wrong or expired, or do not allow access to the object."""


class InvalidKeyError(StoreError, ValueError):
    """A key points outside the store's root."""


class StoreUnavailableError(StoreError):
    """All attempts failed: throttling, server errors, resets, timeouts or short responses."""

    retriable: ClassVar[bool] = True


class StreamOffsetError(TieredKafkaError):
    """A position in a checkpoint is unreadable for this version, or contradicts options."""


class BrokerError(TieredKafkaError):
    """A broker refuses a request, is too old, or returns an invalid response."""


class BrokerAccessError(BrokerError):
    """The user may not describe or read a topic."""


class BrokerUnavailableError(BrokerError):
    """No broker answered, in spite of retries."""

    retriable: ClassVar[bool] = True


class LeaderChangedError(BrokerError):
    """The leader of a partition changed while the partition was planned."""

    retriable: ClassVar[bool] = True


class OldBrokerError(BrokerError):
    """A broker before Kafka 4.0 would read its tier and might return aborted records."""


class RegistryError(TieredKafkaError):
    """A schema registry returned an error or an invalid response; the rows may be valid."""


class RegistryUnavailableError(RegistryError):
    """A schema registry did not answer, in spite of retries."""

    retriable: ClassVar[bool] = True


class ExportError(TieredKafkaError):
    """An export cannot start or continue."""


class RangeGapError(ExportError):
    """Offsets are missing between the committed ones and the next commit."""


class RangeOverlapError(ExportError):
    """Offsets of the next commit are already committed."""


class CommitConflictError(ExportError):
    """Another export committed the same partitions first; nothing was committed."""


class FingerprintError(ExportError):
    """The table was created with other settings (isolation, columns, transform, partitioning)."""


class SchemaChangedError(ExportError):
    """Typed columns do not match the columns of the target table."""


class TransformError(ExportError):
    """A transform failed, or returned an invalid result."""


class UnsupportedTargetError(ExportError):
    """The target cannot guarantee exactly-once writes."""
