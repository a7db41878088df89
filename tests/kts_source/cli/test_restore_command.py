"""Tests the subcommands of `kts restore`, from the plan to the verification."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kts_source.cli.app import main
from segment_format.testing import LogBuilder, SimpleRecord
from tests.golden_data import tier_options
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.restore.world import new_cluster

if TYPE_CHECKING:
    from pathlib import Path


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
        assert "next: start the broker, then kts restore verify" in capsys.readouterr().out
        assert main(["restore", "status", plan_file, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[-1].startswith("next: start the broker")
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
    ],
)
def test_invalid_flag_exits_with_2(
    flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["restore", "plan", "--to", "127.0.0.1:1", *_tier_flags("epochs")]
    assert main([*command, *flags]) == 2
    assert problem in capsys.readouterr().err
