"""Tests that committed offsets are parsed as Kafka's group coordinator writes them."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segment_format import iter_batches
from segment_format.errors import InvalidMetadataError
from segment_format.metadata.group_offsets import (
    CommittedOffset,
    GroupPartition,
    committed_offsets,
    parse_group_key,
    parse_group_value,
)
from segment_format.testing import LogBuilder, SimpleRecord
from tests.golden_data import GOLDEN

GROUPS = GOLDEN / "group-offsets"


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def key(version: int = 1) -> bytes:
    return struct.pack(">h", version) + text("g") + text("té") + struct.pack(">i", 7)


def test_offsets_on_disk_equal_those_that_the_broker_reported() -> None:
    log = (GROUPS / "disk/__consumer_offsets-0/00000000000000000000.log").read_bytes()
    found: list[dict[str, Any]] = [
        {
            "group": partition.group,
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": offset.offset,
            # librdkafka also writes the final zero byte of C, and hides it.
            "metadata": offset.metadata.removesuffix("\0"),
        }
        for partition, offset in committed_offsets(iter_batches(log)).items()
    ]
    assert found == json.loads((GROUPS / "committed.json").read_text())


@pytest.mark.parametrize(
    ("version", "rest", "epoch"),
    [
        (0, text("né") + struct.pack(">q", 5), -1),
        (1, text("né") + struct.pack(">qq", 5, 6), -1),
        (2, text("né") + struct.pack(">q", 5), -1),
        (3, struct.pack(">i", 8) + text("né") + struct.pack(">q", 5), 8),
        (4, struct.pack(">i", 8) + b"\x04n\xc3\xa9" + struct.pack(">q", 5) + b"\0", 8),
    ],
)
def test_every_version_of_a_value_is_parsed(version: int, rest: bytes, epoch: int) -> None:
    value = struct.pack(">hq", version, 42) + rest
    assert parse_group_value(value) == CommittedOffset(42, epoch, "né", 5)
    with pytest.raises(InvalidMetadataError):
        parse_group_value(value[:12])


def test_unknown_version_of_a_value_is_an_error() -> None:
    with pytest.raises(InvalidMetadataError, match="version 5"):
        parse_group_value(struct.pack(">hq", 5, 42) + bytes(20))


def test_keys_of_group_members_are_skipped() -> None:
    assert parse_group_key(key(0)) == parse_group_key(key(1)) == GroupPartition("g", "té", 7)
    assert parse_group_key(struct.pack(">h", 2) + text("g")) is None
    builder = LogBuilder()
    builder.append([SimpleRecord(b"x", struct.pack(">h", 3)), SimpleRecord(b"x", None)])
    assert _offsets(builder) == {}


def test_record_without_value_deletes_the_offset() -> None:
    builder = LogBuilder()
    builder.append([_commit(42)])
    assert _offsets(builder) == {"g": 42}
    builder.append([SimpleRecord(None, struct.pack(">h", 1) + text("g") + text("té") + bytes(4))])
    assert _offsets(builder) == {}


def test_offsets_of_aborted_and_undecided_transactions_are_dropped() -> None:
    builder = LogBuilder()
    builder.append([_commit(1), _commit(1, "h"), _commit(1, "i")])
    for producer, group in ((7, "g"), (8, "h"), (9, "i")):
        builder.send(producer, [_commit(2, group)])
    builder.commit(7)
    builder.abort(8)
    builder.append([_commit(3, "j")])
    assert _offsets(builder) == {"g": 2, "h": 1, "i": 1, "j": 3}


def test_transactional_offset_does_not_replace_a_later_plain_offset() -> None:
    builder = LogBuilder()
    builder.send(7, [_commit(2)])
    builder.append([_commit(3)])
    builder.commit(7)
    assert _offsets(builder) == {"g": 3}


def _commit(offset: int, group: str = "g") -> SimpleRecord:
    value = struct.pack(">hq", 2, offset) + text("") + struct.pack(">q", 5)
    return SimpleRecord(value, struct.pack(">h", 1) + text(group) + text("té") + bytes(4))


def _offsets(builder: LogBuilder) -> dict[str, int]:
    """Returns the committed offset of each group in the log."""
    log = b"".join(files.log for files in builder.build().segments)
    found = committed_offsets(iter_batches(log))
    return {partition.group: offset.offset for partition, offset in found.items()}


@given(st.binary(max_size=60))
def test_malformed_bytes_raise_only_invalid_metadata_error(data: bytes) -> None:
    for parse in (parse_group_key, parse_group_value):
        with contextlib.suppress(InvalidMetadataError):
            parse(data)
