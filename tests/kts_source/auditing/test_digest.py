"""The digest by its definition, however its batches are cut into parts; it is of what is served."""

from __future__ import annotations

import hashlib
import itertools
import random
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kts_source
from kts_source.auditing.proof import PartDigest
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.auditing.damaged_tier import TOPIC, TOPIC_ID, healthy_segments
from tests.kts_source.auditing.test_all_at_once import audited_store, batches_of
from tests.kts_source.auditing.test_state import CountingStore, store_of

if TYPE_CHECKING:
    from kts_source.auditing.report import AuditReport
    from segment_format.testing import SegmentFiles


def by_definition(batches: list[tuple[int, int]]) -> str:
    total = 0
    for _, block in itertools.groupby(batches, key=lambda one: one[0] // 4096):
        data = b"".join(struct.pack(">qI", *one) for one in block)
        total += int.from_bytes(hashlib.sha256(data).digest(), "big")
    return f"{total % 2**256:064x}"


STEPS = st.lists(
    st.tuples(st.sampled_from([1, 100, 3000, 4096, 9000]), st.integers(0, 2**32 - 1)), max_size=40
)


@given(steps=STEPS, cuts=st.lists(st.integers(0, 40), max_size=6))
def test_any_parts(steps: list[tuple[int, int]], cuts: list[int]) -> None:
    bases = list(itertools.accumulate(step for step, _ in steps))
    batches = [(base, crc) for base, (_, crc) in zip(bases, steps, strict=True)]
    whole = PartDigest()
    for low, high in itertools.pairwise([0, *sorted(cuts), len(batches)]):
        one = PartDigest()
        for part in (batches[low:high][:3], batches[low:high][3:]):
            columns = np.array(part, np.int64).reshape(-1, 2)
            one.update(columns[:, 0], columns[:, 1])
        whole.add(one.part())
    assert whole.text() == by_definition(batches)


def digest(report: AuditReport) -> str:
    (part,) = report.partitions
    assert part.digest is not None
    return part.digest


WHOLE = digest(audited_store(store_of(healthy_segments())))


def more(store: CountingStore, segments: list[SegmentFiles]) -> CountingStore:
    rng = random.Random(77)
    writer = AivenTierWriter(
        store.objects, topic=TOPIC, topic_id=TOPIC_ID, chunk_size=90, random_bytes=rng.randbytes
    )
    for one in segments:
        writer.write_segment(one)
    return store


def test_what_is_not_served_does_not_count() -> None:
    segments = healthy_segments()
    twice = audited_store(more(store_of(segments), segments[1:3]))
    assert {one.name for one in twice.findings} == {"duplicate-upload"}
    assert digest(twice) == WHOLE
    # A branch of epoch 1, where the log goes on with epoch 3.
    builder = LogBuilder(start_offset=82, leader_epoch=1)
    builder.append([SimpleRecord(b"lost")] * 50)
    builder.roll()
    (lost,) = builder.build().segments
    beside = audited_store(more(store_of(segments), [lost]))
    assert {one.name for one in beside.findings} == {"dead-branch"}
    assert digest(beside) == WHOLE


def test_another_layout_says_the_same() -> None:
    store = CountingStore({})
    writer = LocalTierWriter(store.objects, topic=TOPIC, topic_id=TOPIC_ID)
    for one in healthy_segments():
        writer.write_segment(one)
    options = {"path": "memory://", "subscribe": TOPIC, "layout": "local-tiered-storage"}
    assert digest(kts_source.audit(options, level="bytes", store=store)) == WHOLE


@pytest.mark.parametrize("number", range(5))
def test_each_bit_of_a_batch_counts(number: int) -> None:
    """Under a checksum that fits, so that only the digest tells."""
    rng = random.Random(number)
    for _ in range(4):
        segments = healthy_segments()
        batches = batches_of(segments[number].log)
        batch = batches[rng.randrange(len(batches) - 1)]
        batch[rng.randrange(70, len(batch))] ^= 1 << rng.randrange(8)
        batch[17:21] = google_crc32c.value(bytes(batch[21:])).to_bytes(4, "big")
        segments[number] = replace(segments[number], log=b"".join(batches))
        report = audited_store(store_of(segments))
        assert digest(report) != WHOLE
