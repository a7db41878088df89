"""Compares the fast parser of Aiven listings with a parser that parses each name separately."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.layout.aiven import AivenLayout
from kts_source.layout.layout import TopicFolder
from kts_source.store.local_store import LocalStore
from kts_source.store.object_store import ObjectInfo
from segment_format.kafka_uuid import uuid_to_text
from tests.golden_data import KEY_PREFIX, TIER, TOPICS
from tests.object_names import parse_segment_file_name
from tests.quick import examples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.layout.layout import PartitionListing
    from kts_source.store.object_store import ObjectStore

FOLDER = TopicFolder("t", uuid_to_text(uuid.UUID(int=1)), "prefix/t-x/")
SUFFIXES = ("indexes", "log", "rsm-manifest")
IDS = [uuid_to_text(uuid.UUID(int=number << 64)) for number in range(3)]
ARABIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")


def make_infos(names: Sequence[str]) -> list[ObjectInfo]:
    return [ObjectInfo(f"{FOLDER.folder}12/{name}", 7, f"v{name}", 5) for name in names]


names = st.one_of(
    st.builds(
        "{:020d}-{}.{}".format,
        st.sampled_from([0, 1, 2, 20, 2**63 - 1, 2**63]),
        st.sampled_from([*IDS, IDS[0][:-1] + "B", "short"]),
        st.sampled_from([*SUFFIXES, "txnindex", "logs", ""]),
    ),
    st.sampled_from(["", "x", "00000000000000000000", f"{0:020d}-{IDS[0]}", f"{1:019d}-a.log"]),
)


@st.composite
def listings(draw: st.DrawFn) -> list[ObjectInfo]:
    """Draws listings of complete segments in which some files are missing, added or renamed.

    Most listings are in key order.
    """
    stems = draw(
        st.sets(st.tuples(st.integers(0, 40), st.sampled_from(IDS)), min_size=0, max_size=8)
    )
    file_names = [f"{base:020d}-{name}.{suffix}" for base, name in stems for suffix in SUFFIXES]
    for name in draw(st.lists(st.sampled_from(file_names or ["x"]), max_size=3)):
        if draw(st.booleans()):
            file_names = [file_name for file_name in file_names if file_name != name]
        else:
            file_names.append(name[:20].translate(ARABIC) + name[20:])
    file_names = sorted({*file_names, *draw(st.lists(names, max_size=3))})
    if draw(st.integers(0, 9)) == 0:
        random.Random(draw(st.integers(0, 99))).shuffle(file_names)
    return make_infos(file_names)


class Listing:
    """A store that always returns the same listing."""

    def __init__(self, listing: Sequence[ObjectInfo]) -> None:
        self._listing = listing

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        assert all(info.key.startswith(prefix) for info in self._listing)
        return iter(self._listing)


def list_partition(listing: Sequence[ObjectInfo]) -> PartitionListing:
    return AivenLayout().list_partition(cast("ObjectStore", Listing(listing)), FOLDER, 12)


def parse_listing(
    listing: Sequence[ObjectInfo], prefix: str
) -> dict[tuple[int, str], dict[str, str]]:
    """Parses each file name separately. Returns the object keys by segment (base offset and id) and
    by file suffix. Segment `(-1, "")` stands for unknown files.
    """
    keys_by_segment: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)
    for info in listing:
        parsed = parse_segment_file_name(info.key.removeprefix(prefix))
        if parsed is None:
            keys_by_segment[-1, ""][info.key] = info.key
        else:
            keys_by_segment[parsed[0], uuid_to_text(parsed[1])][parsed[2]] = info.key
    return keys_by_segment


def check(listed: PartitionListing, listing: Sequence[ObjectInfo], prefix: str) -> None:
    groups = parse_listing(listing, prefix)
    unknown = list(groups.pop((-1, ""), {}))
    complete = {name: keys for name, keys in groups.items() if len(keys) == len(SUFFIXES)}
    assert [(segment.base_offset, segment.segment_id) for segment in listed.segments] == sorted(
        complete
    )
    for segment in listed.segments:
        keys = complete[segment.base_offset, segment.segment_id]
        assert [(suffix, info.key) for suffix, info in segment.objects] == sorted(keys.items())
        assert segment.described_by == keys["rsm-manifest"]
    broken = [groups[name] for name in sorted(groups.keys() - complete.keys())]
    assert [set(orphan.keys) for orphan in listed.orphans] == [
        *({key} for key in unknown),
        *(set(keys.values()) for keys in broken),
    ]
    described = [orphan.described is not None for orphan in listed.orphans]
    assert described == [*(False for _ in unknown), *("rsm-manifest" in keys for keys in broken)]


@settings(max_examples=examples(400), deadline=None)
@given(listings())
def test_listing_of_random_names_equals_separately_parsed_names(listing: list[ObjectInfo]) -> None:
    check(list_partition(listing), listing, f"{FOLDER.folder}12/")


@pytest.mark.parametrize("topic", TOPICS)
def test_listing_of_golden_tier_equals_separately_parsed_names(topic: str) -> None:
    layout, store = AivenLayout(), LocalStore(TIER)
    for folder in layout.topic_folders(store, KEY_PREFIX, topic):
        for number in layout.partitions(store, folder):
            prefix = f"{folder.folder}{number}/"
            listed = layout.list_partition(store, folder, number)
            assert listed.segments
            check(listed, list(store.list_objects(prefix)), prefix)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("unknown_files", [[], ["zebra"]])
def test_listing_contains_every_copy_of_segment(unknown_files: list[str], order: int) -> None:
    """Several leaders uploaded the same segment, so several copies have the same base offset."""
    stems = [f"{base:020d}-{name}" for base in (0, 5) for name in IDS][::order]
    listing = make_infos(
        [*(f"{stem}.{suffix}" for stem in stems for suffix in SUFFIXES), *unknown_files]
    )
    listed = list_partition(listing)
    assert [(segment.base_offset, segment.segment_id) for segment in listed.segments] == [
        (base, name) for base in (0, 5) for name in IDS
    ]
    check(listed, listing, f"{FOLDER.folder}12/")


def test_listing_reports_incomplete_segments_and_unknown_files_as_orphans() -> None:
    complete, incomplete = f"{5:020d}-{IDS[1]}", f"{9:020d}-{IDS[2]}"
    listing = make_infos(
        [
            *(f"{complete}.{suffix}" for suffix in SUFFIXES),
            f"{incomplete}.log",
            f"{incomplete}.rsm-manifest",
        ]
    )
    listed = list_partition([*listing, *make_infos(["zebra"])])
    assert [(segment.base_offset, segment.segment_id) for segment in listed.segments] == [
        (5, IDS[1])
    ]
    assert listed.segments[0].objects == tuple(zip(SUFFIXES, listing[:3], strict=True))
    assert listed.segments[0].described_by == listing[2].key
    assert [orphan.keys for orphan in listed.orphans] == [
        (f"{FOLDER.folder}12/zebra",),
        (listing[3].key, listing[4].key),
    ]
    assert "no .indexes" in listed.orphans[1].reason
