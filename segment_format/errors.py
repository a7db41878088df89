"""Errors for invalid bytes: `SegmentFormatError` and a subclass for each kind.

Errors carry the byte position in the buffer; `kts_source` adds topic, partition and object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class SegmentFormatError(Exception):
    """Bytes that Kafka or the storage plugin does not write.

    Attributes:
        message: The text without position and offset.
        position: Byte position in the buffer, or None.
        offset: Kafka offset of the batch, or None.
    """

    def __init__(
        self, message: str, *, position: int | None = None, offset: int | None = None
    ) -> None:
        self.message = message
        self.position = position
        self.offset = offset
        super().__init__(message, position, offset)

    def at(self, position: int | None, offset: int) -> Self:
        """Returns the same error with another position and offset."""
        return type(self)(self.message, position=position, offset=offset)

    def __str__(self) -> str:
        where = []
        if self.position is not None:
            where.append(f"at byte {self.position}")
        if self.offset is not None:
            where.append(f"offset {self.offset}")
        return f"{self.message} ({', '.join(where)})" if where else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments do not survive the default pickling of exceptions.
        return _rebuild, (type(self), self.message, self.position, self.offset)


def _rebuild(
    cls: type[SegmentFormatError], message: str, position: int | None, offset: int | None
) -> SegmentFormatError:
    return cls(message, position=position, offset=offset)


class CorruptRecordError(SegmentFormatError):
    """A record batch or a record that contradicts its own lengths, counts or checksum."""


class CrcMismatchError(CorruptRecordError):
    """A stored checksum that does not match the bytes of the batch."""


class TruncatedBatchError(CorruptRecordError):
    """The buffer ends inside a batch."""


class UnsupportedMagicError(CorruptRecordError):
    """A magic byte other than 0, 1 or 2."""


class UnsupportedCompressionError(CorruptRecordError):
    """A codec number that Kafka does not define, or not for the magic of the entry."""


class DecompressionError(CorruptRecordError):
    """A compressed payload that is invalid, or expands beyond the limit."""


class CorruptIndexError(SegmentFormatError):
    """A side file (offset, time or transaction index, producer snapshot, epoch checkpoint) that is
    not valid.
    """


class InvalidManifestError(SegmentFormatError, ValueError):
    """A segment manifest, object name or custom metadata that is not valid."""


class InvalidMetadataError(SegmentFormatError, ValueError):
    """A record of `__remote_log_metadata` that is not valid."""


class ChunkError(SegmentFormatError):
    """A chunk of a segment object that cannot be restored."""


class DecryptionError(ChunkError):
    """An AES-GCM message or wrapped data key with a wrong key or changed bytes."""


class UnknownKeyError(DecryptionError):
    """The key ring has no private key with the manifest's key id, which the message quotes."""
