"""Tests that restored topics get the configurations in the metadata log of an old controller."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kts_source.cli.app import main
from kts_source.errors import BrokerError, CorruptSegmentError, InvalidOptionError
from kts_source.restore.committing import METADATA_LOG, commit_restore, old_configs
from kts_source.restore.restore_plan import read_plan
from segment_format.kafka_uuid import uuid_from_text
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_node import CONFIGS, Fault
from tests.segment_format.metadata.test_topic_configs import config, topic

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.restore.restore_plan import RestorePlan
    from tests.kts_source.restore.world import NewCluster

DENIED = 29


def _log(*records: bytes, start: int = 0) -> bytes:
    builder = LogBuilder(start_offset=start)
    for record in records:
        builder.append([SimpleRecord(record, None)])
    return b"".join(files.log for files in builder.build().segments)


def _plan(restored: NewCluster) -> RestorePlan:
    return read_plan(str(restored.plan_file))


def _topic(restored: NewCluster) -> bytes:
    return topic("orders", uuid_from_text(_plan(restored).partitions[0].topic_id))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns an empty folder for a metadata log."""
    path = tmp_path / "old" / METADATA_LOG
    path.mkdir(parents=True)
    return path


def _store(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)


def test_commit_sets_old_configurations_that_the_new_brokers_know(
    restored: NewCluster, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    restored.brokers.configs |= {"max.message.bytes": "1048588", "segment.bytes": "7"}
    records = [
        _topic(restored),
        config("retention.ms", "86400000"),
        config("max.message.bytes", "2000000"),
        config("message.format.version", "3.0"),
        config("leader.replication.throttled.replicas", "0:1"),
        config("segment.bytes", "9", of="other"),
    ]
    _store(folder, f"{0:020d}.log", _log(*records))
    before = dict(restored.brokers.configs)
    commit = ["restore", "commit", str(restored.plan_file), "--metadata-log", str(folder.parent)]
    target = ["--to", restored.brokers.bootstrap, "--config", "max.message.bytes=3000000"]
    assert main([*commit, *target]) == 0
    changed = {"retention.ms": "86400000", "max.message.bytes": "3000000"}
    assert restored.brokers.configs == {**before, **changed}
    lines = capsys.readouterr().out
    assert "orders: configurations set: max.message.bytes, retention.ms" in lines
    assert "orders: the new brokers do not know: message.format.version" in lines
    kept = "cleanup.policy, remote.storage.enable, retention.bytes. Set them with --config"
    assert f"used the defaults of its brokers: {kept}" in lines


def test_topic_gets_its_old_configurations_under_a_new_name(
    restored: NewCluster, folder: Path
) -> None:
    plan = _plan(restored)
    renamed = tuple(replace(each, target_topic="n") for each in plan.partitions)
    _store(folder, f"{0:020d}.log", _log(_topic(restored), config("a", "1")))
    assert old_configs(replace(plan, partitions=renamed), str(folder)) == {"n": {"a": "1"}}


def test_snapshot_and_later_segments_are_read(restored: NewCluster, folder: Path) -> None:
    """The log before the snapshot is ignored, and so are older and incomplete snapshots."""
    _store(folder, f"{2:020d}-{1:010d}.checkpoint", b"old")
    _store(folder, f"{4:020d}-{1:010d}.checkpoint", _log(_topic(restored), config("a", "1")))
    _store(folder, f"{9:020d}-{1:010d}.checkpoint.part", b"incomplete")
    _store(folder, f"{0:020d}.log", b"before the snapshot")
    log = _log(config("b", "2"), config("a", "3"), config("b", "4"), start=3)
    _store(folder, f"{3:020d}.log", log)
    _store(folder, f"{6:020d}.log", _log(config("c", "5"), start=6) + log[:70])
    assert old_configs(_plan(restored), str(folder)) == {"orders": {"a": "3", "b": "4", "c": "5"}}


@pytest.mark.parametrize(
    ("base", "damaged", "problem"),
    [(2, 0, r"lacks offsets \[1, 2\)"), (1, 40, "is invalid from byte 0 on")],
)
def test_incomplete_metadata_log_is_an_error(
    base: int, damaged: int, problem: str, restored: NewCluster, folder: Path
) -> None:
    first = bytearray(_log(_topic(restored)))
    first[damaged] ^= damaged and 1
    _store(folder, f"{0:020d}.log", bytes(first))
    _store(folder, f"{base:020d}.log", _log(config("a", "1"), start=base))
    with pytest.raises(CorruptSegmentError, match=problem):
        old_configs(_plan(restored), str(folder))


@pytest.mark.parametrize(
    ("name", "records", "problem"),
    [
        ("x.log", [], "has no segments"),
        (f"{0:020d}.log", [config("a", "1")], "has no topic orders with id"),
    ],
)
def test_other_metadata_log_is_rejected_before_any_change(
    name: str, records: list[bytes], problem: str, restored: NewCluster, folder: Path
) -> None:
    _store(folder, name, _log(*records))
    with pytest.raises(InvalidOptionError, match=problem):
        _commit(restored, folder)
    assert restored.brokers.producer_ids == {}


def test_folder_without_metadata_log_is_rejected(restored: NewCluster, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="cannot be read"):
        _commit(restored, tmp_path)


def test_malformed_metadata_log_is_rejected(restored: NewCluster, folder: Path) -> None:
    _store(folder, f"{0:020d}.log", _log(b"\x02"))
    with pytest.raises(CorruptSegmentError, match="frame version 2"):
        _commit(restored, folder)


def test_commit_without_permission_to_describe_fails(restored: NewCluster, folder: Path) -> None:
    _store(folder, f"{0:020d}.log", _log(_topic(restored), config("retention.ms", "1")))
    restored.brokers.fail(CONFIGS, Fault(code=DENIED))
    with pytest.raises(BrokerError, match="orders: its configurations cannot be read"):
        _commit(restored, folder)
    assert restored.brokers.configs["retention.ms"] == "-1"


def _commit(restored: NewCluster, folder: Path) -> None:
    path, log = str(restored.plan_file), str(folder)
    commit_restore(path, restored.target, configs={}, groups={}, metadata_log=log)
