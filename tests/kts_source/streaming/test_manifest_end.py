"""Checks that a stream reads the end offset of the newest segment from its log, not from its
manifest, in which no checksum covers the end offset.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.kts_source.export.small_tier import SmallTier
from tests.kts_source.streaming.running import Checkpointed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("end", [30, 31, 39])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_newest_manifest_with_too_high_end_loses_no_row(
    tmp_path: Path, end: int, isolation: str
) -> None:
    tier = SmallTier(tmp_path / "tier").grow(3)
    (key,) = (key for key in tier.keys[2] if key.endswith("manifest"))
    manifest = json.loads((tier.root / key).read_text())
    manifest["remoteLogSegmentMetadata"]["endOffset"] = end
    (tier.root / key).write_text(json.dumps(manifest))
    options = tier.options(minListingIntervalMs="0", isolationLevel=isolation)
    stream = Checkpointed({**options, "path": tier.root.as_uri()})
    stream.all()
    assert stream.last["topics"]["t"]["p"]["0"] == 30
    tier.grow(1)
    stream.all()
    offsets = [offset for rows in stream.batches.values() for offset in rows["offset"].to_pylist()]
    assert sorted(offsets) == list(range(40))
