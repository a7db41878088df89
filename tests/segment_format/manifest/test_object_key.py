from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import uuid_from_text
from segment_format.manifest.object_names import (
    LOCAL_SUFFIXES,
    SUFFIXES,
    LocalFileName,
    ObjectKey,
    format_local_file_name,
    format_local_partition_directory,
    format_object_key,
    format_topic_directory,
    parse_local_file_name,
    parse_local_partition_directory,
    parse_object_key,
    parse_segment_file_name,
    parse_topic_directory,
)
from segment_format.metadata.model import TopicIdPartition
from tests.golden_data import LOCAL_TIER, TIER, VECTORS

if TYPE_CHECKING:
    from pathlib import Path

NAME = "some-prefix/my.topic-1-lZ6vvmajTWKDBUTV6SQAtQ/7/00000000000000001234-adh9f8BMS4anaUnD8KWfWg"
KEY = ObjectKey(
    "some-prefix/",
    "my.topic-1",
    uuid_from_text("lZ6vvmajTWKDBUTV6SQAtQ"),
    7,
    1234,
    uuid_from_text("adh9f8BMS4anaUnD8KWfWg"),
    "log",
)

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(
    lambda topic: topic not in (".", "..")
)
partitions = st.builds(TopicIdPartition, topics, st.uuids(), st.integers(0, 2**31 - 1))


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_a_known_name() -> None:
    assert parse_object_key(f"{NAME}.log", prefix="some-prefix/") == KEY
    assert format_object_key(KEY) == f"{NAME}.log"
    assert format_object_key(KEY.with_suffix("rsm-manifest")) == f"{NAME}.rsm-manifest"
    assert KEY.stem == NAME.removeprefix("some-prefix/")


def test_the_plugin_puts_nothing_between_prefix_and_topic() -> None:
    key = ObjectKey("prefix/", "topic", uuid.UUID(int=1), 7, 1234, uuid.UUID(int=0), "log")
    name = "topic-AAAAAAAAAAAAAAAAAAAAAQ/7/00000000000000001234-AAAAAAAAAAAAAAAAAAAAAA.log"
    assert format_object_key(key) == f"prefix/{name}"
    assert parse_object_key(f"foo{name}", prefix="foo") == ObjectKey(
        "foo", "topic", uuid.UUID(int=1), 7, 1234, uuid.UUID(int=0), "log"
    )
    # Read with an empty prefix, the same object belongs to another topic.
    other = parse_object_key(f"foo{name}", prefix="")
    assert other is not None
    assert other.topic == "footopic"


@pytest.mark.parametrize(
    ("root", "prefix"),
    [(TIER, "tiered/"), (VECTORS / "aiven_vectors" / "objects" / "aes", "some-prefix/")],
    ids=["broker", "vectors"],
)
def test_names_of_real_objects(root: Path, prefix: str) -> None:
    names = files(root)
    assert len(names) >= 3
    for name in names:
        key = parse_object_key(name, prefix=prefix)
        assert key is not None
        assert format_object_key(key) == name


@settings(deadline=None)
@given(
    st.builds(
        ObjectKey,
        st.text(max_size=20),
        topics,
        st.uuids(),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
        st.uuids(),
        st.sampled_from(SUFFIXES),
    )
)
def test_every_key_survives_its_name(key: ObjectKey) -> None:
    assert parse_object_key(format_object_key(key), prefix=key.prefix) == key


@settings(deadline=None)
@given(topics, st.uuids())
def test_every_directory_survives_its_name(topic: str, topic_id: uuid.UUID) -> None:
    assert parse_topic_directory(format_topic_directory(topic, topic_id)) == (topic, topic_id)


def test_names_are_parsed_from_the_right() -> None:
    # Topic and id hold what looks like a separator and a number.
    topic_id = "_-AAAAAAAAAAAAAAAAA-7A"
    assert parse_topic_directory(f"a-1-b-{topic_id}") == ("a-1-b", uuid_from_text(topic_id))
    assert parse_topic_directory(f"--{topic_id}") == ("-", uuid_from_text(topic_id))
    local = parse_local_partition_directory(f"a-1-b-3-{topic_id}")
    assert local == TopicIdPartition("a-1-b", uuid_from_text(topic_id), 3)
    segment_id = "-" * 21 + "A"
    parsed = parse_segment_file_name(f"00000000000000000005-{segment_id}.log")
    assert parsed == (5, uuid_from_text(segment_id), "log")


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
def test_directories_of_others(name: str) -> None:
    assert parse_topic_directory(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "00000000000000001234-adh9f8BMS4anaUnD8KWfWg",
        "00000000000000001234-adh9f8BMS4anaUnD8KWfWg.",
        "00000000000000001234-adh9f8BMS4anaUnD8KWfWg.txt",
        "00000000000000001234-adh9f8BMS4anaUnD8KWfWg.log.tmp",
        "00000000000000001234_adh9f8BMS4anaUnD8KWfWg.log",
        "0000000000000001234-adh9f8BMS4anaUnD8KWfWg.log",
        "000000000000000001234-adh9f8BMS4anaUnD8KWfWg.log",
        "-0000000000000001234-adh9f8BMS4anaUnD8KWfWg.log",
        "0000000000000000123²-adh9f8BMS4anaUnD8KWfWg.log",
        "09223372036854775808-adh9f8BMS4anaUnD8KWfWg.log",
        "00000000000000001234-adh9f8BMS4anaUnD8KWfWg.rsm-manifest\n",
    ],
)
def test_files_of_others(name: str) -> None:
    assert parse_segment_file_name(name) is None


@pytest.mark.parametrize(
    "name",
    [
        NAME.replace("/7/", "/07/") + ".log",
        NAME.replace("/7/", "/-7/") + ".log",
        NAME.replace("/7/", "/٧/") + ".log",
        NAME.replace("/7/", "/2147483648/") + ".log",
        NAME.replace("/7/", "//") + ".log",
        NAME.replace("/7/", "/7/8/") + ".log",
        NAME.replace("some-prefix/", "other/") + ".log",
        NAME + ".log/x",
        "some-prefix/x",
        "some-prefix/",
    ],
)
def test_objects_of_others(name: str) -> None:
    assert parse_object_key(name, prefix="some-prefix/") is None


def test_offsets_in_other_digits_are_read_and_their_siblings_found() -> None:
    digits = "1234".rjust(20, "0").translate({ord("0") + n: ord("٠") + n for n in range(10)})
    name = NAME.replace("00000000000000001234", digits)
    key = parse_object_key(f"{name}.rsm-manifest", prefix="some-prefix/")
    assert key == KEY.with_suffix("rsm-manifest")
    assert key is not None
    assert format_object_key(key.with_suffix("log")) == f"{name}.log"


@settings(deadline=None)
@given(st.text(max_size=120), st.text(max_size=3))
def test_any_text_is_a_name_or_none(text: str, prefix: str) -> None:
    key = parse_object_key(text, prefix=prefix)
    assert key is None or format_object_key(key) == text
    directory = parse_local_partition_directory(text)
    assert directory is None or format_local_partition_directory(directory) == text
    assert parse_local_file_name(text) is None or len(text) > 43


@pytest.mark.parametrize(
    "change",
    [
        {"topic": ""},
        {"topic": "a/b"},
        {"topic": "t" * 250},
        {"partition": -1},
        {"partition": 2**31},
        {"base_offset": -1},
        {"base_offset": 2**63},
        {"suffix": "txt"},
    ],
)
def test_keys_nobody_would_find_are_not_made(change: dict[str, str | int]) -> None:
    fields = {
        "prefix": "",
        "topic": "t",
        "topic_id": uuid.UUID(int=1),
        "partition": 0,
        "base_offset": 0,
        "segment_id": uuid.UUID(int=2),
        "suffix": "log",
    }
    format_object_key(ObjectKey(**fields))  # type: ignore[arg-type]
    with pytest.raises(InvalidManifestError):
        format_object_key(ObjectKey(**{**fields, **change}))  # type: ignore[arg-type]


def test_names_of_a_local_tier() -> None:
    root = LOCAL_TIER / "tier" / "kafka-tiered-storage"
    suffixes = set()
    for name in files(root):
        directory, _, file = name.partition("/")
        partition = parse_local_partition_directory(directory)
        assert partition is not None
        assert partition.topic in ("codecs", "txn")
        assert format_local_partition_directory(partition) == directory
        parsed = parse_local_file_name(file)
        assert parsed is not None
        suffixes.add(parsed.suffix)
        assert format_local_file_name(parsed) == file
    assert suffixes == set(LOCAL_SUFFIXES)


@settings(deadline=None)
@given(partitions)
def test_every_local_directory_survives_its_name(partition: TopicIdPartition) -> None:
    assert parse_local_partition_directory(format_local_partition_directory(partition)) == partition


@settings(deadline=None)
@given(
    st.builds(LocalFileName, st.integers(0, 2**63 - 1), st.uuids(), st.sampled_from(LOCAL_SUFFIXES))
)
def test_every_local_file_survives_its_name(name: LocalFileName) -> None:
    assert parse_local_file_name(format_local_file_name(name)) == name


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
def test_local_directories_of_others(name: str) -> None:
    assert parse_local_partition_directory(name) is None
    assert parse_local_file_name(name) is None
    assert parse_local_file_name("00000000000000001234-adh9f8BMS4anaUnD8KWfWg.rsm-manifest") is None


def test_local_names_nobody_would_find_are_not_made() -> None:
    with pytest.raises(InvalidManifestError):
        format_local_partition_directory(TopicIdPartition("a/b", uuid.UUID(int=1), 0))
    with pytest.raises(InvalidManifestError):
        format_local_file_name(LocalFileName(0, uuid.UUID(int=1), "indexes"))
    with pytest.raises(InvalidManifestError):
        format_local_file_name(LocalFileName(-1, uuid.UUID(int=1), "log"))
