"""Tests `kts describe` and `kts groups`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kts_source.cli.app import main
from segment_format.testing import LogBuilder, SimpleRecord
from tests.golden_data import GOLDEN, TIER, partition_summaries
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log

if TYPE_CHECKING:
    import pytest

GROUPS = GOLDEN / "group-offsets"


def test_describe_prints_partitions_of_the_tier(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["describe", str(TIER), "txn", "--key-prefix", "tiered/"]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    ends = {
        row["partition"]: (row["tierEnd"], row["lastStableOffset"])
        for row in document["partitions"]
    }
    assert ends == {
        number: (summary["tier_end_offset"], summary["tier_last_stable_offset"])
        for number, summary in partition_summaries("txn").items()
    }
    assert (document["configs"], document["groups"]) == ({}, [])
    assert main(command) == 0
    assert "3,675" in capsys.readouterr().out


def test_describe_prints_configuration_and_lag_of_brokers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"x")] * 9)
    with FakeCluster() as brokers:
        brokers.create("orders", [FakePartition(fake_log(builder.build()))])
        brokers.configs = {"remote.copy.lag.ms": "3600000", "retention.ms": "604800000"}
        brokers.groups = {"billing": (0, {("orders", 0): 4, ("other", 0): 1})}
        command = ["describe", "orders", "-b", brokers.bootstrap]
        assert main([*command, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["partitions"][0]["highWatermark"] == 9
        assert document["configs"] == {"orders": brokers.configs}
        assert [(row["group"], row["offset"], row["lag"]) for row in document["groups"]] == [
            ("billing", 4, 5)
        ]
        assert main(command) == 0
        out = capsys.readouterr().out
        assert "  remote.copy.lag.ms=3600000\n  retention.ms=604800000\n" in out
        assert out.splitlines()[-1].split() == ["billing", "Empty", "orders", "0", "4", "9", "5"]
        assert main(["groups", "-b", brokers.bootstrap, "--group", "none", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == []
        assert main(["groups", "-b", brokers.bootstrap]) == 0
        assert " other " in capsys.readouterr().out


def test_groups_are_read_from_disks_of_a_stopped_broker(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["groups", str(GROUPS / "disk"), "--layout", "kafka-logs"]
    assert main([*command, "--json"]) == 0
    names = ("group", "topic", "partition", "offset", "metadata")
    rows = [{name: row[name] for name in names} for row in json.loads(capsys.readouterr().out)]
    for row in rows:  # librdkafka also writes the final zero byte of C, and hides it
        row["metadata"] = row["metadata"].removesuffix("\0")
    assert rows == json.loads((GROUPS / "committed.json").read_text())
    assert main([*command, "--group", "g-txn"]) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.split()[:4] == ["g-txn", "orders", "0", "5"]


def test_groups_of_a_tier_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["groups", str(TIER), "--key-prefix", "tiered/"]) == 2
    assert "--bootstrap-servers" in capsys.readouterr().err


def test_groups_without_brokers_and_disks_ask_for_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["groups"]) == 2
    error = capsys.readouterr().err
    assert "--bootstrap-servers" in error
    assert "--layout kafka-logs" in error
    assert "tier" not in error
