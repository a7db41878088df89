"""Tests parsing of offset checkpoints and of `partition.metadata`: files as brokers write them, and
invalid files.
"""

from __future__ import annotations

import pytest

from segment_format.errors import CorruptIndexError
from segment_format.index.checkpoints import parse_offset_checkpoint, parse_partition_metadata
from segment_format.kafka_uuid import uuid_to_text
from segment_format.manifest.object_names import parse_log_file_name, parse_partition_directory


def test_offset_checkpoint_parses() -> None:
    data = b"0\n3\norders 7 250\na-b.c_d 0 0\n__transaction_state 49 9223372036854775807\n"
    assert parse_offset_checkpoint(data) == {
        ("orders", 7): 250,
        ("a-b.c_d", 0): 0,
        ("__transaction_state", 49): 2**63 - 1,
    }
    assert parse_offset_checkpoint(b"0\n0\n") == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\nx\n",
        b"0\n2\norders 0 5\n",
        b"0\n1\norders 0 5\norders 1 5\n",
        b"0\n1\norders 0\n",
        b"0\n1\norders 0 -1\n",
        b"0\n1\norders 0 9223372036854775808\n",
        b"0\n2\norders 0 5\norders 0 6\n",
        b"0\n1\norders x 5\n",
        bytes(64),
    ],
)
def test_invalid_offset_checkpoint_raises(data: bytes) -> None:
    with pytest.raises(CorruptIndexError, match="offset checkpoint"):
        parse_offset_checkpoint(data)


def test_partition_metadata_parses() -> None:
    metadata = parse_partition_metadata(b"version: 0\ntopic_id: LWgrMmVrT0a__7a4SasuPA")
    assert uuid_to_text(metadata) == "LWgrMmVrT0a__7a4SasuPA"


@pytest.mark.parametrize(
    "data", [b"", b"version: 1\ntopic_id: LWgrMmVrT0a__7a4SasuPA", b"version: 0\ntopic_id: x"]
)
def test_invalid_partition_metadata_raises(data: bytes) -> None:
    with pytest.raises(CorruptIndexError, match=r"partition\.metadata"):
        parse_partition_metadata(data)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ("orders", 0, "")),
        ("a-1-22", ("a-1", 22, "")),
        ("orders-0.0123456789abcdef0123456789abcdef-delete", ("orders", 0, "delete")),
        ("or.ders-3.0123456789abcdef0123456789abcdef-future", ("or.ders", 3, "future")),
        ("orders-0.0123456789abcdef0123456789abcdef-stray", ("orders", 0, "stray")),
        ("orders", None),
        ("orders-", None),
        ("-0", None),
        ("orders-01", None),
        ("orders-4294967296", None),
    ],
)
def test_partition_directory_names_parse(name: str, expected: tuple[str, int, str] | None) -> None:
    parsed = parse_partition_directory(name)
    assert (parsed and (parsed.topic, parsed.partition, parsed.state)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000000025.log", (25, "log", "")),
        ("00000000000000000025.snapshot.deleted", (25, "snapshot", "deleted")),
        ("00000000000000000025.log.swap", (25, "log", "swap")),
        ("00000000000000000025.timeindex.cleaned", (25, "timeindex", "cleaned")),
        ("25.log", None),
        ("99999999999999999999.log", None),
        ("00000000000000000025.log.swap.deleted", None),
        ("leader-epoch-checkpoint", None),
    ],
)
def test_log_file_names_parse(name: str, expected: tuple[int, str, str] | None) -> None:
    parsed = parse_log_file_name(name)
    assert (parsed and (parsed.offset, parsed.kind, parsed.state)) == expected
