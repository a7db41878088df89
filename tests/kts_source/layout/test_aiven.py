"""The fast look at a listing finds what the careful one finds, whatever is listed."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.layout.aiven import AivenLayout, grouped_segments, listed_segments
from kts_source.layout.layout import TopicFolder
from kts_source.store.local_store import LocalStore
from kts_source.store.object_store import ObjectInfo
from segment_format.kafka_uuid import uuid_to_text
from tests.golden_data import KEY_PREFIX, TIER, TOPICS

if TYPE_CHECKING:
    from collections.abc import Sequence

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


@settings(max_examples=400, deadline=None)
@given(listings())
def test_both_looks_agree(listing: list[ObjectInfo]) -> None:
    assert listed_segments(listing, FOLDER, 12) == grouped_segments(listing, FOLDER, 12)


@pytest.mark.parametrize("topic", TOPICS)
def test_both_looks_agree_on_a_real_tier(topic: str) -> None:
    layout, store = AivenLayout(), LocalStore(TIER)
    for folder in layout.topic_folders(store, KEY_PREFIX, topic):
        for partition in layout.partitions(store, folder):
            listing = list(store.list_objects(f"{folder.folder}{partition}/"))
            expected = grouped_segments(listing, folder, partition)
            assert expected.segments
            assert listed_segments(listing, folder, partition) == expected
            assert layout.list_partition(store, folder, partition) == expected


def test_a_segment_is_three_objects_and_all_else_is_reported() -> None:
    whole, other = f"{5:020d}-{IDS[1]}", f"{9:020d}-{IDS[2]}"
    listing = infos(
        [*(f"{whole}.{suffix}" for suffix in SUFFIXES), f"{other}.log", f"{other}.rsm-manifest"]
    )
    found = listed_segments([*listing, *infos(["zebra"])], FOLDER, 12)
    assert [(one.base_offset, one.segment_id) for one in found.segments] == [(5, IDS[1])]
    assert found.segments[0].objects == tuple(zip(SUFFIXES, listing[:3], strict=True))
    assert found.segments[0].described_by == listing[2].key
    assert [orphan.keys for orphan in found.orphans] == [
        (f"{FOLDER.folder}12/zebra",),
        (listing[3].key, listing[4].key),
    ]
    assert "no .indexes" in found.orphans[1].reason
