"""Tests the subcommands of `kts restore`, from the plan to the verification."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kts_source.cli.app import main
from segment_format.testing import LogBuilder, SimpleRecord
from tests.golden_data import tier_options
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.restore.world import new_cluster


def _tier_flags(topic: str) -> list[str]:
    return [part for name, text in tier_options(topic).items() for part in ("-o", f"{name}={text}")]


def test_commands_restore_a_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_file = str(tmp_path / "plan.json")
    with FakeCluster() as brokers:
        cluster = new_cluster(tmp_path / "new", brokers)
        cluster.add_topic("copy")
        server = ["--to", brokers.bootstrap]
        flags = _tier_flags("epochs")
        plan = [
            "restore",
            "plan",
            *server,
            "--output",
            plan_file,
            "--rename",
            "epochs=copy",
            *flags,
        ]
        assert main([*plan, "--resume-at", '{"epochs": {"0": 900}}']) == 0
        assert "copy-0 from epochs: offsets [0, 865), next offset at least 900" in (
            capsys.readouterr().out
        )
        write = ["restore", "write", plan_file, "--log-dir", str(cluster.log_dir), *flags]
        assert main(write) == 0
        assert "next: start broker 0, then kts restore verify" in capsys.readouterr().out
        before = Path(plan_file).read_bytes()
        assert main(plan) == 2
        assert "has begun and needs this plan: choose another file" in capsys.readouterr().err
        assert Path(plan_file).read_bytes() == before
        other = [str(tmp_path / "other.json") if flag == plan_file else flag for flag in plan]
        assert main([*other, "--resume-at", '{"epochs": {"0": 900.5}}']) == 2
        assert "--resume-at" in capsys.readouterr().err
        assert main(["restore", "status", plan_file, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[-1].startswith("next: start broker 0,")
        assert main(["restore", "verify", plan_file, *server]) == 1
        assert "copy-0: end is 0, but the restore wrote 900" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "7", '[{"group": "g"}]', '{"g": []}'])
def test_invalid_groups_file_exits_with_2(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = tmp_path / "groups.json"
    groups.write_text(text)
    commit = ["restore", "commit", "plan.json", "--groups", str(groups), "--to", "127.0.0.1:1"]
    assert main(commit) == 2
    assert f"--groups {groups} is invalid" in capsys.readouterr().err


def test_restore_of_refused_plan_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"value", b"key")])
    with FakeCluster() as brokers:
        brokers.create("epochs", [FakePartition(fake_log(builder.build()))])
        flags = ["--to", brokers.bootstrap, "--output", str(tmp_path / "plan.json")]
        assert main(["restore", "plan", *flags, *_tier_flags("epochs")]) == 1
    assert "REFUSED: epochs-0 of the new cluster is not empty" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "Missing option '--output'"),
        (["--output", "plan.json", "--resume-at", "[]"], "--resume-at '[]' is invalid"),
        (["--output", "plan.json", "--rename", "a"], "--rename needs NAME=VALUE"),
        (["--output", "plan.json", "--to-option", "ssl.x=1"], "must begin with kafka."),
        (["--output", "plan.json", "--to", "new:x"], "kts: --to must be like host:9092"),
    ],
)
def test_invalid_flag_exits_with_2(
    flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["restore", "plan", "--to", "127.0.0.1:1", *_tier_flags("epochs")]
    assert main([*command, *flags]) == 2
    assert problem in capsys.readouterr().err


def test_unreachable_new_cluster_is_named_by_its_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--to", "127.0.0.1:1", "--output", str(tmp_path / "plan.json")]
    assert main(["restore", "plan", *flags, *_tier_flags("epochs")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("kts: no broker of --to answers: 127.0.0.1:1")
    assert "bootstrap" not in error
    assert "a scan" not in error


@pytest.mark.parametrize("command", ["plan", "write"])
def test_help_does_not_list_brokers_of_the_old_cluster(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["restore", command, "--help-all"]) == 0
    words = (line.split() for line in capsys.readouterr().out.splitlines())
    flags = {flag.rstrip(",") for line in words for flag in line[:2] if flag.startswith("-")}
    assert {"-o", "--key-prefix", "--tail-path"} <= flags
    assert not flags & {"-b", "--bootstrap-servers"}


def test_missing_client_library_names_the_extra_restore(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "kafka", None)
    assert main(["restore", "verify", "plan.json", "--to", "127.0.0.1:1"]) == 2
    assert "[restore]'" in capsys.readouterr().err


def test_steps_of_a_restore_are_listed_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restore", "--help"]) == 0
    listed = [
        line.split() for line in capsys.readouterr().out.partition("Commands:")[2].splitlines()
    ]
    assert [words[0] for words in listed if words] == [
        "plan",
        "write",
        "verify",
        "commit",
        "status",
    ]
    assert all(words[-1].endswith(".") and "..." not in words[-1] for words in listed if words)
