"""Checks that the peak memory of a task does not depend on the size of its segment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from segment_format.testing.tiers import AivenTierWriter
from tests.uniform_batches import uniform_segment, write_uniform_batches

ROOT = Path(__file__).resolve().parents[3]
BOUND = 512 << 20
VALUE_BYTES = 1000
RECORDS_PER_BATCH = 256
BATCHES = 2600


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a tier with one segment that is larger than the memory limit of a task, and returns
    the folder of the tier.
    """
    folder = tmp_path_factory.mktemp("tier")
    batches = write_uniform_batches(
        batch_count=BATCHES,
        records_per_batch=RECORDS_PER_BATCH,
        value_size=VALUE_BYTES,
        key_size=8,
        payload="json",
    )
    assert len(batches.data) > 1.2 * BOUND
    writer = AivenTierWriter(
        folder, topic="large", topic_id="AAAAAAAAAAAAAAAAAAAAAQ", partition=0, compression=True
    )
    writer.write_segment(uniform_segment(batches, log_start=0))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("sort_by", ["", "value"])
def test_export_of_large_segment_uses_bounded_memory(
    tier: Path, tmp_path: Path, sort_by: str
) -> None:
    module = "tests.kts_source.export.memory_child"
    run = subprocess.run(
        [sys.executable, "-m", module, tier, tmp_path / "lake", sort_by],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    rows, peak = map(int, run.stdout.split())
    assert rows == BATCHES * RECORDS_PER_BATCH
    assert peak <= BOUND
