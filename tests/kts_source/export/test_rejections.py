"""Tests the limit of rejected records, the exit code and metrics of an export that exceeds it, and
the columns of dead letters.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from kts_source.cli.app import main
from kts_source.errors import InvalidOptionError, InvalidValueError, RejectedRowsError
from kts_source.export.end_offsets import end_offsets
from kts_source.export.rejections import RecordCounts, check_rejected, sum_counts
from kts_source.export.report import empty_report
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.read.typed_tier import TOPIC, as_avro, avro, write

if TYPE_CHECKING:
    from pathlib import Path

BYTES_AS_JSON = {"value.format": "json", "value.schema": "id bigint"}
TYPED = {"value.format": "json", "value.schema": "id bigint"}


def json_tier(folder: Path, bad: set[int], records: int) -> dict[str, str]:
    """Writes JSON values `{"id": n}`; the offsets in `bad` have a text that is not JSON."""
    values: list[bytes | None] = [
        b"no JSON" if number in bad else b'{"id": %d}' % number for number in range(records)
    ]
    return write(folder, [values]) | TYPED


@pytest.mark.parametrize("table_format", FORMATS)
def test_export_with_wrong_schema_fails_and_keeps_the_offsets(
    table_format: str, tmp_path: Path
) -> None:
    tier = write(tmp_path / "tier", [[avro(number) for number in range(30)]])
    lake, letters = Lake(tmp_path, table_format), tmp_path / "letters"
    arguments: dict[str, Any] = {"dead_letters": str(letters)}
    with pytest.raises(RejectedRowsError, match=r"30 of 30 records.*at most 1%") as raised:
        lake.export(tier | BYTES_AS_JSON, **arguments, max_rejected="1%")
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.rejected, error.records, error.topic, error.offset) == (30, 30, TOPIC, 0)
    assert not list(letters.glob("*.parquet"))
    # As the error advises, correct the schema and run again.
    report = lake.export(tier | as_avro(), **arguments, max_rejected="1%")
    assert (report.rows, report.rejected) == (30, 0)


@pytest.mark.parametrize(("bad", "limit"), [(3, "1%"), (2, "1.99%"), (1, "0%")])
def test_export_fails_if_the_share_of_rejected_records_exceeds_the_limit(
    bad: int, limit: str, tmp_path: Path
) -> None:
    tier = json_tier(tmp_path / "tier", set(range(bad)), 100)
    lake, letters = Lake(tmp_path, "parquet"), str(tmp_path / "letters")
    with pytest.raises(RejectedRowsError, match="If the registry lacks a schema, register it"):
        lake.export(tier, dead_letters=letters, max_rejected=limit)
    # As the error advises, raise max_rejected.
    report = lake.export(tier, dead_letters=letters, max_rejected=f"{bad}%")
    assert (report.rows, report.rejected) == (100 - bad, bad)


def test_export_fails_if_a_partition_is_rejected_completely(tmp_path: Path) -> None:
    values = [[b'{"id": 1}'] * 200, [b"no JSON"]]
    tier = write(tmp_path / "tier", [list(part) for part in values]) | TYPED
    lake, letters = Lake(tmp_path, "delta"), str(tmp_path / "letters")
    with pytest.raises(RejectedRowsError, match="all records of a partition") as raised:
        lake.export(tier, dead_letters=letters, max_rejected="1%")
    assert (raised.value.partition, raised.value.offset) == (1, 0)
    assert lake.export(tier, dead_letters=letters, max_rejected="100%").rejected == 1


def test_failed_wave_keeps_earlier_commits(tmp_path: Path) -> None:
    tier = json_tier(tmp_path / "tier", set(range(20, 30)), 30)
    lake, letters = Lake(tmp_path, "delta"), str(tmp_path / "letters")
    arguments: dict[str, Any] = {"dead_letters": letters, "max_rejected": "50%", "commit_bytes": 1}
    options = tier | {"maxSegmentsPerTask": "1"}
    with pytest.raises(RejectedRowsError):
        lake.export(options, **arguments)
    assert sorted(lake.read()["offset"].to_pylist()) == [*range(20)]
    ends = end_offsets(source=tier, target=lake.target, table_format="delta")
    assert json.loads(ends) == {TOPIC: {"0": 20}}


def test_record_counts_of_tasks_are_summed_by_partition() -> None:
    counts = [
        RecordCounts("b", 0, 10),
        RecordCounts("a", 1, 5, 1, 7, "x"),
        RecordCounts("a", 1, 5, 2, 12, "y"),
        RecordCounts("b", 0, 1, 1, 3, "z"),
    ]
    assert sum_counts(counts) == (
        RecordCounts("a", 1, 10, 3, 7, "x"),
        RecordCounts("b", 0, 11, 1, 3, "z"),
    )
    with pytest.raises(RejectedRowsError, match=r"4 of 21 .*a-1: 3 of 10, .*offset 7 \(x\); b-0"):
        check_rejected(counts, 0.1)
    check_rejected(counts, 0.2)


@pytest.mark.parametrize("text", ["", "1", "101%", "-1%", "1%%", "1e1%", 0.01])
def test_invalid_max_rejected_is_refused(text: Any, tmp_path: Path) -> None:  # noqa: ANN401
    with pytest.raises(InvalidOptionError, match="max_rejected must be a percentage"):
        Lake(tmp_path, "parquet").settings(max_rejected=text)


def test_kts_export_exits_with_4_and_writes_metrics(tmp_path: Path) -> None:
    tier = json_tier(tmp_path / "tier", {1, 2}, 20)
    metrics = tmp_path / "export.prom"
    arguments = ["export", tier["path"], TOPIC, str(tmp_path / "table"), "--workers", "1"]
    arguments += ["-o", "value.format=json", "-o", "value.schema=id bigint"]
    arguments += ["--dead-letters", str(tmp_path / "letters"), "--prometheus", str(metrics)]
    assert main(arguments) == 4
    label = f'{{target="{tmp_path}/table"}}'
    samples = metrics.read_text().splitlines()
    assert {f"kts_export_success{label} 0", f"kts_export_rejected_rows{label} 2"} <= {*samples}
    assert main([*arguments, "--max-rejected", "10%"]) == 0
    samples = metrics.read_text().splitlines()
    assert {
        f"kts_export_success{label} 1",
        f"kts_export_rejected_rows{label} 2",
        f"kts_export_rows{label} 18",
        f"kts_export_created{label} 1",
    } <= {*samples}
    assert main(arguments) == 0
    assert samples_of(metrics)["kts_export_created"] == "0"


def samples_of(metrics: Path) -> dict[str, str]:
    lines = (line for line in metrics.read_text().splitlines() if line[0] != "#")
    return {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines}


def test_malformed_row_without_dead_letters_exits_with_4_and_is_in_the_metrics(
    tmp_path: Path,
) -> None:
    tier = json_tier(tmp_path / "tier", {*range(20)}, 20)
    metrics = tmp_path / "export.prom"
    arguments = ["export", tier["path"], TOPIC, str(tmp_path / "table"), "--workers", "1"]
    arguments += ["-o", "value.format=json", "-o", "value.schema=id bigint"]
    assert main([*arguments, "--prometheus", str(metrics)]) == 4
    samples = samples_of(metrics)
    assert (samples["kts_export_success"], samples["kts_export_rejected_rows"]) == ("0", "1")


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ([], 4),
        (["--dead-letters", "{folder}"], 4),
        (["--dead-letters", "{folder}", "--max-rejected", "9%"], 4),
        (["--dead-letters", "{folder}", "--max-rejected", "10%"], 0),
        (["-o", "value.mode=PERMISSIVE"], 0),
        (["-o", "value.mode=DROPMALFORMED"], 0),
    ],
)
def test_dry_run_exits_with_the_code_of_the_run(
    flags: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tier = json_tier(tmp_path / "tier", {1, 2}, 20)
    metrics = tmp_path / "export.prom"
    arguments = ["export", tier["path"], TOPIC, str(tmp_path / "table"), "--workers", "1"]
    arguments += ["-o", "value.format=json", "-o", "value.schema=id bigint"]
    arguments += ["--prometheus", str(metrics)]
    arguments += [flag.format(folder=tmp_path / "letters") for flag in flags]
    assert main([*arguments, "--dry-run"]) == code
    assert not metrics.exists()  # they would clear an alert
    out, error = capsys.readouterr()
    assert "Dry run of " in out
    assert ("so a run would fail" in error) == (code == 4)
    assert "written to dead letters" not in error
    assert main(arguments) == code
    assert samples_of(metrics)["kts_export_success"] == ("1" if code == 0 else "0")


def test_failed_run_does_not_say_that_rows_were_written_to_dead_letters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = json_tier(tmp_path / "tier", {1, 2}, 20)
    with pytest.raises(RejectedRowsError):
        Lake(tmp_path, "parquet").export(
            tier, dead_letters=str(tmp_path / "letters"), max_rejected="1%"
        )
    (line,) = [text for text in caplog.messages if "cannot be decoded" in text]
    assert line.startswith("2 rows cannot be decoded and are rejected: ")


def test_prometheus_label_is_escaped() -> None:
    text = empty_report('a"\\\nb', "parquet").to_prometheus()
    assert 'kts_export_rows{target="a\\"\\\\\\nb"} 0\n' in text


def test_metrics_of_a_dry_run_are_refused() -> None:
    report = replace(empty_report("lake", "parquet"), dry_run=True)
    with pytest.raises(InvalidOptionError, match="a dry run has no metrics"):
        report.to_prometheus()


@pytest.mark.parametrize("columns", ["", "offset,timestamp"])
def test_dead_letters_contain_whole_records_and_the_run(tmp_path: Path, columns: str) -> None:
    log = LogBuilder()
    headers = (("a", b"1"), ("b", None))
    log.append(
        [
            SimpleRecord(b'{"id": 1}', b"k0", timestamp=1_700_000_000_000),
            SimpleRecord(b"{", b"k1", headers=headers, timestamp=1_700_000_000_001),
        ]
    )
    files = log.roll()
    assert files is not None
    writer = AivenTierWriter(str(tmp_path / "tier"), topic=TOPIC, partition=0)
    writer.write_segment(files)
    lake, letters = Lake(tmp_path, "parquet"), str(tmp_path / "letters")
    options = {"path": str(tmp_path / "tier"), "subscribe": TOPIC, "cache": "false"} | TYPED
    # A value that is no column of the table is not decoded, so it is not rejected.
    options |= {"columns": columns, "where": "value.id >= 0"} if columns else {}
    before = datetime.now(UTC)
    assert lake.export(options, dead_letters=letters).rejected == 1
    (row,) = ds.dataset(letters, format="parquet").to_table().to_pylist()
    assert before <= row.pop("rejectedAt") <= datetime.now(UTC)
    assert len(row.pop("runId")) == 32
    assert len(row.pop("topicId")) == 22
    assert row.pop("reason").startswith("value: ")
    assert row == {
        "key": b"k1",
        "value": b"{",
        "topic": TOPIC,
        "partition": 0,
        "offset": 1,
        "timestamp": datetime.fromtimestamp(1_700_000_000.001, UTC),
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        "target": lake.target,
        "exportId": "kts",
    }


def test_error_of_malformed_value_recommends_dead_letters(tmp_path: Path) -> None:
    tier = json_tier(tmp_path / "tier", {15}, 20)
    lake = Lake(tmp_path, "delta")
    lake.export(tier | {"endingOffsets": json.dumps({TOPIC: {"0": 10}})})
    with pytest.raises(InvalidValueError, match="Set dead_letters to a folder") as raised:
        lake.export(tier)
    assert "PERMISSIVE" not in str(raised.value)
    assert raised.value.offset == 15
    # Do what the error advises, in a table that already has rows.
    report = lake.export(tier, dead_letters=str(tmp_path / "letters"), max_rejected="10%")
    assert (report.rows, report.rejected) == (9, 1)
