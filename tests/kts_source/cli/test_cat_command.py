"""Tests `kts cat`: which records it prints, and in which formats."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kts_source.cli.app import main
from kts_source.cli.record_formats import record_writer
from segment_format.testing import LogBuilder, SimpleRecord
from tests.golden_data import KEYS, TIER, expected_table
from tests.kts_source.auditing.damaged_tier import write_tier

if TYPE_CHECKING:
    from pathlib import Path

KEY = f"encryption.key.pairs.key1.private.key.file={KEYS / 'key1.private.pem'}"
WHERE = [str(TIER), "--key-prefix", "tiered/", "-o", KEY]
KCAT = "%t %p %o %T %K=%k %S=%v %s %h%%\\t\\x41\\n"


def output(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> bytes:
    assert main(["cat", *WHERE, *arguments]) == 0
    return capfdbinary.readouterr().out


def expected_rows(topic: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = expected_table(topic, "read_committed").to_pylist()
    return rows


def test_tail_prints_the_last_records_by_timestamp(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    lines = output(capfdbinary, "txn", "--tail", "7", "--json").splitlines()
    shown = [(row["partition"], row["offset"]) for row in map(json.loads, lines)]
    order = ("timestamp", "partition", "offset")
    rows = sorted(expected_rows("txn"), key=lambda row: tuple(row[name] for name in order))
    assert shown == [(row["partition"], row["offset"]) for row in rows[-7:]]


def test_tail_with_a_condition_prints_the_last_matching_records(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    rows = [row for row in expected_rows("codecs") if row["partition"] == 0]
    key = rows[0]["key"]
    assert isinstance(key, bytes)
    wanted = [row["offset"] for row in rows if row["key"] == key][-2:]
    flags = ("-p", "0", "--where", f"key = '{key.decode()}'", "--tail", "2", "--columns", "offset")
    lines = output(capfdbinary, "codecs", *flags).splitlines()
    assert [json.loads(line) for line in lines] == [{"offset": offset} for offset in wanted]


def test_tail_of_more_records_than_exist_prints_all_records(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    lines = output(capfdbinary, "epochs", "--tail", "100000").splitlines()
    assert len(lines) == len(expected_rows("epochs"))
    assert output(capfdbinary, "epochs", "--tail", "0") == b""


def test_cat_without_topic_lists_topics_of_the_tier(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cat", *WHERE]) == 2
    error = capsys.readouterr().err
    assert error.startswith("kts: TOPIC is missing; topics of this tier: ")
    assert "codecs" in error
    assert "txn" in error


def test_unknown_partition_is_an_error_that_names_existing_partitions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cat", *WHERE, "txn", "-p", "7"]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert "topic 'txn' has no partition 7 in the tier; existing partitions: 0, 1" in error
    assert "other partitions" not in error
    assert main(["cat", *WHERE, "txn", "-p", "7", "-p", "0"]) == 1
    assert "--no-fail-on-data-loss to read the other partitions" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--since", "1h"], ["--since", "1h", "--tail", "3"]])
def test_since_without_newer_records_prints_time_of_the_newest_record(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: list[str]
) -> None:
    log = LogBuilder()
    log.append([SimpleRecord(b"v", timestamp=1_700_000_000_000)])
    log.roll()
    tier = write_tier(tmp_path / "tier", list(log.build().segments))
    assert main(["cat", str(tier.root), "--subscribe-pattern", ".*", *flags]) == 0
    out, error = capsys.readouterr()
    assert out == ""
    assert "the newest record is from 2023-11-14T22:13:20+00:00" in error


def test_starting_timestamp_after_newest_record_is_an_invalid_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = LogBuilder()
    log.append([SimpleRecord(b"v", timestamp=1_700_000_000_000)])
    log.roll()
    tier = write_tier(tmp_path / "tier", list(log.build().segments))
    flags = ["--subscribe-pattern", ".*", "--starting-timestamp", "2023-11-15"]
    assert main(["cat", str(tier.root), *flags]) == 2
    error = capsys.readouterr().err
    assert "1700006400000 ms (2023-11-15T00:00:00.000+00:00): the newest record is from" in error
    assert "from 2023-11-14T22:13:20.000+00:00. Set" in error


def test_since_without_matching_records_prints_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cat", *WHERE, "epochs", "--since", "2020-01-01", "--where", "offset < 0"]) == 0
    assert capsys.readouterr().err == "no records\n"


@pytest.mark.parametrize(
    ("since", "error"),
    [
        ("5", "has no unit"),
        ("yesterday", "--since must"),
        ("1764255600", "--since must be in ms since 1970"),
        ("99999999999", "write 99999999999000"),
    ],
)
def test_invalid_since_is_an_error_that_names_the_flag(
    capsys: pytest.CaptureFixture[str], since: str, error: str
) -> None:
    assert main(["cat", *WHERE, "txn", "--since", since]) == 2
    assert error in capsys.readouterr().err


def test_partition_flag_selects_partitions_of_the_topic(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    lines = output(capfdbinary, "txn", "-p", "1", "--columns", "partition,offset").splitlines()
    wanted = [row["offset"] for row in expected_rows("txn") if row["partition"] == 1]
    assert [json.loads(line) for line in lines] == [
        {"partition": 1, "offset": offset} for offset in wanted
    ]
    assert main(["cat", *WHERE, "-p", "1", "--subscribe-pattern", "txn"]) == 2


def test_since_flag_accepts_a_time_or_a_duration(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    now = int(time.time() * 1000)
    builder = LogBuilder()
    builder.append([SimpleRecord(b"old", timestamp=now - 7_200_000)])
    builder.append([SimpleRecord(b"new", timestamp=now - 60_000)])
    tier = write_tier(tmp_path / "tier", list(builder.build().segments))
    command = ["cat", str(tier.root), "--subscribe-pattern", ".*", "--columns", "value", "--since"]
    for since, values in (("1h", ["new"]), ("3h", ["old", "new"]), ("5s", []), ("1970-01-02", 2)):
        assert main([*command, since]) == 0
        lines = capfdbinary.readouterr().out.splitlines()
        assert [json.loads(line)["value"] for line in lines] == (
            ["old", "new"] if values == 2 else values
        )
    assert main([*command, "yesterday"]) == 2
    assert main([*command, "1h", "--starting-offsets", "earliest"]) == 2


def test_kcat_format_string_writes_bytes_as_stored(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    out = output(capfdbinary, "epochs", "--format", KCAT, "--limit", "50")
    expected = b""
    for row in expected_rows("epochs")[:50]:
        key, value, headers = row["key"], row["value"], row["headers"]
        assert isinstance(headers, list)
        sizes = [-1 if data is None else len(data) for data in (key, value)]  # type: ignore[arg-type]
        texts = [data if isinstance(data, bytes) else b"" for data in (key, value)]
        shown = b",".join(h["key"].encode() + b"=" + (h["value"] or b"") for h in headers)
        stamp = row["timestamp"].timestamp()  # type: ignore[attr-defined]
        expected += f"epochs {row['partition']} {row['offset']} {round(stamp * 1000)} ".encode()
        expected += b"%d=%b %d=%b %b " % (sizes[0], texts[0], sizes[1], texts[1], texts[1])
        expected += shown + b"%\tA\n"
    assert out == expected


@pytest.mark.parametrize("form", ["%k %q", "%k \\q", "%k \\xZZ", "jsn", "%k %"])
def test_invalid_format_is_refused_before_reading(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cat", *WHERE, "epochs", "--format", form]) == 2
    assert "--format" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [("--csv", "--json"), ("--format", "raw", "--csv")])
def test_two_flags_that_set_the_format_are_refused(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cat", *WHERE, "txn", *flags]) == 2
    assert "set the format: keep one" in capsys.readouterr().err


def test_csv_output_distinguishes_null_empty_and_binary_values(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    values = [None, b"", b'a,"b"\n', b"\xff\x00", b"base64:"]
    schema = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    batch = pa.record_batch([pa.array(values), pa.array(range(5))], schema=schema)
    record_writer("csv", schema).write(batch)
    sys.stdout.flush()
    out = capfdbinary.readouterr().out
    assert out == (
        b'value,offset\r\n,0\r\n"",1\r\n"a,""b""\n",2\r\nbase64:/wA=,3\r\nbase64:YmFzZTY0Og==,4\r\n'
    )
    parsed = list(csv.reader(io.StringIO(out.decode(), newline="")))
    assert [row[0] for row in parsed[1:4]] == ["", "", 'a,"b"\n']


def test_table_output_aligns_columns_and_truncates_long_values(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    flags = ("--columns", "offset,value", "--limit", "30", "--format", "table")
    lines = output(capfdbinary, "txn", *flags).decode().splitlines()
    assert lines[0].split() == ["offset", "value"]
    assert len(lines) == 31
    assert max(map(len, lines)) == 70
    offsets = [row["offset"] for row in expected_rows("txn")[:30]]
    assert [int(line.split()[0]) for line in lines[1:]] == offsets


def test_cat_exits_without_error_if_the_pipe_is_closed() -> None:
    command = [sys.executable, "-m", "kts_source.cli", "cat", *WHERE, "codecs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        err = child.stderr.read()
    assert (child.returncode, err) == (0, b"")


def test_cat_with_follow_prints_last_records_and_then_new_records(tmp_path: Path) -> None:
    builder = LogBuilder()
    for number in range(3):
        builder.append([SimpleRecord(b"%d" % number)])
        builder.roll()
    first, *later = builder.build().segments
    tier = write_tier(tmp_path / "tier", [first, *later[:1]])
    command = [sys.executable, "-m", "kts_source.cli", "cat", str(tier.root), "--format", "%v\\n"]
    command += ["--subscribe-pattern", ".*", "--tail", "1", "--follow"]
    command += ["-o", "minListingIntervalMs=100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "1\n"
        write_tier(tmp_path / "tier", later)
        assert child.stdout.readline() == "2\n"
        child.send_signal(2)
        assert child.stdout.read() == ""
    assert child.returncode == 0


def test_routine_notes_are_printed_only_with_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", *WHERE, "txn", "--ending-offsets", '{"txn":{"0":100,"1":100}}']
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    assert main([*command, "-v"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "aborted transactions are skipped" in line
