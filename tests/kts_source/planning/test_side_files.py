"""What planning reads beside manifests: batch headers in place of a side file that is bad."""

from __future__ import annotations

import pytest

from kts_source.errors import CorruptSegmentError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource, SegmentSpan
from kts_source.tier import open_tier
from segment_format.record.framing import iter_entries
from tests.golden_data import tier_options


@pytest.mark.parametrize("damage", ["cut", "negative length", "too long"])
def test_a_log_that_ends_inside_a_batch_is_named_where_its_headers_are_replayed(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parse_options(tier_options("txn"))
    tier = open_tier(options)
    source = SegmentSource(tier, options.key_ring.loaded())
    side_files = SideFiles(source, max_batch_bytes=1 << 30)
    segment = plan_scan(options, tier).partitions[0].surviving.ranges[0].segment
    whole = list(side_files.batches(segment, 0))
    size = segment.objects.size_in_bytes
    place = segment.topic, segment.partition, segment.start_offset, segment.objects
    span = SegmentSpan(*place, 0, size)
    log = bytearray(b"".join(bytes(window) for _, window in source.windows([span])))
    *_, last = iter_entries(log)
    if damage == "cut":
        del log[-1]
    else:
        length = -1 if damage == "negative length" else 1 << 30
        log[last.position + 8 : last.position + 12] = length.to_bytes(4, "big", signed=True)
    monkeypatch.setattr(source, "windows", lambda _: [(span, log[:999]), (span, log[999:])])
    batches = side_files.batches(segment, 0)
    # The batch before the damaged one waits for a next batch that confirms its offsets.
    found = [next(batches).base_offset for _ in whole[:-2]]
    assert found == [batch.base_offset for batch in whole[:-2]]
    with pytest.raises(CorruptSegmentError, match="record batch") as raised:
        next(batches)
    assert raised.value.position == last.position
