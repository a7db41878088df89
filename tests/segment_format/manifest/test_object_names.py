from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.kafka_uuid import uuid_from_text, uuid_to_text
from segment_format.manifest.object_names import (
    LOCAL_SUFFIXES,
    parse_local_partition_directory,
    parse_topic_directory,
)
from segment_format.metadata.model import TopicIdPartition
from tests.golden_data import LOCAL_TIER, TIER, VECTORS
from tests.object_names import parse_local_file_name, parse_object_key

if TYPE_CHECKING:
    import uuid
    from pathlib import Path

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(
    lambda topic: topic not in (".", "..")
)
partitions = st.builds(TopicIdPartition, topics, st.uuids(), st.integers(0, 2**31 - 1))


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def local_directory(partition: TopicIdPartition) -> str:
    return f"{partition.topic}-{partition.partition}-{uuid_to_text(partition.topic_id)}"


@pytest.mark.parametrize(
    ("root", "prefix"),
    [(TIER, "tiered/"), (VECTORS / "aiven_vectors" / "objects" / "aes", "some-prefix/")],
    ids=["broker", "vectors"],
)
def test_real_object_names_are_recognized(root: Path, prefix: str) -> None:
    names = files(root)
    assert len(names) >= 3
    for name in names:
        key = parse_object_key(name, prefix=prefix)
        directory = name[len(prefix) :].partition("/")[0]
        assert f"{key.topic}-{uuid_to_text(key.topic_id)}" == directory


@settings(deadline=None)
@given(topics, st.uuids())
def test_topic_directory_round_trips(topic: str, topic_id: uuid.UUID) -> None:
    assert parse_topic_directory(f"{topic}-{uuid_to_text(topic_id)}") == (topic, topic_id)


def test_topic_that_contains_separators_and_numbers_is_parsed() -> None:
    # Topic and id contain what looks like a separator and a number.
    topic_id = "_-AAAAAAAAAAAAAAAAA-7A"
    assert parse_topic_directory(f"a-1-b-{topic_id}") == ("a-1-b", uuid_from_text(topic_id))
    assert parse_topic_directory(f"--{topic_id}") == ("-", uuid_from_text(topic_id))
    local = parse_local_partition_directory(f"a-1-b-3-{topic_id}")
    assert local == TopicIdPartition("a-1-b", uuid_from_text(topic_id), 3)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "topic",
        "-AAAAAAAAAAAAAAAAAAAAAA",
        "topic_AAAAAAAAAAAAAAAAAAAAAA",
        "topic-AAAAAAAAAAAAAAAAAAAAA",
        "topic-AAAAAAAAAAAAAAAAAAAAAB",
        "to pic-AAAAAAAAAAAAAAAAAAAAAA",
        ".-AAAAAAAAAAAAAAAAAAAAAA",
        "..-AAAAAAAAAAAAAAAAAAAAAA",
        "t" * 250 + "-AAAAAAAAAAAAAAAAAAAAAA",
    ],
)
def test_invalid_topic_directory_is_rejected(name: str) -> None:
    assert parse_topic_directory(name) is None


@settings(deadline=None)
@given(st.text(max_size=120))
def test_any_text_parses_as_local_directory_or_is_rejected(text: str) -> None:
    directory = parse_local_partition_directory(text)
    assert directory is None or local_directory(directory) == text


def test_local_tier_names_are_recognized() -> None:
    root = LOCAL_TIER / "tier" / "kafka-tiered-storage"
    suffixes = set()
    for name in files(root):
        directory, _, file = name.partition("/")
        partition = parse_local_partition_directory(directory)
        assert partition is not None
        assert partition.topic in ("codecs", "txn")
        assert local_directory(partition) == directory
        parsed = parse_local_file_name(file)
        assert parsed is not None
        suffixes.add(parsed.suffix)
    assert suffixes == set(LOCAL_SUFFIXES)


@settings(deadline=None)
@given(partitions)
def test_local_directory_round_trips(partition: TopicIdPartition) -> None:
    assert parse_local_partition_directory(local_directory(partition)) == partition


@pytest.mark.parametrize(
    "name",
    [
        "",
        "topic-AAAAAAAAAAAAAAAAAAAAAA",
        "topic-x-AAAAAAAAAAAAAAAAAAAAAA",
        "topic-00-AAAAAAAAAAAAAAAAAAAAAA",
        "topic-٧-AAAAAAAAAAAAAAAAAAAAAA",
        "topic-2147483648-AAAAAAAAAAAAAAAAAAAAAA",
        "topic-0_AAAAAAAAAAAAAAAAAAAAAA",
        "-0-AAAAAAAAAAAAAAAAAAAAAA",
        "topic-0-AAAAAAAAAAAAAAAAAAAAAB",
    ],
)
def test_invalid_local_directory_is_rejected(name: str) -> None:
    assert parse_local_partition_directory(name) is None
