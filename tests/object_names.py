"""Parses object names of segments, to check the names that tier writers and brokers use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from segment_format.kafka_uuid import uuid_from_text
from segment_format.manifest.object_names import LOCAL_SUFFIXES, SUFFIXES, parse_topic_directory

if TYPE_CHECKING:
    import uuid

_FILE = re.compile(r"(\d{20})-([A-Za-z0-9_-]{21}[AQgw])\.([a-z_-]+)")


@dataclass(frozen=True, slots=True)
class ObjectKey:
    prefix: str
    topic: str
    topic_id: uuid.UUID
    partition: int
    base_offset: int
    segment_id: uuid.UUID
    suffix: str


class SegmentFileName(NamedTuple):
    base_offset: int
    segment_id: uuid.UUID
    suffix: str


def parse_object_key(key: str, *, prefix: str) -> ObjectKey:
    """Returns the parts of an object key that Aiven's plugin writes. `prefix` is the key prefix."""
    assert key.startswith(prefix)
    directory, partition, name = key[len(prefix) :].split("/")
    topic = parse_topic_directory(directory)
    file = parse_segment_file_name(name)
    assert topic is not None
    assert file is not None
    return ObjectKey(prefix, *topic, int(partition), file.base_offset, file.segment_id, file.suffix)


def parse_segment_file_name(
    name: str, suffixes: tuple[str, ...] = SUFFIXES
) -> SegmentFileName | None:
    """Returns the parts of a segment file name, or None if `name` is invalid."""
    match = _FILE.fullmatch(name)
    if match is None or match[3] not in suffixes or int(match[1]) >= 2**63:
        return None
    return SegmentFileName(int(match[1]), uuid_from_text(match[2]), match[3])


def parse_local_file_name(name: str) -> SegmentFileName | None:
    """Returns the parts of a file name of `LocalTieredStorage`, or None if `name` is invalid."""
    return parse_segment_file_name(name, LOCAL_SUFFIXES)
