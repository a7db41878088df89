"""Compares the batches that a restore appends with those of the independent writers of test
data.
"""

from __future__ import annotations

from kts_source.restore.partition_writer import abort_marker, empty_batch
from segment_format.record.records import iter_batches
from segment_format.testing import ABORT, write_control_batch


def test_abort_marker_equals_marker_of_test_writer() -> None:
    expected = write_control_batch(
        ABORT,
        base_offset=201,
        timestamp=1_700_000_000_100,
        producer_id=4242,
        producer_epoch=3,
        leader_epoch=7,
    )
    assert abort_marker(201, 4242, 3, 1_700_000_000_100, 7) == expected


def test_empty_batch_spans_given_offsets() -> None:
    (batch,) = iter_batches(empty_batch(500, 1500, 4))
    assert (batch.base_offset, batch.last_offset, batch.records) == (500, 1499, ())
    assert len(empty_batch(500, 1500, 4)) == 61
