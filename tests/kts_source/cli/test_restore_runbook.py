"""Runs the `kts` commands on the page "Restore a cluster", in their order.

The names of the page are replaced: the bucket by a local tier, and the new cluster by a server that
stands for its brokers.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from kts_source.cli.app import main
from kts_source.restore.committing import status_restore
from segment_format.testing import LocalTierWriter
from tests.golden_data import GOLDEN
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.restore.world import (
    SMALL_LOG,
    finished_segments,
    new_cluster,
    serving_cluster,
    write_small_tier,
)

if TYPE_CHECKING:
    import pytest

    from tests.kts_source.restore.world import NewCluster

PAGE = (Path(__file__).parents[3] / "docs" / "restore.md").read_text(encoding="utf-8")
OLD_DISK = str(GOLDEN / "group-offsets" / "disk")
ZERO_COPY, AIVEN = PAGE.index("## Zero copy"), PAGE.index("### Aiven's plugin")
NEEDS_CONTROLLER = "--metadata-log"
"""A flag that needs the metadata log of the old cluster; `test_old_configs.py` runs it."""


def _commands(text: str) -> list[list[str]]:
    """Returns the commands in blocks of code, split into words."""
    blocks = re.findall(r"```(?:text|sh)\n(.*?)```", text, re.DOTALL)
    lines = (line for block in blocks for line in block.replace("\\\n", " ").splitlines())
    return [shlex.split(line) for line in lines if line.startswith("kts ")]


def _run(
    command: list[str], cluster: NewCluster, tier: Path, capsys: pytest.CaptureFixture[str]
) -> str:
    """Runs a command in the folder of the plan, and returns its output."""
    names = {
        "s3://bucket": str(tier),
        "/tier": str(tier),
        "new:9092": cluster.brokers.bootstrap,
        "/var/kafka/logs": str(cluster.log_dir),
        "/mnt/old/kafka-logs": OLD_DISK,
        "plan.json": str(cluster.plan_file),
        "groups.json": str(cluster.plan_file.with_name("groups.json")),
    }
    words = [names.get(word, word) for word in command[1:]]
    words, target = (words[:-2], Path(words[-1])) if ">" in words else (words, None)
    assert main(words) == 0, capsys.readouterr().err
    output = capsys.readouterr().out
    if target is not None:
        target.write_text(output)
    return output


def test_commands_of_the_page_restore_and_commit_a_topic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [each for each in _commands(PAGE[:ZERO_COPY]) if NEEDS_CONTROLLER not in each]
    # The groups are read from the disk before the commit that needs their file.
    commands.sort(key=lambda each: "commit" in each)
    assert [each[1:3] for each in commands] == [
        ["restore", "plan"],
        ["restore", "write"],
        ["restore", "verify"],
        ["groups", "/mnt/old/kafka-logs"],
        ["restore", "commit"],
    ]
    with FakeCluster() as brokers:
        cluster = new_cluster(tmp_path / "new", brokers)
        write_small_tier(tmp_path / "tier", "orders")
        cluster.add_topic("orders")
        for command in commands:
            output = _run(command, cluster, tmp_path / "tier", capsys)
            if "write" in command:
                assert "next: start broker 0, then kts restore verify" in output
                topic_id, _ = brokers.topics["orders"]
                log = FakePartition(fake_log(SMALL_LOG), epoch=100)
                brokers.create("orders", [log], topic_id)
        assert status_restore(str(cluster.plan_file))[-2] == "committed"
        assert {topic for _, topic, _ in brokers.committed} == {"orders"}
        assert brokers.configs["retention.ms"] == "604800000"


def test_commands_of_the_page_serve_a_local_tier_in_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = LocalTierWriter(tmp_path / "tier", topic="orders")
    for files in SMALL_LOG.segments:
        if files.log:
            writer.write_segment(files)
    _check_serves(_commands(PAGE[ZERO_COPY:AIVEN]), tmp_path, capsys)


def test_commands_of_the_page_serve_an_aiven_tier_in_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_small_tier(tmp_path / "tier", "orders")
    _check_serves(_commands(PAGE[AIVEN:]), tmp_path, capsys)


def _check_serves(
    commands: list[list[str]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [each[2] for each in commands] == ["plan", "write"]
    with FakeCluster(2) as brokers:
        cluster = serving_cluster(folder / "new", brokers)
        for command in commands:
            _run(command, cluster, folder / "tier", capsys)
        assert len(finished_segments(cluster)) == 3
