"""Names in a broker's log directory.

    <topic>-<partition>/                              a partition
    <topic>-<partition>.<32 hex digits>-<state>/      future, delete, stray: no partition any more,
                                                      or not yet
        <offset, 20 digits>.<kind>                    log, index, timeindex, txnindex, snapshot
        <offset, 20 digits>.<kind>.<state>            deleted, cleaned, swap: a change under way

Offsets are the segment's base; that of a snapshot is one past the last offset it covers.

Source: `UnifiedLog.parseTopicPartitionName`, `LogFileUtils`, `LocalLog` in Kafka.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from segment_format.manifest.object_key import is_topic_name, parse_partition

FILE_KINDS: Final = ("log", "index", "timeindex", "txnindex", "snapshot")
_DIRECTORY: Final = re.compile(r"(.+)-([0-9]+)(?:\.[0-9a-f]{1,32}-(future|delete|stray))?")
# `\d` takes the digits of every script: a broker's locale chooses them.
_FILE: Final = re.compile(rf"(\d{{20}})\.({'|'.join(FILE_KINDS)})(?:\.(deleted|cleaned|swap))?")
_MAX_OFFSET: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """The parts of a folder's name.

    Attributes:
        state: Empty for a partition in use; else `future`, `delete` or `stray`.
    """

    topic: str
    partition: int
    state: str


@dataclass(frozen=True, slots=True)
class LogFileName:
    """The parts of a file's name.

    Attributes:
        kind: One of `FILE_KINDS`.
        state: Empty for a file in use; else `deleted`, `cleaned` or `swap`.
    """

    offset: int
    kind: str
    state: str


def parse_partition_directory(name: str) -> PartitionDirectory | None:
    """The parts of a folder's name, or None for another kind of name."""
    match = _DIRECTORY.fullmatch(name)
    partition = None if match is None else parse_partition(match[2])
    if match is None or partition is None or not is_topic_name(match[1]):
        return None
    return PartitionDirectory(match[1], partition, match[3] or "")


def parse_log_file_name(name: str) -> LogFileName | None:
    """The parts of a file's name, or None for another kind of name."""
    match = _FILE.fullmatch(name)
    if match is None or int(match[1]) > _MAX_OFFSET:
        return None
    return LogFileName(int(match[1]), match[2], match[3] or "")
