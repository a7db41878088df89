"""Checks that exports of tiers with damaged transaction indexes write no row of an aborted
transaction.

A wave is the set of tasks of one commit. A transaction may begin in one wave and end in a later
wave.
"""

from __future__ import annotations

import itertools
import os
import random
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import CorruptSegmentError, OldBrokerError
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.small_tier import table_offsets
from tests.kts_source.planning.transaction_damage import build_log, damage_index

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from segment_format.testing import BuiltLog, SegmentFiles

TOPIC_ID = uuid.UUID(int=7)


def export_in_waves(
    lake: Lake, root: Path, segments: Iterable[SegmentFiles], **options: str
) -> CorruptSegmentError | OldBrokerError | None:
    """Writes a tier with the segments, and exports it with one segment per commit. Returns the
    error if the export was refused, else None.
    """
    writer = LocalTierWriter(str(root), topic="t", partition=0, topic_id=TOPIC_ID)
    for files in segments:
        writer.write_segment(files)
    tier = {
        "path": str(root),
        "subscribe": "t",
        "layout": "local-tiered-storage",
        "cache": "false",
        "maxSegmentsPerTask": "1",
        "isolationLevel": "read_committed",
    }
    try:
        lake.export({**tier, **options}, commit_bytes=1)
    except (CorruptSegmentError, OldBrokerError) as error:
        return error
    return None


def build_log_with_abort_in_next_segment() -> BuiltLog:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"plain")])
    builder.send(1, [SimpleRecord(b"aborted")])
    builder.roll()
    builder.append([SimpleRecord(b"plain")])
    builder.abort(1)
    builder.append([SimpleRecord(b"plain")])
    builder.roll()
    builder.append([SimpleRecord(b"plain")])
    builder.roll()
    return builder.build()


@pytest.mark.parametrize("table_format", FORMATS)
def test_export_commits_nothing_if_next_segment_lacks_transaction_index_entry(
    table_format: str, tmp_path: Path
) -> None:
    log = build_log_with_abort_in_next_segment()
    lake = Lake(tmp_path / "lake", table_format)
    lake.folder.mkdir()
    segments = [replace(files, txnindex=None) for files in log.segments]
    error = export_in_waves(lake, tmp_path / "damaged", segments)
    assert isinstance(error, CorruptSegmentError)
    assert (error.topic, error.partition) == ("t", 0)
    assert table_offsets(lake) == []
    assert export_in_waves(lake, tmp_path / "repaired", log.segments) is None
    assert table_offsets(lake) == [0, 2, 4, 5]


def test_hybrid_export_commits_nothing_if_next_segment_lacks_transaction_index_entry(
    tmp_path: Path,
) -> None:
    log = build_log_with_abort_in_next_segment()
    lake = Lake(tmp_path / "lake", "parquet")
    lake.folder.mkdir()
    segments = [replace(files, txnindex=None) for files in log.segments[:2]]
    with FakeCluster(versions={"ListOffsets": 9}) as brokers:
        partition = FakePartition(fake_log(log))
        partition.log.local_start = log.segments[1].base_offset
        brokers.create("t", [partition], TOPIC_ID)
        cluster = {"kafka.bootstrap.servers": brokers.bootstrap, "brokerFallback": "false"}
        error = export_in_waves(lake, tmp_path / "damaged", segments, **cluster)
        assert isinstance(error, CorruptSegmentError)
        assert table_offsets(lake) == []
        assert export_in_waves(lake, tmp_path / "repaired", log.segments[:2], **cluster) is None
        assert table_offsets(lake) == [0, 2, 4, 5]


@pytest.mark.parametrize("records", ["1", "2", "3", "4"])
def test_export_commits_nothing_if_split_segment_lacks_transaction_index_entry(
    records: str, tmp_path: Path
) -> None:
    builder = LogBuilder(index_interval_bytes=0)
    builder.append([SimpleRecord(b"plain")])
    builder.send(1, [SimpleRecord(b"aborted")])
    builder.append([SimpleRecord(b"plain")])
    builder.append([SimpleRecord(b"plain")])
    builder.abort(1)
    builder.append([SimpleRecord(b"plain")])
    builder.roll()
    builder.append([SimpleRecord(b"plain")])
    builder.roll()
    lake = Lake(tmp_path / "lake", "parquet")
    lake.folder.mkdir()
    segments = [replace(files, txnindex=None) for files in builder.build().segments]
    error = export_in_waves(lake, tmp_path / "damaged", segments, maxRecordsPerPartition=records)
    assert isinstance(error, CorruptSegmentError)
    assert table_offsets(lake) == []


def export_damaged_tiers(
    seed: int, folder: Path, *, share: float, flips: int
) -> tuple[int, list[str]]:
    """Damages a transaction index of a random log, and exports the tier with one segment per
    commit. Repeats this for a `share` of all possible damages. `flips` is passed to
    `damage_index`.

    Returns the number of refused exports, and a text for each damage after which the table had
    wrong rows.
    """
    source = random.Random(seed)
    log = build_log(seed)
    expected = [row.offset for row in log.rows("read_committed")]
    refused = 0
    wrong = []
    for number, files in enumerate(log.segments):
        for variant, index in enumerate(damage_index(files.txnindex or b"", source, flips)):
            if source.random() >= share:
                continue
            segments = [*log.segments]
            segments[number] = replace(files, txnindex=index or None)
            root = folder / f"{seed}-{number}-{variant}"
            lake = Lake(root, "parquet")
            cuts = source.choice(
                (
                    {},
                    {"targetPartitionBytes": "1"},
                    {"maxRecordsPerPartition": str(source.randint(1, 9))},
                )
            )
            error = export_in_waves(lake, root / "tier", segments, **cuts)
            rows = table_offsets(lake)
            refused += error is not None
            if not set(rows) <= set(expected) or (error is None and rows != expected):
                wrong.append(f"seed {seed}, segment {number}, damage {variant}: {rows}")
    return refused, wrong


@pytest.mark.parametrize("seed", range(2))
def test_export_with_damaged_index_writes_no_aborted_row(seed: int, tmp_path: Path) -> None:
    refused, wrong = export_damaged_tiers(seed, tmp_path, share=0.5, flips=4)
    assert refused > 3
    assert wrong == []


@pytest.mark.fuzz
def test_export_with_randomly_damaged_index_writes_no_aborted_row(tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("KTS_FUZZ_SECONDS", "120")) / 12
    first = int(os.environ.get("KTS_FUZZ_SEED", random.SystemRandom().randrange(1 << 32)))
    for seed in itertools.count(first):
        _, wrong = export_damaged_tiers(seed, tmp_path, share=1, flips=6)
        assert wrong == [], f"KTS_FUZZ_SEED={seed}"
        if time.monotonic() > end:
            break
