"""Tests the commands of `kts`: options, output as text and as JSON, and exit codes."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from kts_source.cli import cat_command
from kts_source.cli import main as run_kts
from kts_source.cli.app import all_commands, main
from kts_source.export.task_writer import LocalExecutor
from kts_source.libraries import install_command
from tests.golden_data import KEYS, TIER, expected_table, partition_summaries

KEY = f"encryption.key.pairs.key1.private.key.file={KEYS / 'key1.private.pem'}"
WHERE = ["--path", str(TIER), "--key-prefix", "tiered/", "-o", KEY]


def run(
    capsys: pytest.CaptureFixture[str], *arguments: str, path: Path = TIER
) -> tuple[int, str, str]:
    command, *flags = arguments
    where = ["--path", str(path), *WHERE[2:]]
    code = main([command, *where, *flags])
    out, err = capsys.readouterr()
    return code, out, err


def test_topics_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "topics", "--json")
    rows_by_partition = {(row["topic"], row["partition"]): row for row in json.loads(out)}
    assert code == 0
    for topic in ("codecs", "txn", "wide", "encrypted"):
        for number, summary in partition_summaries(topic).items():
            if summary["tier_end_offset"] is not None:
                row = rows_by_partition[topic, number]
                assert row["tierEnd"] == summary["tier_end_offset"]
                assert row["lastStableOffset"] == summary["tier_last_stable_offset"]


def test_topics_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "topics", "--subscribe", "txn")
    assert code == 0
    assert "3,675" in out
    assert "open transaction of producer 6 since offset 3675" in out


def test_segments_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "segments", "--subscribe", "crashed", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [(row["start"], row["stop"]) for row in rows if row["state"] == "read"] == [
        (0, 660),
        (660, 1300),
        (1300, 1900),
    ]
    assert {row["state"] for row in rows} == {"read", "its offsets are read from another segment"}
    _, out, _ = run(capsys, "segments", "--subscribe", "crashed")
    assert all(row["segment"] in out for row in rows)


def test_plan_command_prints_text_or_a_plan_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = run(capsys, "plan", "--subscribe", "codecs")
    assert code == 0
    assert "requests for" in out
    code, out, _ = run(capsys, "plan", "--subscribe", "codecs", "--json")
    (tmp_path / "plan.json").write_text(out)
    code, out, _ = run(
        capsys,
        "cat",
        "--subscribe",
        "codecs",
        "--plan-file",
        str(tmp_path / "plan.json"),
        "--limit",
        "3",
    )
    assert code == 0
    assert [json.loads(line)["offset"] for line in out.splitlines()] == [0, 1, 2]


def test_cat_command_prints_every_record_with_its_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "cat", "--subscribe", "epochs", "--include-headers")
    assert code == 0
    expected = expected_table("epochs", "read_committed").to_pylist()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["offset"] for line in lines] == [row["offset"] for row in expected]
    for line, row in zip(lines, expected, strict=True):
        if "value" in line and line["value"] is not None:
            assert line["value"].encode() == row["value"]
        assert [header["key"] for header in line["headers"]] == [h["key"] for h in row["headers"]]


def test_cat_prints_raw_values(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["cat", *WHERE, "--subscribe", "epochs", "--format", "raw", "--limit", "5"]) == 0
    out, _ = capfdbinary.readouterr()
    values = [row["value"] or b"" for row in expected_table("epochs", "read_committed").to_pylist()]
    assert out == b"".join(value + b"\n" for value in values[:5])


def test_verify_command_counts_records_and_reports_corruption(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = run(capsys, "verify", "--subscribe", "appendtime,epochs", "--json")
    assert code == 0
    assert json.loads(out)["records"] == 2420 + 865
    tier = shutil.copytree(TIER, tmp_path / "tier")
    log = sorted(tier.glob("tiered/epochs-*/0/*.log"))[0]
    data = bytearray(log.read_bytes())
    data[1000] ^= 1
    log.write_bytes(data)
    code, out, _ = run(capsys, "verify", "--subscribe", "epochs", path=tier)
    assert code == 1
    assert "ERROR crc: epochs-0" in out
    assert log.name in out


def test_export_command_writes_tables_without_spark(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "lake"
    code, out, _ = run(
        capsys, "export", str(target), "--subscribe", "epochs", "--workers", "1", "--json"
    )
    assert code == 0
    assert json.loads(out)["rows"] == 865
    table = ds.dataset(target, format="parquet").to_table(columns=["offset"])
    assert sorted(table["offset"].to_pylist()) == list(range(865))
    code, out, _ = run(
        capsys, "export", str(target), "--subscribe", "epochs", "--workers", "1", "--json"
    )
    assert json.loads(out)["rows"] == 0


def test_export_that_follows_the_topic_stops_at_a_signal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "lake"
    metrics = tmp_path / "export.prom"
    arguments = ["epochs", str(target), *WHERE[2:], "--workers", "1", "--round-bytes", "1"]
    arguments += ["--prometheus", str(metrics)]
    child = subprocess.Popen(
        [sys.executable, "-m", "kts_source.cli", "export", str(TIER), *arguments, "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rows, remaining = 0, 1
    with child:
        assert child.stdout is not None
        while remaining:
            line = json.loads(child.stdout.readline())
            rows, remaining = rows + line["rows"], line["leftBytes"]
            assert abs((datetime.now(UTC) - datetime.fromisoformat(line["ended"])).seconds) < 300
        assert re.search(rf"^kts_export_rows\{{.*\}} {rows}$", metrics.read_text(), re.MULTILINE)
        child.terminate()
        out, err = child.communicate(timeout=120)
    due = expected_table("epochs", "read_committed").num_rows
    assert (child.returncode, out, rows) == (0, "", due)
    assert f"{due:,} rows in" in err
    code, out, _ = run(capsys, "export", str(target), "--subscribe", "epochs", "--end-offsets")
    assert code == 0
    ends = {
        str(number): summary["tier_last_stable_offset"]
        for number, summary in partition_summaries("epochs").items()
    }
    assert json.loads(out) == {"epochs": ends}
    again = run(capsys, "cat", "--subscribe", "epochs", "--starting-offsets", out.strip())
    assert again[:2] == (0, "")


def test_export_ended_by_sigterm_prints_a_line_and_keeps_the_exit_code(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from kts_source.cli import export_command, main\n"
        "export_command._run = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"sys.argv[1:] = {['export', str(TIER), 'txn', str(tmp_path / 'lake'), *WHERE[2:]]!r}\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGTERM
    assert done.stderr == (
        "kts: terminated: commits are kept, and the same command continues after them\n"
    )


def test_export_command_supports_commit_bytes_and_compact(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    keyed = ("--where", "key is not null")
    where = ("--subscribe", "compacted", *keyed, "--workers", "1", "--json")
    plain, compact = tmp_path / "plain", tmp_path / "compact"
    small = ("--commit-bytes", "1k", "--target-partition-bytes", "20k")
    code, out, _ = run(capsys, "export", str(plain), *where, *small)
    assert code == 0
    assert json.loads(out)["commits"] > 1
    code, _, err = run(capsys, "export", str(plain), *where, "--commit-bytes", "1x")
    assert code == 2
    assert "'--commit-bytes' must be a size such as 134217728 or 128m, not '1x'" in err
    arguments = ("--table-format", "delta", "--compact", "--tombstones", "remove")
    code, out, _ = run(capsys, "export", str(compact), *where, *arguments)
    assert code == 0
    rows = expected_table("compacted", "read_committed").select(["partition", "key", "value"])
    latest = {
        (row["partition"], row["key"]): row["value"]
        for row in rows.to_pylist()
        if row["key"] is not None
    }
    alive = sum(value is not None for value in latest.values())
    assert json.loads(out)["rows"] == alive < rows.num_rows
    assert run(capsys, "export", str(plain), *where, "--compact")[0] == 1


def test_export_clean_removes_only_files_of_dead_attempts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "lake"
    export = ("export", str(target), "--subscribe", "epochs", "--workers", "1")
    assert run(capsys, *export)[0] == 0
    dead = target / "_kts" / "attempts" / "dead" / "000000-dead-0000.parquet"
    dead.parent.mkdir(parents=True)
    dead.write_bytes(b"PAR1")
    files_before = {path for path in target.rglob("*") if path.is_file()}
    code, out, _ = run(capsys, *export, "--clean", "--json")
    assert (code, json.loads(out)) == (0, []), "it may belong to a run under way"
    listed = run(capsys, *export, "--clean", "--older-than-hours", "0", "--dry-run", "--json")
    assert (listed[0], json.loads(listed[1])) == (0, [dead.relative_to(target).as_posix()])
    assert {path for path in target.rglob("*") if path.is_file()} == files_before
    assert run(capsys, *export, "--clean", "--older-than-hours", "0")[:2] == (
        0,
        f"{json.loads(listed[1])[0]}\n1 files removed\n",
    )
    assert {path for path in target.rglob("*") if path.is_file()} == files_before - {dead}
    again = run(capsys, *export, "--clean", "--older-than-hours", "0", "--json")
    assert json.loads(again[1]) == []
    table = ds.dataset(target, format="parquet").to_table(columns=["offset"])
    assert sorted(table["offset"].to_pylist()) == list(range(865))


def test_exit_code_of_command_depends_on_kind_of_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, "plan", "--subscribe", "nosuch")[0] == 1
    assert run(capsys, "plan")[0] == 2
    assert run(capsys, "plan", "--subscrib", "x")[0] == 2
    assert run(capsys, "plan", "--subscribe", "codecs", "-o", "s3.nosuch=1")[0] == 2
    tier = shutil.copytree(TIER, tmp_path / "tier")
    stem = sorted(tier.glob("tiered/codecs-*/0/*.log"))[1].stem
    for path in tier.glob(f"tiered/codecs-*/0/{stem}.*"):
        path.unlink()
    code, _, err = run(capsys, "plan", "--subscribe", "codecs", path=tier)
    assert code == 3
    assert "[5841, 10634)" in err
    # Retention has deleted segments that an export has not read.
    part = ("export", str(tmp_path / "part"), "--subscribe", "codecs", "--workers", "1")
    assert run(capsys, *part, "--ending-offsets", '{"codecs":{"0":5841}}')[0] == 0
    first = sorted(tier.glob("tiered/codecs-*/0/*.log"))[0].stem
    for path in tier.glob(f"tiered/codecs-*/0/{first}.*"):
        path.unlink()
    code, _, err = run(capsys, *part, path=tier)
    assert code == 3
    assert "[5841, 10634) of codecs-0 are no longer in the tier" in err
    assert "--no-fail-on-data-loss to skip them" in err
    # An export with options that contradict the target returns exit code 1. An interrupted
    # export returns exit code 130.
    target = str(tmp_path / "lake")
    export = ("export", target, "--subscribe", "epochs", "--workers", "1")
    assert run(capsys, *export)[0] == 0
    assert run(capsys, *export, "--isolation-level", "read_uncommitted")[0] == 1
    monkeypatch.setattr(LocalExecutor, "run", _interrupted)
    code, _, err = run(capsys, *export[:1], f"{target}2", *export[2:])
    assert code == 130
    assert "interrupted" in err


@pytest.mark.parametrize(
    ("library", "extra", "arguments"),
    [
        ("deltalake", "delta", ["--table-format", "delta"]),
        ("deltalake", "delta", ["--table-format", "delta", "--clean"]),
        ("pyiceberg", "iceberg", ["--table-format", "iceberg", "--catalog", "type=sql"]),
        ("pyspark", "spark", ["--spark"]),
        ("matplotlib", "plot", ["--png", "report.png"]),
    ],
)
def test_missing_extra_is_reported_before_the_command_does_any_work(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    library: str,
    extra: str,
    arguments: list[str],
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    target = tmp_path / "lake"
    code, _, err = run(capsys, "export", str(target), "--subscribe", "epochs", *arguments)
    assert code == 2
    assert f"needs {library}. Install it with: {install_command(extra)}" in err
    assert not target.exists()


def _interrupted(*_arguments: object) -> None:
    raise KeyboardInterrupt


def test_commands_accept_path_and_topic_as_positional_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    more = WHERE[2:]
    for command in ("segments", "plan", "cat", "verify"):
        assert main([command, *WHERE, "--subscribe", "epochs", "--json"]) == 0
        named = capsys.readouterr().out
        assert main([command, str(TIER), "epochs", *more, "--json"]) == 0
        by_arguments = capsys.readouterr().out
        if command == "verify":  # its output contains the duration
            named, by_arguments = (json.loads(text)["records"] for text in (named, by_arguments))
        assert by_arguments == named
    assert main(["topics", str(TIER), *more, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 17
    target = tmp_path / "lake"
    export = ["export", str(TIER), "epochs", str(target), *more, "--workers", "1", "--json"]
    assert main(export) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 865
    assert main(["plan", str(TIER), "--path", str(TIER)]) == 2
    assert "remove one" in capsys.readouterr().err
    assert main(["export", "a", "b", "c", "d"]) == 2


def test_topics_command_reports_names_of_missing_encryption_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rows(*more: str) -> dict[tuple[str, int], dict[str, Any]]:
        assert main(["topics", str(TIER), "--key-prefix", "tiered/", "--json", *more]) == 0
        listed = json.loads(capsys.readouterr().out)
        return {(row["topic"], row["partition"]): row for row in listed}

    locked, opened = rows(), rows("-o", KEY)
    assert locked.keys() == opened.keys()
    without = {location[0] for location, row in locked.items() if row["keysNeeded"]}
    assert "encrypted" in without
    assert "codecs" not in without
    for location, row in locked.items():
        if row["keysNeeded"]:
            assert row["keysNeeded"] == ["key1"]
            assert row["tierEnd"] is None
            folder = TIER / f"tiered/{location[0]}-{row['topicId']}/{location[1]}"
            files = [path.with_suffix(".log") for path in folder.glob("*.rsm-manifest")]
            assert row["segments"] == len(files)
            assert row["storedBytes"] == sum(file.stat().st_size for file in files)
        else:
            assert row == opened[location]
    assert main(["topics", str(TIER), "--key-prefix", "tiered/"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"^ encrypted +0 +\? +\? +\? +7 .*key key1 needed", table, re.MULTILINE)


def test_missing_package_is_reported_with_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert run_kts() == 2
    assert f"kts needs rich. Install it with: {install_command('cli')}" in capsys.readouterr().err


def test_commands_run_without_pyspark(tmp_path: Path) -> None:
    topic = [str(TIER), "epochs", *WHERE[2:]]
    commands = [
        ["topics", *WHERE, "--json"],
        ["segments", *topic],
        ["plan", *topic],
        ["cat", *topic, "--limit", "1"],
        ["verify", *topic],
        ["export", *topic[:2], str(tmp_path / "lake"), *topic[2:], "--workers", "1"],
        ["demo"],
    ]
    program = f"""
import sys
sys.modules["pyspark"] = None
from kts_source.cli.app import main
from kts_source.export.task_writer import LocalExecutor
sys.exit(max(main(command) for command in {commands!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "865 records" in done.stdout
    assert "computed by Python" in done.stdout


@pytest.mark.parametrize("name", sorted(all_commands()))
def test_flags_and_source_options_of_a_command_have_distinct_names(name: str) -> None:
    flags = [
        flag
        for parameter in all_commands()[name].params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    ]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("target", ["file", "file/lake"])
def test_export_into_a_file_exits_with_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, target: str
) -> None:
    (tmp_path / "file").touch()
    flags = ("--subscribe", "epochs", "--workers", "1")
    code, _, error = run(capsys, "export", str(tmp_path / target), *flags)
    assert code == 2
    assert f"{tmp_path / target} cannot be written: " in error


def test_iceberg_table_without_catalog_names_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--subscribe", "epochs", "--table-format", "iceberg")
    code, _, error = run(capsys, "export", "db.table", *flags)
    assert code == 2
    assert "--table-format iceberg needs --catalog NAME=VALUE" in error


def test_misspelled_command_suggests_a_similar_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verfy", str(TIER)]) == 2
    assert "Did you mean 'verify'?" in capsys.readouterr().err


CAT = ["cat", str(TIER), *WHERE[2:], "epochs"]
KTS_CAT = [sys.executable, "-m", "kts_source.cli", *CAT]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_an_error_without_traceback(unbuffered: str) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(KTS_CAT, stdout=full, stderr=subprocess.PIPE, check=False, env=env)
    assert done.returncode == 1
    assert done.stderr == b"kts: standard output: No space left on device\n"


def test_closed_pipe_ends_a_command_without_an_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(KTS_CAT, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.ECONNRESET, "kts: ConnectionResetError: closed\n"),
        (errno.EPIPE, "kts: ConnectionError: closed\n"),
    ],
)
def test_error_of_a_connection_is_not_blamed_on_standard_output(
    code: int, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(code, "closed")

    monkeypatch.setattr(cat_command, "_print", failing)
    assert main(CAT) == 1
    assert capsys.readouterr().err == text


INTERRUPTED = """
import sys
from kts_source.cli.app import _Stdout, main

event, name, *arguments = sys.argv[1:]
code = getattr(_Stdout, name).__code__


def interrupt(frame, happened, _):
    if (happened, frame.f_code) == (event, code):
        sys.setprofile(None)
        raise KeyboardInterrupt


sys.setprofile(interrupt)
sys.exit(main(arguments))
"""


@pytest.fixture(scope="module")
def printed_rows() -> list[bytes]:
    """Returns the lines that `KTS_CAT` prints."""
    return subprocess.run(KTS_CAT, capture_output=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("name", ["write", "flush"])
@pytest.mark.parametrize("event", ["call", "return"])
def test_interrupt_while_writing_prints_no_row_twice(
    event: str, name: str, printed_rows: list[bytes]
) -> None:
    command = [sys.executable, "-c", INTERRUPTED, event, name, *CAT]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, b"interrupted")
    printed = done.stdout.splitlines()
    assert printed == printed_rows[: len(printed)]
    assert len(set(printed_rows)) == len(printed_rows) > 1


@pytest.mark.parametrize(
    ("command", "flag"),
    [("find", "--certificate"), ("report", "--output"), ("audit", "--report")],
)
def test_output_in_a_missing_folder_fails_before_the_command_works(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, flag: str
) -> None:
    file = tmp_path / "missing" / "file"
    condition = ("--where", "offset = 0") if command == "find" else ()
    code, out, error = run(capsys, command, "--subscribe", "epochs", *condition, flag, str(file))
    assert (code, out) == (2, "")
    assert error == (
        f"kts: {file} cannot be written: the folder {file.parent} does not exist. Create it, or"
        " choose another path\n"
    )


@pytest.mark.parametrize("command", [["cat", "orders"], ["export", "orders", "table"]])
def test_single_argument_that_is_no_folder_asks_for_the_path(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KTS_PATH", raising=False)
    assert main(command) == 2
    assert (
        "argument 'orders' is taken as PATH, but no such folder exists" in capsys.readouterr().err
    )


def test_topics_separated_by_a_space_ask_for_commas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KTS_PATH", str(TIER))
    assert main(["cat", "orders", "payments"]) == 2
    error = capsys.readouterr().err
    assert "argument 'orders' is taken as PATH, but no such folder exists" in error
    assert "Separate topics by commas, without spaces: orders,payments" in error


def test_export_without_topic_names_the_argument_that_is_the_target(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["export", str(TIER), "orders", "--key-prefix", "tiered/"]) == 2
    assert "TOPIC is missing ('orders' is taken as TARGET); topics" in capsys.readouterr().err


def test_single_argument_that_is_a_folder_is_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tier").symlink_to(TIER)
    monkeypatch.chdir(tmp_path)
    assert main(["topics", "tier", "--key-prefix", "tiered/"]) == 0
    assert " codecs " in capsys.readouterr().out


def test_limit_that_is_not_an_integer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "cat", "--subscribe", "codecs", "--limit", "x")
    assert code == 2
    assert "'x' is not a valid integer." in err
