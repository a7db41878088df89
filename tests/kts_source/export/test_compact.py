"""Compaction: the latest visible record of every key, whatever fits into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from kts_source.errors import InvalidOptionError
from kts_source.export import compact
from kts_source.export.errors import ExportError, FingerprintError, UnsupportedTargetError
from kts_source.export.executor import LocalExecutor
from tests.golden_data import expected_table, topic_summary
from tests.kts_source.export import exporting
from tests.kts_source.export.exporting import FORMATS, Lake

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "compacted"


def source(topics: str | tuple[str, ...], **options: str) -> dict[str, str]:
    """Records with a key only: every golden topic has some without."""
    return exporting.source(topics, where="key is not null", **options)


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def cleaned(
    topic: str,
    *,
    below: int = 1 << 62,
    tombstones: str = "keep",
    retention_ms: int = 86_400_000,
    isolation_level: Any = "read_committed",  # noqa: ANN401
) -> dict[tuple[int, bytes], dict[str, Any]]:
    """What Kafka's cleaner would leave, record by record."""
    found: dict[tuple[int, bytes], dict[str, Any]] = {}
    newest: dict[int, Any] = {}
    for row in expected_table(topic, isolation_level).to_pylist():
        if row["offset"] >= below or row["key"] is None:
            continue
        found[row["partition"], row["key"]] = row
        time = row["timestamp"].timestamp() * 1000
        newest[row["partition"]] = max(newest.get(row["partition"], time), time)

    def stays(row: dict[str, Any]) -> bool:
        if row["value"] is not None or tombstones == "keep":
            return True
        horizon = newest[row["partition"]] - retention_ms
        return tombstones == "remove-old" and row["timestamp"].timestamp() * 1000 >= horizon

    return {place: row for place, row in found.items() if stays(row)}


def assert_compacted(table: pa.Table, expected: dict[tuple[int, bytes], dict[str, Any]]) -> None:
    rows = table.to_pylist()
    found = {(row["partition"], row["key"]): row for row in rows}
    assert len(rows) == len(found)
    assert found.keys() == expected.keys()
    for place, row in expected.items():
        for name in ("topic", "partition", "offset", "value", "timestamp"):
            assert found[place][name] == row[name]


def test_latest_records(lake: Lake) -> None:
    report = lake.export(source(TOPIC), compact=True)
    table = lake.read()
    expected = cleaned(TOPIC)
    assert_compacted(table, expected)
    assert set(table["topicId"].to_pylist()) == {topic_summary(TOPIC)["topicId"]}
    assert report.rows == len(expected) < report.rows_read
    assert lake.export(source(TOPIC), compact=True).commits == 0
    assert not list(lake.folder.rglob("spill/*"))


def test_uncommitted_records_are_not_the_latest(tmp_path: Path) -> None:
    assert cleaned("txn") != cleaned("txn", isolation_level="read_uncommitted")
    lake = Lake(tmp_path, "parquet")
    lake.export(source("txn"), compact=True)
    assert_compacted(lake.read(), cleaned("txn"))


@pytest.mark.parametrize("tombstones", ["keep", "remove", "remove-old"])
def test_tombstones(tmp_path: Path, tombstones: str) -> None:
    retention_ms = 1000
    expected = cleaned(TOPIC, tombstones=tombstones, retention_ms=retention_ms)
    lake = Lake(tmp_path, "parquet")
    lake.export(
        source(TOPIC), compact=True, tombstones=tombstones, delete_retention_ms=retention_ms
    )
    assert_compacted(lake.read(), expected)


def test_the_golden_topic_has_tombstones_of_both_kinds() -> None:
    rows = cleaned(TOPIC)
    assert any(row["value"] is None for row in rows.values())
    kept = cleaned(TOPIC, tombstones="remove")
    assert len(kept) < len(rows)


def test_memory_too_small_for_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "HELD_BYTES", 20_000)
    monkeypatch.setattr(compact, "BUCKET_BYTES", 100_000)
    lake = Lake(tmp_path, "parquet")
    lake.export(source(TOPIC), compact=True)
    assert_compacted(lake.read(), cleaned(TOPIC))


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_rebuild_replaces_the_table(tmp_path: Path, table_format: str) -> None:
    lake = Lake(tmp_path, table_format)
    partitions = dict.fromkeys(range(len(topic_summary(TOPIC)["partitions"])), 300)
    numbers = ",".join(f'"{number}":{offset}' for number, offset in partitions.items())
    ends = f'{{"{TOPIC}":{{{numbers}}}}}'
    lake.export(source(TOPIC, endingOffsets=ends), compact=True)
    assert_compacted(lake.read(), cleaned(TOPIC, below=300))
    lake.export(source(TOPIC), compact=True)
    assert_compacted(lake.read(), cleaned(TOPIC))
    with pytest.raises(FingerprintError, match="compact"):
        lake.export(source((TOPIC, "txn")), compact=True)


def test_a_folder_cannot_be_replaced(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    lake.export(source(TOPIC, endingOffsets=f'{{"{TOPIC}":{{"0":300}}}}'), compact=True)
    with pytest.raises(UnsupportedTargetError, match="cannot be replaced in one step"):
        lake.export(source(TOPIC), compact=True)
    assert_compacted(lake.read(), cleaned(TOPIC, below=300))


def test_rows_of_others_are_not_replaced(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    write_deltalake(lake.target, expected_table("txn", "read_committed"))
    with pytest.raises(ExportError, match="would remove"):
        lake.export(source(TOPIC), compact=True)


def test_a_record_without_key_is_refused(tmp_path: Path) -> None:
    topic = "codecs"
    assert any(row["key"] is None for row in expected_table(topic, "read_committed").to_pylist())
    with pytest.raises(ExportError, match=rf"without a key.*topic {topic}, partition 0, offset \d"):
        Lake(tmp_path, "parquet").export(exporting.source(topic), compact=True)


def test_several_processes_agree_on_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "BUCKET_BYTES", 100_000)
    lake = Lake(tmp_path, "parquet")
    lake.export(source(TOPIC), compact=True, partition_by=["topic"], executor=LocalExecutor(1))
    assert_compacted(lake.read(), cleaned(TOPIC))


def test_wrong_arguments(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    with pytest.raises(InvalidOptionError, match="tombstones"):
        lake.settings(compact=True, tombstones="bury")
    with pytest.raises(InvalidOptionError, match="neither transform"):
        lake.settings(compact=True, sort_within_files=["key"])


ROWS = st.lists(
    st.tuples(st.sampled_from(["x", "y"]), st.integers(0, 2), st.binary(max_size=2)), max_size=40
)


@given(ROWS, st.randoms(use_true_random=False))
def test_latest_equals_a_dictionary(rows: list[tuple[str, int, bytes]], random: Any) -> None:  # noqa: ANN401
    numbered = list(enumerate(rows))
    expected = {row: offset for offset, row in numbered}
    random.shuffle(numbered)
    table = pa.table(
        {
            "topicId": pa.array([row[0] for _, row in numbered], pa.string()),
            "partition": pa.array([row[1] for _, row in numbered], pa.int32()),
            "key": pa.array([row[2] for _, row in numbered], pa.binary()),
            "offset": pa.array([offset for offset, _ in numbered], pa.int64()),
        }
    )
    found = compact.latest(table).to_pylist()
    assert len(found) == len(expected)
    assert {
        (row["topicId"], row["partition"], row["key"]): row["offset"] for row in found
    } == expected
