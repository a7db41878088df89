"""Tests which changes of a partition change its digest.

Changing a bit of a batch that consumers can read changes the digest. Storing the batches in another
layout, or in other segments, does not change it.
"""

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
from tests.kts_source.auditing.test_state import CountingStore, write_store
from tests.kts_source.auditing.test_vectorized_checks import audit_store, split_batches

if TYPE_CHECKING:
    from kts_source.auditing.report import AuditReport
    from segment_format.testing import SegmentFiles


def defined_digest(batches: list[tuple[int, int]]) -> str:
    total = 0
    for _, block in itertools.groupby(batches, key=lambda batch: batch[0] // 4096):
        data = b"".join(struct.pack(">qI", *batch) for batch in block)
        total += int.from_bytes(hashlib.sha256(data).digest(), "big")
    return f"{total % 2**256:064x}"


STEPS = st.lists(
    st.tuples(st.sampled_from([1, 100, 3000, 4096, 9000]), st.integers(0, 2**32 - 1)), max_size=40
)


@given(steps=STEPS, cuts=st.lists(st.integers(0, 40), max_size=6))
def test_digest_does_not_depend_on_how_batches_are_divided_into_segments(
    steps: list[tuple[int, int]], cuts: list[int]
) -> None:
    bases = list(itertools.accumulate(step for step, _ in steps))
    batches = [(base, crc) for base, (_, crc) in zip(bases, steps, strict=True)]
    total = PartDigest()
    for low, high in itertools.pairwise([0, *sorted(cuts), len(batches)]):
        segment = PartDigest()
        for rows in (batches[low:high][:3], batches[low:high][3:]):
            columns = np.array(rows, np.int64).reshape(-1, 2)
            segment.update(columns[:, 0], columns[:, 1])
        total.add(segment.part())
    assert total.text() == defined_digest(batches)


def report_digest(report: AuditReport) -> str:
    (statement,) = report.partitions
    assert statement.digest is not None
    return statement.digest


HEALTHY_DIGEST = report_digest(audit_store(write_store(healthy_segments())))


def add_segments(store: CountingStore, segments: list[SegmentFiles]) -> CountingStore:
    rng = random.Random(77)
    writer = AivenTierWriter(
        store.objects, topic=TOPIC, topic_id=TOPIC_ID, chunk_size=90, random_bytes=rng.randbytes
    )
    for segment in segments:
        writer.write_segment(segment)
    return store


def test_digest_ignores_duplicate_segments_and_segments_of_dead_branches() -> None:
    segments = healthy_segments()
    twice = audit_store(add_segments(write_store(segments), segments[1:3]))
    assert {finding.name for finding in twice.findings} == {"duplicate-upload"}
    assert report_digest(twice) == HEALTHY_DIGEST
    # These offsets exist twice: here with epoch 1, and in the served log with epoch 3.
    builder = LogBuilder(start_offset=82, leader_epoch=1)
    builder.append([SimpleRecord(b"lost")] * 50)
    builder.roll()
    (lost,) = builder.build().segments
    with_branch = audit_store(add_segments(write_store(segments), [lost]))
    assert {finding.name for finding in with_branch.findings} == {"dead-branch"}
    assert report_digest(with_branch) == HEALTHY_DIGEST


def test_digest_does_not_depend_on_the_layout() -> None:
    store = CountingStore({})
    writer = LocalTierWriter(store.objects, topic=TOPIC, topic_id=TOPIC_ID)
    for segment in healthy_segments():
        writer.write_segment(segment)
    options = {"path": "memory://", "subscribe": TOPIC, "layout": "local-tiered-storage"}
    assert report_digest(kts_source.audit(options, level="bytes", store=store)) == HEALTHY_DIGEST


@pytest.mark.parametrize("number", range(5))
def test_digest_changes_if_a_bit_of_a_batch_changes(number: int) -> None:
    rng = random.Random(number)
    for _ in range(4):
        segments = healthy_segments()
        batches = split_batches(segments[number].log)
        batch = batches[rng.randrange(len(batches) - 1)]
        batch[rng.randrange(70, len(batch))] ^= 1 << rng.randrange(8)
        batch[17:21] = google_crc32c.value(bytes(batch[21:])).to_bytes(4, "big")
        segments[number] = replace(segments[number], log=b"".join(batches))
        report = audit_store(write_store(segments))
        assert report_digest(report) != HEALTHY_DIGEST
