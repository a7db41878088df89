"""Defines the errors for invalid bytes: `SegmentFormatError`, and a subclass for each kind of data.

Errors contain the byte position in the buffer. `kts_source` adds the topic, partition and object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class SegmentFormatError(Exception):
    """The bytes are invalid: neither Kafka nor the storage plugin writes such bytes.

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
        """Returns a copy of the error with `position` and `offset`."""
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
    """A record batch or a record contradicts its own lengths, counts or checksum."""


class CrcMismatchError(CorruptRecordError):
    """The stored checksum does not match the bytes of the batch."""


class TruncatedBatchError(CorruptRecordError):
    """The buffer ends inside a batch."""


class UnsupportedMagicError(CorruptRecordError):
    """The magic byte is not 0, 1 or 2."""


class UnsupportedCompressionError(CorruptRecordError):
    """Kafka does not define the codec number, or does not allow the codec for the entry's magic."""


class DecompressionError(CorruptRecordError):
    """A compressed payload is invalid, or exceeds the size limit when it is decompressed."""


class CorruptIndexError(SegmentFormatError):
    """A side file is invalid: offset, time or transaction index, producer snapshot, or epoch
    checkpoint.
    """


class InvalidManifestError(SegmentFormatError, ValueError):
    """A segment manifest, an object name or custom metadata is invalid."""


class InvalidMetadataError(SegmentFormatError, ValueError):
    """A record of `__remote_log_metadata` is invalid."""


class ChunkError(SegmentFormatError):
    """A chunk of a segment object cannot be decrypted or decompressed."""


class DecryptionError(ChunkError):
    """An AES-GCM message or a wrapped data key was encrypted with another key, or its bytes were
    changed.
    """
