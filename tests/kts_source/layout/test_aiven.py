"""The fast look at a listing finds what the careful one finds, whatever is listed."""

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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.layout.layout import PartitionListing
    from kts_source.store.object_store import ObjectStore

FOLDER = TopicFolder("t", uuid_to_text(uuid.UUID(int=1)), "prefix/t-x/")
SUFFIXES = ("indexes", "log", "rsm-manifest")
IDS = [uuid_to_text(uuid.UUID(int=number << 64)) for number in range(3)]
ARABIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")


def infos(names: Sequence[str]) -> list[ObjectInfo]:
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
    """Whole segments, with things missing, added and renamed, mostly in key order."""
    stems = draw(
        st.sets(st.tuples(st.integers(0, 40), st.sampled_from(IDS)), min_size=0, max_size=8)
    )
    found = [f"{base:020d}-{name}.{suffix}" for base, name in stems for suffix in SUFFIXES]
    for name in draw(st.lists(st.sampled_from(found or ["x"]), max_size=3)):
        if draw(st.booleans()):
            found = [one for one in found if one != name]
        else:
            found.append(name[:20].translate(ARABIC) + name[20:])
    found = sorted({*found, *draw(st.lists(names, max_size=3))})
    if draw(st.integers(0, 9)) == 0:
        random.Random(draw(st.integers(0, 99))).shuffle(found)
    return infos(found)


class Listing:
    """A store that lists what it is given."""

    def __init__(self, listing: Sequence[ObjectInfo]) -> None:
        self._listing = listing

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        assert all(info.key.startswith(prefix) for info in self._listing)
        return iter(self._listing)


def partition(listing: Sequence[ObjectInfo]) -> PartitionListing:
    return AivenLayout().list_partition(cast("ObjectStore", Listing(listing)), FOLDER, 12)


def expected(listing: Sequence[ObjectInfo], prefix: str) -> dict[tuple[int, str], dict[str, str]]:
    """Keys by segment and suffix, from each name alone; under `(-1, "")` the strangers."""
    found: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)
    for info in listing:
        parsed = parse_segment_file_name(info.key.removeprefix(prefix))
        if parsed is None:
            found[-1, ""][info.key] = info.key
        else:
            found[parsed[0], uuid_to_text(parsed[1])][parsed[2]] = info.key
    return found


def check(listed: PartitionListing, listing: Sequence[ObjectInfo], prefix: str) -> None:
    groups = expected(listing, prefix)
    strangers = list(groups.pop((-1, ""), {}))
    whole = {place: keys for place, keys in groups.items() if len(keys) == len(SUFFIXES)}
    assert [(one.base_offset, one.segment_id) for one in listed.segments] == sorted(whole)
    for one in listed.segments:
        keys = whole[one.base_offset, one.segment_id]
        assert [(suffix, info.key) for suffix, info in one.objects] == sorted(keys.items())
        assert one.described_by == keys["rsm-manifest"]
    broken = [groups[place] for place in sorted(groups.keys() - whole.keys())]
    assert [set(orphan.keys) for orphan in listed.orphans] == [
        *({key} for key in strangers),
        *(set(keys.values()) for keys in broken),
    ]
    described = [orphan.described is not None for orphan in listed.orphans]
    assert described == [*(False for _ in strangers), *("rsm-manifest" in keys for keys in broken)]


@settings(max_examples=400, deadline=None)
@given(listings())
def test_segments_are_what_the_names_say(listing: list[ObjectInfo]) -> None:
    check(partition(listing), listing, f"{FOLDER.folder}12/")


@pytest.mark.parametrize("topic", TOPICS)
def test_segments_of_a_real_tier_are_what_the_names_say(topic: str) -> None:
    layout, store = AivenLayout(), LocalStore(TIER)
    for folder in layout.topic_folders(store, KEY_PREFIX, topic):
        for number in layout.partitions(store, folder):
            prefix = f"{folder.folder}{number}/"
            listed = layout.list_partition(store, folder, number)
            assert listed.segments
            check(listed, list(store.list_objects(prefix)), prefix)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("stranger", [[], ["zebra"]])
def test_every_copy_of_a_segment_is_listed(stranger: list[str], order: int) -> None:
    """Leaders that changed in the middle of an upload: the base offset twice."""
    stems = [f"{base:020d}-{name}" for base in (0, 5) for name in IDS][::order]
    listing = infos([*(f"{stem}.{suffix}" for stem in stems for suffix in SUFFIXES), *stranger])
    listed = partition(listing)
    assert [(one.base_offset, one.segment_id) for one in listed.segments] == [
        (base, name) for base in (0, 5) for name in IDS
    ]
    check(listed, listing, f"{FOLDER.folder}12/")


def test_a_segment_is_three_objects_and_all_else_is_reported() -> None:
    whole, other = f"{5:020d}-{IDS[1]}", f"{9:020d}-{IDS[2]}"
    listing = infos(
        [*(f"{whole}.{suffix}" for suffix in SUFFIXES), f"{other}.log", f"{other}.rsm-manifest"]
    )
    found = partition([*listing, *infos(["zebra"])])
    assert [(one.base_offset, one.segment_id) for one in found.segments] == [(5, IDS[1])]
    assert found.segments[0].objects == tuple(zip(SUFFIXES, listing[:3], strict=True))
    assert found.segments[0].described_by == listing[2].key
    assert [orphan.keys for orphan in found.orphans] == [
        (f"{FOLDER.folder}12/zebra",),
        (listing[3].key, listing[4].key),
    ]
    assert "no .indexes" in found.orphans[1].reason
