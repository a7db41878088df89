"""Which partition of `__remote_log_metadata` holds the events of a partition.

    hc(x) = low 32 bits of (x xor (x >>> 32))                              Java's Long.hashCode
    h     = ((31 + hc(id.lsb)) * 31 + hc(id.msb)) * 31 + partition         32-bit wrap
    p     = (murmur2(big-endian 4 bytes of h) & 0x7fffffff) mod number of metadata partitions

Source: `org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner`,
`Utils.murmur2`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uuid

_MASK = 0xFFFF_FFFF
_MURMUR2_SEED = 0x9747B28C
_MURMUR2_M = 0x5BD1E995
DEFAULT_METADATA_PARTITIONS = 50


def metadata_partition(
    topic_id: uuid.UUID, partition: int, num_partitions: int = DEFAULT_METADATA_PARTITIONS
) -> int:
    """Number of the metadata partition for one user partition.

    Args:
        topic_id: Id of the topic.
        partition: Number of the user partition.
        num_partitions: How many partitions `__remote_log_metadata` has, at least 1; it never
            changes.
    """
    if num_partitions < 1:
        raise ValueError(f"{num_partitions} metadata partitions")
    msb, lsb = topic_id.int >> 64, topic_id.int & 0xFFFF_FFFF_FFFF_FFFF
    hashed = ((31 + _long_hash(lsb)) * 31 + _long_hash(msb)) * 31 + partition
    return (murmur2((hashed & _MASK).to_bytes(4, "big")) & 0x7FFF_FFFF) % num_partitions


def _long_hash(value: int) -> int:
    return (value ^ (value >> 32)) & _MASK


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 of `data`, as an unsigned number."""
    hashed = (_MURMUR2_SEED ^ len(data)) & _MASK
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MURMUR2_M & _MASK
        word = (word ^ (word >> 24)) * _MURMUR2_M & _MASK
        hashed = (hashed * _MURMUR2_M & _MASK) ^ word
    if whole < len(data):
        hashed ^= int.from_bytes(data[whole:], "little")
        hashed = hashed * _MURMUR2_M & _MASK
    hashed = (hashed ^ (hashed >> 13)) * _MURMUR2_M & _MASK
    return hashed ^ (hashed >> 15)
