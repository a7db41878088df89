"""Tests that current code reads the caches and metrics that earlier code wrote."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kts_source
from kts_source import metrics
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import (
    CHUNK_SIZE,
    EXPECTED,
    KEY_PREFIX,
    TIER,
    IsolationLevel,
    assert_same_rows,
    expected_table,
)
from tests.stored.samples import CACHE_FOREVER, CACHES, METRICS, PLANS, V1
from tests.stored.stable_store import ROOTS, register_stable_store, scan_rows, store_path

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stored.samples import ScanSample

V1_DIGEST = "a489148f8f2085d840a98d25811e4c7eb1187d78411322b80fde6cbe3021a0a6"
PLAN_NAMES = [sample.name for sample in PLANS]
CACHE_NAMES = [sample.name for sample in CACHES]


@pytest.fixture(autouse=True, scope="module")
def stable_store() -> None:
    register_stable_store()


def cached_options(sample: ScanSample, folder: Path) -> dict[str, str]:
    cache = {**CACHE_FOREVER, "cacheDir": str(folder / "cache")}
    return {**sample.source(store_path(sample, folder)), **cache}


def golden_rows(sample: ScanSample) -> pa.Table:
    level: IsolationLevel = (
        "read_uncommitted" if "isolationLevel" in sample.options else "read_committed"
    )
    folder = sample.expected_folder or EXPECTED
    return pa.concat_tables(
        [expected_table(topic, level, folder=folder) for topic in sample.topics]
    )


def expected_rows(sample: ScanSample) -> pa.Table:
    rows = golden_rows(sample)
    if sample.name == "where":
        offsets = rows["offset"]
        between = pc.and_(pc.greater_equal(offsets, 100), pc.less_equal(offsets, 700))
        return rows.filter(pc.and_(between, pc.is_valid(rows["key"])))
    if sample.name == "timestamps":
        return between_times(
            rows, *(int(sample.options[f"{end}ingTimestamp"]) for end in ("start", "end"))
        )
    return rows


def between_times(rows: pa.Table, start: int, stop: int) -> pa.Table:
    """Returns the rows that a read between two timestamps in milliseconds must return: in each
    partition, the rows from the first timestamp >= `start` to before the first timestamp >=
    `stop`.
    """
    slices = []
    for partition in sorted(set(rows["partition"].to_pylist())):
        log = rows.filter(pc.equal(rows["partition"], partition))
        times = log["timestamp"].cast(pa.int64()).to_numpy() // 1000
        assert times.max() >= stop
        first, last = (int((times >= bound).argmax()) for bound in (start, stop))
        slices.append(log.slice(first, last - first))
    return pa.concat_tables(slices)


def test_stored_samples_have_their_recorded_checksums() -> None:
    digest = hashlib.sha256()
    for path in sorted(path for path in V1.rglob("*") if path.is_file()):
        name = path.relative_to(V1).as_posix()
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    assert digest.hexdigest() == V1_DIGEST, "stored samples must never change"


def test_cache_samples_include_every_stored_cache() -> None:
    assert sorted(path.name for path in (V1 / "caches").iterdir()) == sorted(CACHE_NAMES)


@pytest.mark.parametrize("sample", PLANS, ids=PLAN_NAMES)
def test_stored_plan_is_replayed(sample: ScanSample, tmp_path: Path) -> None:
    options = sample.source(store_path(sample, tmp_path))
    file = tmp_path / "plan.json"
    file.write_text(kts_source.plan(options).to_json())
    expected = expected_rows(sample)
    is_narrowed = sample.name in ("timestamps", "where")
    assert (0 < expected.num_rows < golden_rows(sample).num_rows) == is_narrowed
    assert_same_rows(scan_rows({**options, "cache": "false", "planFile": str(file)}), expected)


@pytest.mark.parametrize("sample", CACHES, ids=CACHE_NAMES)
def test_stored_cache_is_used_or_refilled(sample: ScanSample, tmp_path: Path) -> None:
    # `copyfile` does not copy file times, because the cache stores the last access in them.
    shutil.copytree(V1 / "caches" / sample.name, tmp_path / "cache", copy_function=shutil.copyfile)
    options = cached_options(sample, tmp_path)
    for _ in range(2):  # the second scan also reads the entries that the first one added
        assert_same_rows(scan_rows(options), expected_rows(sample))


@pytest.mark.parametrize("sample", CACHES, ids=CACHE_NAMES)
def test_damaged_cache_entries_are_refilled(sample: ScanSample, tmp_path: Path) -> None:
    """Entries contain a checksum. Objects of damaged entries are read from the store."""
    shutil.copytree(V1 / "caches" / sample.name, tmp_path / "cache", copy_function=shutil.copyfile)
    for entry in (tmp_path / "cache").rglob("*.entry"):
        data = bytearray(entry.read_bytes())
        data[len(data) * 3 // 4] ^= 1
        entry.write_bytes(data)
    assert_same_rows(scan_rows(cached_options(sample, tmp_path)), expected_rows(sample))


def test_cache_entries_of_another_object_version_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objects of the store have the keys and chunk positions of cached objects, but other
    content and versions.
    """
    sample = CACHES[CACHE_NAMES.index("chunks")]
    shutil.copytree(V1 / "caches" / "chunks", tmp_path / "cache", copy_function=shutil.copyfile)
    monkeypatch.setitem(ROOTS, "golden", tmp_path / "tier")
    manifests = sorted(TIER.glob("tiered/epochs-*/0/*.rsm-manifest"))
    builder, segment_ids = LogBuilder(), []
    for manifest in manifests:
        metadata = json.loads(manifest.read_text())["remoteLogSegmentMetadata"]
        segment_ids.append(metadata["remoteLogSegmentId"])
        offsets = range(metadata["startOffset"], metadata["endOffset"] + 1)
        assert builder.next_offset == offsets.start
        # Segments are longer than a chunk, so that chunks keep their positions.
        builder.append([SimpleRecord(b"%d" % offset * 100) for offset in offsets])
        builder.roll()
    log = builder.build()
    for segment, segment_id in zip(log.segments, segment_ids, strict=True):
        writer = AivenTierWriter(
            tmp_path / "tier",
            topic="epochs",
            topic_id=segment_id["topicIdPartition"]["topicId"],
            key_prefix=KEY_PREFIX,
            chunk_size=CHUNK_SIZE,
        )
        writer.write_segment(segment, segment_id=segment_id["id"])
    assert all((tmp_path / "tier" / path.relative_to(TIER)).exists() for path in manifests)
    table = scan_rows(cached_options(sample, tmp_path))
    assert table["offset"].to_pylist() == [row.offset for row in log.rows()]
    assert table["value"].to_pylist() == [row.value for row in log.rows()]


def test_summary_of_stored_metrics_equals_sums_of_lines() -> None:
    files = sorted((V1 / "metrics").iterdir())
    lines: list[dict[str, Any]] = [
        json.loads(line) for file in files for line in file.read_text().splitlines()
    ]
    assert len(lines) > 1
    result = metrics.summary(str(V1 / "metrics"))
    numbers = {
        name
        for name, value in lines[0].items()
        if isinstance(value, int | float) and name not in ("attempt", "stage", "partition")
    }
    assert len(numbers) > 20
    for name in numbers:
        assert result.total[name] == pytest.approx(sum(line[name] for line in lines)), name
    assert result.total["rows"] == golden_rows(METRICS).num_rows
    assert result.outcomes == {"done": len(lines)}
    assert {task.topic_partitions for task in result.tasks} == {
        tuple(line["topic_partitions"]) for line in lines
    }
    assert len({task.scan for task in result.tasks}) == 1
    assert f"{len(lines)} task attempts ({len(lines)} done)" in str(result)
