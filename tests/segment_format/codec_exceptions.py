"""Lists the deliberate differences between this reader and Kafka's decoders. The README has the
same list.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from segment_format.record.batch_header import CompressionType

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class CodecException:
    """One deliberate difference between this reader and Kafka's decoder.

    Attributes:
        codec: Name of the codec.
        case: Kind of payload.
        kafka_accepts: True if Kafka's consumer reads the payload.
        accepted: True if this reader reads the payload.
        reason: Reason for the difference.
    """

    codec: CompressionType
    case: str
    kafka_accepts: bool
    accepted: bool
    reason: str


CODEC_EXCEPTIONS: Final[Mapping[str, CodecException]] = MappingProxyType(
    {
        "lz4 linked blocks": CodecException(
            CompressionType.LZ4,
            "blocks that refer to earlier blocks",
            kafka_accepts=False,
            accepted=True,
            reason="the bytes are unambiguous and any LZ4 library reads them; no broker keeps one",
        ),
        "lz4 wrong content checksum": CodecException(
            CompressionType.LZ4,
            "a content checksum that is not that of the content",
            kafka_accepts=True,
            accepted=False,
            reason="Kafka reads the checksum and forgets it; a wrong one means changed bytes",
        ),
        "gzip batch without records": CodecException(
            CompressionType.GZIP,
            "a record count of 0 in front of something that is not of the codec",
            kafka_accepts=False,
            accepted=True,
            reason="no record depends on the payload, which is not looked at for any codec",
        ),
    }
)
"""All differences from Kafka's decoders. For all other payloads, this reader and Kafka both return
the rows or both raise an error.
"""
