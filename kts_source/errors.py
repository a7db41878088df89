"""What can go wrong between an option and a row: one root, `TieredKafkaError`, a class per kind.

Every error may carry the place it concerns (topic, partition, offset, object, byte position); the
layer that knows a fact adds it with `located`. Texts never hold a credential: what comes from a
client library passes `secret.scrub`.
"""

from __future__ import annotations

from typing import ClassVar, Final, Self, TypedDict, Unpack

from kts_source.texts import printable


class Place(TypedDict, total=False):
    """What an error concerns."""

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
        retriable: Whether the same call, made again later, stands a chance.
        message: The text without the place.
        topic: Topic concerned, where one is known.
        partition: Partition number, where one is known.
        offset: Kafka offset, where one is known.
        uri: Object or folder concerned, free of credentials.
        position: Byte position in that object, where one is known.
    """

    retriable: ClassVar[bool] = False
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    uri: str | None = None
    position: int | None = None

    # Pickling calls this with `args`, and then restores all attributes.
    def __init__(self, message: str, **place: Unpack[Place]) -> None:
        super().__init__(message)
        self.message = message
        self.located(**place)

    def __str__(self) -> str:
        facts = ((label, getattr(self, name)) for name, label in _LABELS.items())
        where = [f"{label} {value}" for label, value in facts if value is not None]
        # Names of objects come from strangers, and terminals and logs show this text.
        return printable(f"{self.message} [{', '.join(where)}]" if where else self.message)

    def located(self, **place: Unpack[Place]) -> Self:
        """The same error with the facts that were still unknown filled in; known ones stay."""
        if unknown := place.keys() - _LABELS.keys():
            raise TypeError(f"an error has no {', '.join(sorted(unknown))}")
        for name, value in place.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self


class InvalidOptionError(TieredKafkaError, ValueError):
    """An option that is unknown, malformed, missing, or contradicts another."""


class KeyPrefixError(InvalidOptionError):
    """A topic whose folder's name begins with what should be the end of the key prefix.

    Attributes:
        key_prefix: The one that is meant; empty where it is not known.
    """

    def __init__(self, message: str, *, key_prefix: str = "", **place: Unpack[Place]) -> None:
        super().__init__(message, **place)
        self.key_prefix = key_prefix


class TopicNotFoundError(TieredKafkaError, LookupError):
    """A topic or partition that was asked for and has nothing in the tier."""


class TierNotFoundError(TieredKafkaError, FileNotFoundError):
    """No tier where the path and the key prefix point."""


class DataLossError(TieredKafkaError):
    """Offsets the tier should hold and does not: a hole, or an object that retention took away."""


class OffsetOutOfRangeError(DataLossError):
    """Offsets or timestamps asked for that lie outside what the tier holds."""


class UnsupportedSparkError(TieredKafkaError, ImportError):
    """A Spark without Python data sources (before 4.0), or none at all, where one is needed."""


class PlanTooLargeError(TieredKafkaError):
    """A plan above the limits that the user set."""


class CorruptSegmentError(TieredKafkaError):
    """Bytes of a segment, an index or a manifest that are not what was written."""


class InvalidValueError(TieredKafkaError, ValueError):
    """A key or a value that is not what option `key.format` or `value.format` says."""


class StoreError(TieredKafkaError):
    """A store that did not give what was asked for.

    Attributes:
        attempts: One line per attempt that failed before this error, oldest first, free of
            credentials.
    """

    def __init__(
        self, message: str, *, attempts: tuple[str, ...] = (), **place: Unpack[Place]
    ) -> None:
        super().__init__(message, **place)
        self.attempts = attempts

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *self.attempts])


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """No object of that key. Where listing is not allowed, some stores answer 403 instead."""


class StoreNotFoundError(StoreError, TierNotFoundError):
    """The bucket, container or root folder itself does not exist."""


class ObjectChangedError(StoreError):
    """The object is no longer the version that was planned."""


class ArchivedObjectError(StoreError):
    """Objects in a storage class that must be restored before they can be read."""


class TruncatedObjectError(StoreError):
    """The object ends before the range that was asked for."""


class ObjectTooLargeError(StoreError):
    """The object is larger than what the caller is ready to hold."""


class AccessDeniedError(StoreError, PermissionError):
    """The store refuses: no, wrong or expired credentials, or no right to this object."""


class InvalidKeyError(StoreError, ValueError):
    """A key that could leave the store's root."""


class StoreUnavailableError(StoreError):
    """Throttling, server errors, resets, time-outs or short answers outlasted every attempt."""

    retriable: ClassVar[bool] = True


class StreamOffsetError(TieredKafkaError):
    """A position in a checkpoint that this version cannot read, or that options contradict."""


class BrokerError(TieredKafkaError):
    """A broker that refuses, is too old, or answers what cannot be used."""


class BrokerAccessError(BrokerError):
    """Brokers do not let the user describe or read a topic."""


class BrokerUnavailableError(BrokerError):
    """No broker gave a proper answer, however often it was asked."""

    retriable: ClassVar[bool] = True


class LeaderChangedError(BrokerError):
    """The leader of a partition, or what it has, changed while it was being planned."""

    retriable: ClassVar[bool] = True


class OldBrokerError(BrokerError):
    """A broker before Kafka 4.0 would have to read its tier, and may return aborted rows there."""


class RegistryError(TieredKafkaError):
    """A schema registry that does not answer as it should; the rows are not to blame."""


class RegistryUnavailableError(RegistryError):
    """A schema registry that does not answer, or only that it cannot now, however often asked."""

    retriable: ClassVar[bool] = True


class ExportError(TieredKafkaError):
    """An export that cannot begin or go on."""


class RangeGapError(ExportError):
    """Offsets between what is committed and what would be committed next are missing."""


class RangeOverlapError(ExportError):
    """Offsets that would be committed are committed already."""


class CommitConflictError(ExportError):
    """Another export committed the same partitions in the meantime; nothing was committed."""


class FingerprintError(ExportError):
    """The table was begun with other rules (isolation, columns, transform, partitioning)."""


class SchemaChangedError(ExportError):
    """Typed columns that are not those of the table they would go into."""


class TransformError(ExportError):
    """A transform that failed, or returned what cannot be written."""


class UnsupportedTargetError(ExportError):
    """A target that cannot keep the promise of exactly once."""
