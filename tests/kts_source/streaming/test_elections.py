"""Checks that a stream detects by the leader epoch of the last read record if a new leader has
replaced records that were already read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import DataLossError
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.streaming.running import Running

if TYPE_CHECKING:
    from pathlib import Path

    from segment_format.testing.segment import SegmentFiles

TOPIC_ID = "lZ6vvmajTWKDBUTV6SQAtQ"


def branch(*epochs: tuple[int, int]) -> list[SegmentFiles]:
    """Returns one segment for each pair of leader epoch and number of records."""
    log = LogBuilder(leader_epoch=epochs[0][0])
    for epoch, records in epochs:
        if epoch != epochs[0][0]:
            log.set_leader_epoch(epoch)
        log.append([SimpleRecord(f"epoch {epoch}".encode()) for _ in range(records)])
        log.roll()
    return list(log.build().segments)


@pytest.fixture
def stream(tmp_path: Path) -> Running:
    write(tmp_path, branch((0, 10), (1, 10)), 0)
    running = Running(tmp_path, "t", keyPrefix="")
    running.all()
    assert running.last["topics"]["t"] == {"id": TOPIC_ID, "p": {"0": 20}, "e": {"0": 1}}
    return running


def write(tier: Path, segments: list[SegmentFiles], first_second: int) -> None:
    writer = AivenTierWriter(tier, topic="t", topic_id=TOPIC_ID)
    for number, segment in enumerate(segments):
        writer.write_segment(segment, event_timestamp_ms=1000 * (first_second + number))


def test_records_replaced_after_they_were_read_raise_data_loss_error(
    tmp_path: Path, stream: Running
) -> None:
    # Epoch 2 begins at offset 10, so Kafka's log no longer has offsets [10, 20) of epoch 1.
    write(tmp_path, branch((0, 10), (2, 30))[1:], 10)
    with pytest.raises(DataLossError, match=r"offset 20, had leader epoch 1.* has epoch 2"):
        stream.batch()
    stream.start(failOnDataLoss="false")
    assert stream.all() == 1
    assert stream.batches[1]["offset"].to_pylist() == list(range(20, 40))
    assert stream.last["topics"]["t"]["e"] == {"0": 2}


def test_stream_continues_after_an_election_above_the_read_offset(
    tmp_path: Path, stream: Running
) -> None:
    write(tmp_path, branch((0, 10), (1, 10), (4, 5))[2:], 10)
    assert stream.all() == 1
    assert stream.last["topics"]["t"] == {"id": TOPIC_ID, "p": {"0": 25}, "e": {"0": 4}}


def test_stream_raises_data_loss_error_if_new_leader_ends_below_read_offset(
    tmp_path: Path, stream: Running
) -> None:
    write(tmp_path, branch((0, 10), (2, 5))[1:], 10)
    with pytest.raises(DataLossError, match=r"ends at offset 15 now.* up to 20"):
        stream.batch()


def test_segments_uploaded_again_add_no_batch(tmp_path: Path, stream: Running) -> None:
    write(tmp_path, branch((0, 10), (1, 10)), 10)
    assert stream.all() == 0


def test_replayed_batch_with_replaced_records_raises_data_loss_error(tmp_path: Path) -> None:
    """The replayed batch would have different rows than in its first run, whose rows the sink may
    have already stored.
    """
    write(tmp_path, branch((0, 10), (1, 10)), 0)
    strict, lenient = (
        Running(tmp_path, "t", keyPrefix="", failOnDataLoss=text) for text in ("true", "false")
    )
    for stream in (strict, lenient):
        assert stream.choose()
    write(tmp_path, branch((0, 10), (2, 30))[1:], 10)
    with pytest.raises(DataLossError, match=r"at offset 20 had leader epoch 1 .* has epoch 2"):
        strict.start()
    lenient.start()
    assert lenient.rows()["value"].to_pylist() == [b"epoch 0"] * 10 + [b"epoch 2"] * 10


def test_fixed_end_ignores_later_segments_of_dead_branch(tmp_path: Path) -> None:
    # In a copied bucket, modification times follow the offsets. Then only the segment of epoch 5
    # shows that the later segments of epoch 0 were replaced.
    replaced = branch(*[(0, 3)] * 12)
    (current,) = branch(*[(0, 3)] * 5, (5, 3))[5:]
    write(tmp_path, [*replaced[:5], current, *replaced[6:]], 0)
    for path in tmp_path.rglob("*-*.*"):
        written = 1_700_000_000 + int(path.name[:20])
        os.utime(path, (written, written))
    stream = Running(tmp_path, "t", keyPrefix="", stopAtEnd="true")
    assert stream.all() == 1
    assert stream.rows()["offset"].to_pylist() == list(range(18))
    assert stream.last["topics"]["t"]["e"] == {"0": 5}
