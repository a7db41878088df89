"""The exceptions of the package: the base class `TieredKafkaError`, and a class for each kind of
failure.

Errors may contain topic, partition, offset, object and byte position. The layer that knows one of
these adds it with `located`. Error texts contain no credentials, because `secret.scrub` removes
them from the messages of client libraries.
"""

from __future__ import annotations

import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypedDict, Unpack

from kts_source.texts import printable

if TYPE_CHECKING:
    from collections.abc import Mapping


class ErrorLocation(TypedDict, total=False):
    """The location of an error."""

    topic: str | None
    partition: int | None
    offset: int | None
    uri: str | None
    position: int | None


_LABELS: Final = {name: name for name in ErrorLocation.__annotations__} | {
    "uri": "object",
    "position": "byte",
}


class TieredKafkaError(Exception):
    """Base class of all errors of the package.

    Attributes:
        retriable: True if the same call may succeed when it is repeated later.
        message: The error text without advice and location.
        advice: Advice for scans, which other callers leave out. It follows the message in the text.
        topic: Topic, if known.
        partition: Partition number, if known.
        offset: Kafka offset of the record, if known.
        uri: URI of the object or folder, if known, without credentials.
        position: Byte position in that object, if known.
        span: The range of a segment that was being read when the error occurred; `None` if unknown.
    """

    retriable: ClassVar[bool] = False
    advice: str = ""
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    uri: str | None = None
    position: int | None = None
    span: object | None = None

    # Unpickling calls `__init__` with `args`, and then restores all attributes.
    def __init__(self, message: str, **location: Unpack[ErrorLocation]) -> None:
        super().__init__(message)
        self.message = message
        vars(self).update(_checked(location))

    def __str__(self) -> str:
        facts = ((label, getattr(self, name)) for name, label in _LABELS.items())
        where = [f"{label} {value}" for label, value in facts if value is not None]
        # Control characters are escaped, because object names come from other systems, and
        # terminals and logs show this text.
        text = f"{self.message}{self.advice}"
        return printable(f"{text} [{', '.join(where)}]" if where else text)

    def located(self, **location: Unpack[ErrorLocation]) -> Self:
        """Returns a copy of the error with a location. Keeps those parts of the location that the
        error already has.
        """
        return self._changed(self._missing(location))

    def extended(self, text: str) -> Self:
        """Returns a copy of the error with `text` appended to its message."""
        return self._changed({"message": f"{self.message}{text}"})

    def advising(self, text: str) -> Self:
        """Returns a copy of the error with the attribute `advice`."""
        return self._changed({"advice": text})

    def in_span(self, span: object, **location: Unpack[ErrorLocation]) -> Self:
        """Returns a copy of the error with the attribute `span`. Keeps an existing `span`."""
        return self._changed(self._missing(location) | {"span": span})

    def _missing(self, location: ErrorLocation) -> dict[str, object]:
        facts = _checked(location).items()
        return {name: fact for name, fact in facts if getattr(self, name) is None}

    def _changed(self, attributes: dict[str, object]) -> Self:
        twin = copy.copy(self)
        vars(twin).update(attributes)
        # The copy replaces this error, so it gets the same cause and traceback and is not chained
        # to it.
        twin.__cause__ = self.__cause__ if self.__suppress_context__ else self.__context__
        return twin.with_traceback(self.__traceback__)


def _checked(location: ErrorLocation) -> ErrorLocation:
    if unknown := location.keys() - _LABELS.keys():
        raise TypeError(f"the location of an error cannot have {', '.join(sorted(unknown))}")
    return location


class InvalidOptionError(TieredKafkaError, ValueError):
    """An option is unknown, malformed, missing, or contradicts another option."""


class KeyPrefixError(InvalidOptionError):
    """Option `keyPrefix` contains only the start of the tier's key prefix. Its missing end would be
    read as the start of every topic name.

    Attributes:
        key_prefix: The tier's complete key prefix; empty if unknown.
    """

    def __init__(
        self, message: str, *, key_prefix: str = "", **location: Unpack[ErrorLocation]
    ) -> None:
        super().__init__(message, **location)
        self.key_prefix = key_prefix


class TopicNotFoundError(TieredKafkaError, LookupError):
    """A requested topic or partition has no data in the tier.

    Attributes:
        may_have_expired: True if the tier has other topics but none of the requested ones, as after
            retention has deleted their last segments.
    """

    def __init__(
        self, message: str, *, may_have_expired: bool = False, **location: Unpack[ErrorLocation]
    ) -> None:
        super().__init__(message, **location)
        self.may_have_expired = may_have_expired


class TierNotFoundError(TieredKafkaError, FileNotFoundError):
    """There is no tier at the path and key prefix."""


class DataLossError(TieredKafkaError):
    """Offsets that the tier should have are missing. For example, retention deleted them.

    Attributes:
        is_hole: True if the missing offsets are a gap between the segments of a log.
    """

    def __init__(
        self, message: str, *, is_hole: bool = False, **location: Unpack[ErrorLocation]
    ) -> None:
        super().__init__(message, **location)
        self.is_hole = is_hole


class OffsetOutOfRangeError(DataLossError):
    """Requested offsets or timestamps are outside the range of the tier.

    Attributes:
        is_start_time: True if the starting timestamp is after the newest record, so that no offset
            is missing.
    """

    def __init__(
        self, message: str, *, is_start_time: bool = False, **location: Unpack[ErrorLocation]
    ) -> None:
        super().__init__(message, **location)
        self.is_start_time = is_start_time


class MissingExtraError(TieredKafkaError, ImportError):
    """A package that the requested feature needs is not installed."""


class UnsupportedSparkError(TieredKafkaError, ImportError):
    """The version of Spark is below 4.0. Older versions do not support Python data sources."""


class WorkerMemoryError(TieredKafkaError, MemoryError):
    """A Python worker of Spark reached the limit of its address space."""


class WorkerStartError(TieredKafkaError):
    """No worker process of an export or audit could start."""


class WorkerDiedError(TieredKafkaError):
    """A worker process of an export or audit died."""

    retriable: ClassVar[bool] = True


class PlanTooLargeError(TieredKafkaError):
    """The plan exceeds `maxPlanBytes` or `maxPlanRequests`."""


class CorruptSegmentError(TieredKafkaError):
    """A segment, an index or a manifest is damaged."""


class UnknownKeyError(CorruptSegmentError):
    """The private key of an encrypted segment is missing, or is the wrong one."""


class InvalidValueError(TieredKafkaError, ValueError):
    """A key or value does not match `key.format` or `value.format`.

    Attributes:
        fault: The part of the message before the advice. An export appends other advice than a
            scan.
    """

    def __init__(self, message: str, *, fault: str = "", **location: Unpack[ErrorLocation]) -> None:
        super().__init__(message, **location)
        self.fault = fault


class StoreError(TieredKafkaError):
    """A request to the object store failed.

    Attributes:
        attempts: One line for each failed attempt, oldest first, without credentials; empty if all
            attempts failed for one reason.
    """

    def __init__(
        self, message: str, *, attempts: tuple[str, ...] = (), **location: Unpack[ErrorLocation]
    ) -> None:
        super().__init__(message, **location)
        self.attempts = attempts

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *self.attempts])


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """The object does not exist. If the user may not list objects, some stores return 403 for a
    missing object, which raises `AccessDeniedError` instead.
    """


class StoreNotFoundError(StoreError, TierNotFoundError):
    """The bucket, container or root folder does not exist."""


class ObjectChangedError(StoreError):
    """The version of the object differs from the version in the plan."""


class ArchivedObjectError(StoreError):
    """Objects are in a storage class that must be restored before they can be read."""


class TruncatedObjectError(StoreError):
    """The object ends before the end of the requested range."""


class ObjectTooLargeError(StoreError):
    """The object is larger than the maximum size that the caller accepts."""


class AccessDeniedError(StoreError, PermissionError):
    """Credentials are missing, wrong or expired, or do not allow access to the object."""


class InvalidKeyError(StoreError, ValueError):
    """An object key refers to a location outside the root of the store."""


class StoreUnavailableError(StoreError):
    """All attempts failed because of throttling, server errors, connection resets, timeouts or
    truncated responses.
    """

    retriable: ClassVar[bool] = True


class StreamOffsetError(TieredKafkaError):
    """A position in a stream's checkpoint has a format that this version cannot read, or does not
    fit the options.
    """


class BrokerError(TieredKafkaError):
    """A broker refuses a request, is too old, or sends an invalid response."""


class BrokerAccessError(BrokerError):
    """The user lacks permissions in the cluster, such as Describe and Read on a topic."""


class BrokerUnavailableError(BrokerError):
    """No broker answered, although requests were retried."""

    retriable: ClassVar[bool] = True


class LeaderChangedError(BrokerError):
    """The leader of a partition changed while the partition was planned or read."""

    retriable: ClassVar[bool] = True


class OldBrokerError(BrokerError):
    """A broker before Kafka 4.0 would have to read the records from its tier. In this case, it
    might return records of aborted transactions.
    """


class RegistryError(TieredKafkaError):
    """A schema registry returned an error or an invalid response. The rows may be valid."""


class RegistryUnavailableError(RegistryError):
    """A schema registry did not answer, although requests were retried."""

    retriable: ClassVar[bool] = True


class ExportError(TieredKafkaError):
    """An export cannot start or continue."""


class RangeGapError(ExportError):
    """Offsets between the committed offsets and the next commit are missing.

    Attributes:
        is_deleted: True if the tier no longer has these offsets, False if they were not requested.
    """

    def __init__(
        self, message: str, *, is_deleted: bool = False, **location: Unpack[ErrorLocation]
    ) -> None:
        super().__init__(message, **location)
        self.is_deleted = is_deleted


class RangeOverlapError(ExportError):
    """Offsets of the next commit are already committed."""


class CommitConflictError(ExportError):
    """Another export committed offsets of the same partitions first. This export committed
    nothing.
    """

    retriable: ClassVar[bool] = True


class FingerprintError(ExportError):
    """The table was created with other settings (isolation level, columns, transform or
    partitioning).
    """


class SchemaChangedError(ExportError):
    """Decoded columns do not match the columns of the target table."""


class TransformError(ExportError):
    """A transform failed, or returned an invalid result."""


class RejectedRowsError(ExportError):
    """More records of a commit were rejected than `max_rejected` allows. The commit was not made.

    Attributes:
        records: Number of all records of the commit.
    """

    def __init__(
        self,
        message: str,
        *,
        rejected: int = 0,
        records: int = 0,
        **location: Unpack[ErrorLocation],
    ) -> None:
        super().__init__(message, **location)
        self.rejected = rejected
        self.records = records


class TopicsFailedError(ExportError):
    """An export with a table per topic failed for some topics. It succeeded for the others.

    Attributes:
        errors: The error of each topic that failed, by topic.
        targets: The target of each topic that failed, by topic.
        report: `BackfillReport` of the topics that succeeded. After a dry run, it also has the
            topics of which too many sampled records would be rejected.
    """

    def __init__(
        self,
        message: str,
        *,
        errors: Mapping[str, Exception] = MappingProxyType({}),
        targets: Mapping[str, str] = MappingProxyType({}),
        report: object = None,
        **location: Unpack[ErrorLocation],
    ) -> None:
        super().__init__(message, **location)
        self.errors = dict(errors)
        self.targets = dict(targets)
        self.report = report
        vars(self)["retriable"] = all(
            isinstance(error, TieredKafkaError) and error.retriable for error in errors.values()
        )


class UnsupportedTargetError(ExportError):
    """The target cannot guarantee exactly-once writes."""
