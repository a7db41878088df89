"""Checks reads of batch headers and transaction indexes during planning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kts_source.errors import CorruptSegmentError
from kts_source.keyring import KeyRing
from kts_source.layout.aiven import AivenLayout
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.planning.side_files import SideFiles, check_transaction
from kts_source.read.segment_source import SegmentSource, SegmentSpan
from kts_source.tier import Tier, open_tier
from segment_format.errors import CorruptIndexError
from segment_format.index.transaction_index import AbortedTxn, write_transaction_index
from segment_format.record.framing import iter_entries
from segment_format.testing import AivenTierWriter
from tests.golden_data import tier_options
from tests.kts_source.auditing.damaged_tier import healthy_segments
from tests.kts_source.planning.memory_store import MemoryStore


@pytest.mark.parametrize("damage", ["cut", "negative length", "too long"])
def test_log_with_damaged_last_batch_raises_error_with_position(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parse_options(tier_options("txn"))
    tier = open_tier(options)
    source = SegmentSource(tier, options.key_ring.loaded())
    side_files = SideFiles(source, max_batch_bytes=1 << 30)
    segment = plan_scan(options, tier).partitions[0].surviving.ranges[0].segment
    intact_batches = list(side_files.batches(segment, 0))
    size = segment.objects.size_in_bytes
    segment_key = segment.topic, segment.partition, segment.start_offset, segment.objects
    span = SegmentSpan(*segment_key, 0, size)
    log = bytearray(b"".join(bytes(window) for _, window in source.windows([span])))
    *_, last = iter_entries(log)
    if damage == "cut":
        del log[-1]
    else:
        length = -1 if damage == "negative length" else 1 << 30
        log[last.position + 8 : last.position + 12] = length.to_bytes(4, "big", signed=True)
    monkeypatch.setattr(source, "windows", lambda _: [(span, log[:999]), (span, log[999:])])
    batches = side_files.batches(segment, 0)
    # A batch is returned only after the next batch confirms its offsets. So the batch before the
    # damaged batch is not returned either.
    base_offsets = [next(batches).base_offset for _ in intact_batches[:-2]]
    assert base_offsets == [batch.base_offset for batch in intact_batches[:-2]]
    with pytest.raises(CorruptSegmentError, match="record batch") as error:
        next(batches)
    assert error.value.position == last.position


@pytest.mark.parametrize(
    ("marker", "stable", "text"),
    [
        (9, 10, "abort marker at offset 9, which is not in the segment"),
        (30, 31, "abort marker at offset 30, which is not in the segment"),
        (20, 22, "last stable offset 22, which is above its abort marker at offset 20"),
    ],
)
def test_transaction_index_with_wrong_offsets_is_not_used(
    marker: int, stable: int, text: str
) -> None:
    (files,) = [segment_files for segment_files in healthy_segments() if segment_files.txnindex]
    objects: dict[str, bytes] = {}
    index = write_transaction_index([AbortedTxn(7, 5, marker, stable)])
    written = replace(files, base_offset=10, next_offset=30, txnindex=index)
    AivenTierWriter(objects, topic="t").write_segment(written)
    source = SegmentSource(Tier(MemoryStore(objects)), KeyRing())
    layout = AivenLayout()
    (folder,) = layout.topic_folders(source.store, "", "t")
    (entry,) = layout.list_partition(source.store, folder, 0).segments
    segment = layout.describe(source.store, entry)
    assert SideFiles(source, max_batch_bytes=1 << 30).aborted(segment) is None
    with pytest.raises(CorruptIndexError, match=text):
        check_transaction(AbortedTxn(7, 5, marker, stable), segment)
    check_transaction(AbortedTxn(7, 5, 29, 30), segment)
