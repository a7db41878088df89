"""Tests the log directories that a restore writes, with the rows of the golden tier."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import (
    AccessDeniedError,
    CorruptSegmentError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
)
from kts_source.restore import writing
from kts_source.restore.committing import status_restore
from kts_source.restore.digests import row_digests
from kts_source.restore.journal import Journal
from kts_source.restore.partition_writer import TEMPORARY, PartitionWriter
from kts_source.restore.restore_plan import read_plan
from segment_format.index.checkpoints import LeaderEpochCheckpoint, parse_offset_checkpoint
from segment_format.index.producer_snapshot import parse_producer_snapshot, write_producer_snapshot
from segment_format.kafka_uuid import uuid_from_text
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import (
    LOCAL_TIER,
    TOPICS,
    assert_same_rows,
    expected_records,
    expected_table,
    partition_summaries,
    tier_options,
    topic_summary,
)
from tests.kts_source.planning.scanning import scan
from tests.kts_source.restore.world import copied_tier, new_cluster, state_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow as pa

    from tests.golden_data import IsolationLevel
    from tests.kts_source.restore.world import NewCluster

UNDECIDED = {"encrypted", "txn"}
EPOCHS = tier_options("epochs")


def _written(cluster: NewCluster, topic: str, level: str) -> pa.Table:
    """Returns the rows on the broker's disk, read as if the broker had crashed."""
    return scan(
        {
            "path": str(cluster.log_dir),
            "layout": "kafka-logs",
            "endOfLog": "true",
            "subscribe": topic,
            "isolationLevel": level,
            "includeHeaders": "true",
        }
    )


def _restore(cluster: NewCluster, topic: str, **more: Any) -> None:  # noqa: ANN401
    cluster.add_topic(topic, partitions=len(partition_summaries(topic)))
    options = {**tier_options(topic), "topicId": topic_summary(topic)["topicId"]}
    plan = cluster.plan(options, **more)
    assert plan.refusals == ()
    cluster.write(options)


@pytest.mark.parametrize("topic", sorted(set(TOPICS) - UNDECIDED))
def test_written_log_has_rows_of_tier(topic: str, cluster: NewCluster) -> None:
    _restore(cluster, topic)
    levels: tuple[IsolationLevel, ...] = ("read_uncommitted", "read_committed")
    for level in levels:
        assert_same_rows(_written(cluster, topic, level), expected_table(topic, level))


@pytest.mark.parametrize("topic", sorted(UNDECIDED))
def test_write_with_abort_policy_aborts_undecided_transactions(
    topic: str, cluster: NewCluster
) -> None:
    _restore(cluster, topic, undecided="abort")
    assert_same_rows(
        _written(cluster, topic, "read_uncommitted"), expected_table(topic, "read_uncommitted")
    )
    records = expected_records(topic).to_pylist()
    undecided = {
        (number, epoch["first"], epoch["marker"], epoch["producerId"])
        for number, summary in partition_summaries(topic).items()
        for epoch in summary["undecided_in_tier"]
    }
    producers = _producers(topic)
    expected = {
        (row["partition"], row["offset"])
        for row in records
        if row["in_tier"]
        and row["committed"]
        and not any(
            row["partition"] == number
            and first <= row["offset"] < marker
            and producers[row["partition"], row["offset"]] == producer
            for number, first, marker, producer in undecided
        )
    }
    table = _written(cluster, topic, "read_committed")
    found = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize("topic", sorted(UNDECIDED))
def test_write_with_cut_policy_ends_before_undecided_transactions(
    topic: str, cluster: NewCluster
) -> None:
    _restore(cluster, topic, undecided="cut")
    plan = read_plan(str(cluster.plan_file))
    stops = {each.partition: each.stop for each in plan.partitions}
    ends = parse_offset_checkpoint(cluster.files()["recovery-point-offset-checkpoint"])
    for number, summary in partition_summaries(topic).items():
        firsts = [each["first"] for each in summary["undecided_in_tier"]]
        assert stops[number] <= min([*firsts, summary["tier_end_offset"]])
        assert ends[topic, number] == summary["tier_end_offset"]
    assert f"cut: records at offsets [{stops[0]}, {plan.partitions[0].tier_stop})" in plan.explain()
    levels: tuple[IsolationLevel, ...] = ("read_uncommitted", "read_committed")
    for level in levels:
        expected = expected_table(topic, level)
        pairs = zip(expected["partition"].to_pylist(), expected["offset"].to_pylist(), strict=True)
        kept = [offset < stops[number] for number, offset in pairs]
        assert_same_rows(_written(cluster, topic, level), expected.filter(kept))


def _plain(builder: LogBuilder) -> None:
    builder.append([SimpleRecord(b"value", b"key")])


def _transaction(builder: LogBuilder, producer: int) -> None:
    builder.send(producer, [SimpleRecord(b"in a transaction", b"key")])


@pytest.mark.parametrize("with_roll", [False, True])
@pytest.mark.parametrize(
    ("before", "cut"),
    [
        (("plain", 7, "plain", "commit", 8, "plain", 9), 4),
        # Transaction 7 ends after transaction 9 begins.
        (("plain", 7, "plain", 8, 9, "commit", "plain"), 1),
        ((7, 9, "plain", "commit", 8), 0),
    ],
)
def test_cut_log_ends_at_highest_offset_without_open_transaction(
    before: tuple[str | int, ...],
    cut: int,
    with_roll: bool,
    tmp_path: Path,
    cluster: NewCluster,
) -> None:
    """`before` lists the batches of the log, one offset each: a plain record, a record of a
    transaction of producer 7, 8 or 9, or the commit of producer 7.
    """
    builder = LogBuilder(leader_epoch=2)
    for action in before:
        if action == "plain":
            _plain(builder)
        elif action == "commit":
            builder.commit(7)
        else:
            _transaction(builder, int(action))
        if with_roll:
            builder.roll()
    log = builder.build()
    writer = LocalTierWriter(tmp_path / "tier", topic="orders")
    for files in log.segments:
        if files.log:
            writer.write_segment(files)
    tier = str(tmp_path / "tier")
    options = {"path": tier, "layout": "local-tiered-storage", "subscribe": "orders"}
    cluster.add_topic("orders")
    plan = cluster.plan(options, undecided="cut")
    assert plan.refusals == ()
    assert (plan.partitions[0].stop, plan.partitions[0].tier_stop) == (cut, len(before))
    cluster.write(options)
    rows = _written(cluster, "orders", "read_uncommitted")
    markers = [number for number, action in enumerate(before) if action == "commit"]
    assert rows["offset"].to_pylist() == [n for n in range(cut) if n not in markers]
    ends = parse_offset_checkpoint(cluster.files()["recovery-point-offset-checkpoint"])
    assert ends["orders", 0] == len(before)


def _producers(topic: str) -> dict[tuple[int, int], int]:
    """Returns the producer id of each row of transactions, by partition and offset."""
    table = scan(
        {
            **tier_options(topic),
            "isolationLevel": "read_uncommitted",
            "columns": "partition,offset,producerId,isTransactional",
        }
    )
    return {
        (row["partition"], row["offset"]): row["producerId"] if row["isTransactional"] else -2
        for row in table.to_pylist()
    }


@pytest.mark.parametrize(("topic", "reads"), [("epochs", 2), ("compacted", 4)])
def test_log_without_transactions_is_compared_at_one_isolation_level(
    topic: str, reads: int, cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    def digests(*args: Any, **more: Any) -> dict[str, str]:  # noqa: ANN401
        compared.append(args)
        return row_digests(*args, **more)

    monkeypatch.setattr(writing, "row_digests", digests)
    _restore(cluster, topic)
    assert len(compared) == reads
    journal = Journal(str(cluster.plan_file), read_plan(str(cluster.plan_file)))
    is_equal = journal.digests["read_committed"] == journal.digests["read_uncommitted"]
    assert is_equal == (reads == 2)


def test_written_segments_equal_original_bytes(cluster: NewCluster) -> None:
    cluster.add_topic("codecs")
    options = {
        "path": str(LOCAL_TIER / "tier"),
        "layout": "local-tiered-storage",
        "subscribe": "codecs",
    }
    cluster.plan(options)
    cluster.write(options)
    (folder,) = (LOCAL_TIER / "tier").rglob("codecs-0-*")
    originals = {path.name[:20]: path.read_bytes() for path in folder.glob("*.log")}
    written = {path.stem: path.read_bytes() for path in cluster.log_dir.rglob("*.log")}
    assert originals
    assert written == originals


def test_written_checkpoints_have_log_start_recovery_point_and_lineage(cluster: NewCluster) -> None:
    (cluster.log_dir / "log-start-offset-checkpoint").write_text("0\n1\nother 3 12\n")
    _restore(cluster, "trimmed")
    summary = partition_summaries("trimmed")[0]
    end = summary["tier_end_offset"]
    files = cluster.files()
    starts = parse_offset_checkpoint(files["log-start-offset-checkpoint"])
    assert starts == {("other", 3): 12, ("trimmed", 0): summary["log_start_offset"]}
    assert parse_offset_checkpoint(files["recovery-point-offset-checkpoint"])["trimmed", 0] == end
    assert parse_producer_snapshot(files[f"trimmed-0/{end:020d}.snapshot"]) == ()
    entries = LeaderEpochCheckpoint.from_bytes(files["trimmed-0/leader-epoch-checkpoint"]).entries
    assert {entry.epoch for entry in entries} == {
        row["leader_epoch"] for row in expected_records("trimmed").to_pylist() if row["in_tier"]
    }


def test_write_with_resume_at_ends_log_at_that_offset(cluster: NewCluster) -> None:
    _restore(cluster, "epochs", resume_at={"epochs": {0: 5000}})
    end = parse_offset_checkpoint(cluster.files()["recovery-point-offset-checkpoint"])["epochs", 0]
    assert end == 5000
    assert_same_rows(
        _written(cluster, "epochs", "read_committed"), expected_table("epochs", "read_committed")
    )


@pytest.mark.parametrize(
    ("at", "problem"),
    [
        (7, "offsets of batches do not ascend"),  # base offset 1 becomes 0
        (15, "leader epoch of a batch differs"),
        (16, "unknown magic 3"),
        (70, "checksum of a batch"),
    ],
)
def test_write_of_invalid_batch_fails_and_leaves_partition_empty(
    at: int, problem: str, tmp_path: Path, cluster: NewCluster
) -> None:
    builder = LogBuilder(leader_epoch=2)
    for _ in range(6):  # so that planning does not read the invalid batch
        builder.append([SimpleRecord(bytes(5000), b"key")])
    (files,) = builder.build().segments
    writer = LocalTierWriter(tmp_path / "tier", topic="orders")
    writer.write_segment(files)
    (log,) = (tmp_path / "tier").rglob("*.log")
    data = bytearray(log.read_bytes())
    start = len(data) // 6  # batches have equal sizes
    data[start + at] ^= 1
    log.write_bytes(data)
    tier = str(tmp_path / "tier")
    options = {"path": tier, "layout": "local-tiered-storage", "subscribe": "orders"}
    cluster.add_topic("orders")
    assert cluster.plan(options).refusals == ()
    with pytest.raises(CorruptSegmentError, match=problem):
        cluster.write(options)
    assert all(not path.stat().st_size for path in cluster.log_dir.rglob("*.log"))


def test_write_of_open_transaction_missing_in_producer_snapshot_fails(
    tmp_path: Path, cluster: NewCluster
) -> None:
    builder = LogBuilder(leader_epoch=2)
    _plain(builder)
    _transaction(builder, 7)
    (files,) = builder.build().segments
    writer = LocalTierWriter(tmp_path / "tier", topic="orders")
    writer.write_segment(replace(files, snapshot=write_producer_snapshot([])))
    tier = str(tmp_path / "tier")
    options = {"path": tier, "layout": "local-tiered-storage", "subscribe": "orders"}
    cluster.add_topic("orders")
    assert cluster.plan(options).refusals == ()
    with pytest.raises(
        CorruptSegmentError, match="producer snapshot in the tier is wrong"
    ) as error:
        cluster.write(options)
    assert error.value.offset == 1


def test_write_of_refused_plan_is_rejected(cluster: NewCluster) -> None:
    cluster.add_topic("epochs", epoch=0)
    cluster.plan(EPOCHS)
    before = cluster.files()
    with pytest.raises(InvalidOptionError, match="the plan is refused"):
        cluster.write(EPOCHS)
    assert cluster.files() == before


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("meta.properties", "version=1\ncluster.id=another\n", "belongs to cluster 'another'"),
        ("meta.properties", "version=1\ncluster.id=fake\nnode.id=7\n", "belongs to broker 7"),
        ("epochs-0/partition.metadata", f"version: 0\ntopic_id: {'A' * 20}BA", "topic id"),
        ("epochs-0/partition.metadata", "", "is not a partition of the new cluster"),
        (f"epochs-0/{0:020d}.log", "records", "is not empty"),
        ("epochs-0/unknown.file", "", "is not empty"),
    ],
)
def test_write_to_wrong_log_directory_is_rejected_without_changes(
    name: str, text: str, problem: str, cluster: NewCluster
) -> None:
    cluster.add_topic("epochs")
    cluster.plan(EPOCHS)
    (cluster.log_dir / name).write_text(text)
    (cluster.log_dir / ".lock").touch()
    before = cluster.files()
    with pytest.raises(InvalidOptionError, match=problem):
        cluster.write(EPOCHS)
    assert cluster.files() == before


def test_write_to_unformatted_folder_is_rejected(cluster: NewCluster, tmp_path: Path) -> None:
    cluster.add_topic("epochs")
    cluster.plan(EPOCHS)
    (cluster.log_dir / "meta.properties").unlink()
    with pytest.raises(InvalidOptionError, match="is not a formatted log directory"):
        cluster.write(EPOCHS)


def test_write_to_locked_log_directory_is_rejected(cluster: NewCluster) -> None:
    cluster.add_topic("epochs")
    cluster.plan(EPOCHS)
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'ab')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(cluster.log_dir / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(InvalidOptionError, match="stop its broker first"):
            cluster.write(EPOCHS)
        holder.communicate()
    cluster.write(EPOCHS)


def test_write_after_tier_changed_is_rejected_without_changes(
    tmp_path: Path, cluster: NewCluster
) -> None:
    options = copied_tier(tmp_path, "epochs")
    cluster.add_topic("epochs")
    cluster.plan(options)
    (folder,) = (tmp_path / "tier" / "tiered").iterdir()
    last = max(path.name.rsplit(".", 1)[0] for path in (folder / "0").iterdir())
    for path in (folder / "0").glob(f"{last}*"):
        path.unlink()
    before = cluster.files()
    with pytest.raises(ObjectChangedError, match="the tier changed"):
        cluster.write(options)
    assert {**cluster.files(), ".lock": b""} == {**before, ".lock": b""}


def test_second_write_changes_nothing(cluster: NewCluster) -> None:
    _restore(cluster, "epochs")
    before = cluster.files()
    cluster.write(EPOCHS)
    assert cluster.files() == before


def test_write_reads_steps_of_another_write_that_just_ended(
    cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("epochs")
    cluster.plan(EPOCHS)
    locked = writing.LogDir.locked

    def locked_later(disk: writing.LogDir) -> AbstractContextManager[None]:
        monkeypatch.setattr(writing.LogDir, "locked", locked)
        cluster.write(EPOCHS)
        return locked(disk)

    monkeypatch.setattr(writing.LogDir, "locked", locked_later)
    cluster.write(EPOCHS)
    steps = [step["step"] for step in _journal(cluster).steps]
    assert steps == ["begin", "staged", "placed", "written", "checked"]


@pytest.mark.parametrize("steps", [3, 5])
def test_write_after_log_directory_lost_its_records_is_rejected(
    steps: int, cluster: NewCluster
) -> None:
    _restore(cluster, "epochs")
    path = _journal(cluster).path
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:steps]))
    for log in cluster.log_dir.rglob("*.log"):
        log.write_bytes(b"")
    before = cluster.files()
    with pytest.raises(InvalidOptionError, match="was changed after it was written"):
        cluster.write(EPOCHS)
    assert cluster.files() == before


def _journal(cluster: NewCluster) -> Journal:
    return Journal(str(cluster.plan_file), read_plan(str(cluster.plan_file)))


def test_write_changes_no_file_through_a_symbolic_link(cluster: NewCluster, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"not to be changed")
    cluster.add_topic("epochs")
    names = ("recovery-point-offset-checkpoint", f"epochs-0/{0:020d}.log", "epochs-0/download-0")
    for name in names:
        (cluster.log_dir / (name + TEMPORARY)).symlink_to(outside)
    cluster.plan(EPOCHS)
    cluster.write(EPOCHS)
    assert outside.read_bytes() == b"not to be changed"
    assert not any(path.is_symlink() for path in cluster.log_dir.rglob("*"))


def test_partition_folder_with_foreign_entries_is_rejected(
    cluster: NewCluster, tmp_path: Path
) -> None:
    cluster.add_topic("epochs")
    cluster.plan(EPOCHS)
    folder = cluster.log_dir / "epochs-0"
    download = folder / f"download-0{TEMPORARY}"
    download.mkdir()
    with pytest.raises(InvalidOptionError, match="cannot be written"):
        cluster.write(EPOCHS)
    download.rmdir()

    (folder / "more.log").symlink_to(tmp_path / "missing")
    with pytest.raises(InvalidOptionError, match=r"it has more\.log"):
        cluster.write(EPOCHS)
    (folder / "more.log").unlink()

    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidOptionError, match="is a symbolic link"):
        cluster.write(EPOCHS)


def test_write_to_second_log_directory_is_rejected(cluster: NewCluster) -> None:
    cluster.add_topic("epochs")
    plan = cluster.plan(EPOCHS)
    Journal(str(cluster.plan_file), plan).begin("/elsewhere")
    with pytest.raises(InvalidOptionError, match="already written to log directory /elsewhere"):
        cluster.write(EPOCHS)


@pytest.mark.parametrize("topic", ["epochs", pytest.param("txn", marks=pytest.mark.slow)])
def test_write_resumes_after_crash_at_every_sync(
    topic: str, cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic(topic, partitions=len(partition_summaries(topic)))
    options = tier_options(topic)
    cluster.plan(options, undecided="abort")
    sync, calls, crashes = os.fsync, 0, 0
    limit = 0

    def crashing(number: int) -> None:
        nonlocal calls
        calls += 1
        if calls > limit:
            raise _CrashError
        sync(number)

    monkeypatch.setattr(os, "fsync", crashing)
    while True:
        calls, limit = 0, limit + 1
        try:
            cluster.write(options)
            break
        except _CrashError:
            crashes += 1
            assert status_restore(str(cluster.plan_file))[-1].startswith("next: ")
    assert crashes > 8
    names = [name for name in cluster.files() if "kts-restore" in name]
    assert names == []
    assert_same_rows(
        _written(cluster, topic, "read_uncommitted"), expected_table(topic, "read_uncommitted")
    )


def test_files_are_synced_before_the_journal_records_them(
    cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, recorded = set(), 0
    sync, add = os.fsync, Journal.add

    def record(number: int) -> None:
        sync(number)
        synced.add(os.fstat(number).st_ino)

    def check(journal: Journal, step: str, **facts: Any) -> dict[str, Any]:  # noqa: ANN401
        nonlocal recorded
        for name in facts.get("files", ()):
            path = cluster.log_dir / facts["partition"] / (name + TEMPORARY)
            assert path.stat().st_ino in synced
            recorded += 1
        return add(journal, step, **facts)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(Journal, "add", check)
    _restore(cluster, "epochs")
    assert recorded > 10


def test_write_to_too_small_disk_is_rejected_without_changes(
    cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("epochs")
    needed = sum(each.bytes for each in cluster.plan(EPOCHS).partitions)
    before = cluster.files()
    usage = shutil.disk_usage(cluster.log_dir)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed - 1))
        with pytest.raises(InvalidOptionError, match="free, but the restore needs"):
            cluster.write(EPOCHS)
    assert {**before, ".lock": b""} == cluster.files()
    cluster.write(EPOCHS)


def test_space_of_files_of_a_killed_write_counts_as_free(
    cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("epochs")
    needed = sum(each.bytes for each in cluster.plan(EPOCHS).partitions)
    leftover = cluster.log_dir / "epochs-0" / f"{0:020d}.log{TEMPORARY}"
    leftover.write_bytes(bytes(needed // 2))
    usage = shutil.disk_usage(cluster.log_dir)
    free = needed - needed // 2
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free - 1))
    with pytest.raises(InvalidOptionError, match="free, but the restore needs"):
        cluster.write(EPOCHS)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
    cluster.write(EPOCHS)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_files_written_by_root_belong_to_the_user_of_the_broker(cluster: NewCluster) -> None:
    cluster.add_topic("epochs")
    user, group = 23_456, 34_567
    for path in (cluster.log_dir, *cluster.log_dir.rglob("*")):
        os.chown(path, user, group)
    cluster.plan(EPOCHS)
    cluster.write(EPOCHS)
    files = [path for path in cluster.log_dir.rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" and path.stat().st_size for path in files)
    assert {(path.stat().st_uid, path.stat().st_gid) for path in files} == {(user, group)}


def test_write_resumes_after_disk_was_full_at_any_sync(
    cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("epochs")
    cluster.plan(EPOCHS)
    sync, calls, limit = os.fsync, 0, 0
    errors: list[str] = []

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > limit:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    while True:
        calls, limit = 0, limit + 1
        try:
            cluster.write(EPOCHS)
            break
        except InvalidOptionError as error:
            errors.append(str(error))
        last = status_restore(str(cluster.plan_file))[-1]
        assert last.startswith("next: run kts restore write")
    assert len(errors) > 8
    assert all("cannot be written: [Errno 28] No space left" in error for error in errors)
    assert_same_rows(
        _written(cluster, "epochs", "read_committed"), expected_table("epochs", "read_committed")
    )


@pytest.mark.parametrize("error", [ObjectNotFoundError, AccessDeniedError])
def test_write_reports_store_error_as_such(
    error: type[StoreError], cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("epochs")
    cluster.plan(EPOCHS)

    def failing(*_: object) -> None:
        raise error("the store refuses", uri="s3://bucket/00.log")

    monkeypatch.setattr(PartitionWriter, "write", failing)
    with pytest.raises(error, match="the store refuses"):
        cluster.write(EPOCHS)


class _CrashError(Exception):
    """Raised to end a write like a crash: the product has no handler for it."""


def test_resumed_write_with_changed_file_is_rejected(cluster: NewCluster) -> None:
    _restore(cluster, "epochs")
    journal = _journal(cluster)
    kept = [line for line in journal.path.read_text().splitlines() if '"staged"' in line]
    begin = journal.path.read_text().splitlines()[0]
    journal.path.write_text(f"{begin}\n{kept[0]}\n")
    log = min(cluster.log_dir.rglob("*.log"))
    log.write_bytes(log.read_bytes() + b"x")
    with pytest.raises(InvalidOptionError, match="was changed after"):
        cluster.write(EPOCHS)


def test_partition_in_another_log_directory_of_the_seed_is_rejected_without_changes(
    tmp_path: Path, cluster: NewCluster
) -> None:
    """The seed has two log directories, and one of the partitions in each."""
    for topic in ("codecs", "epochs"):
        cluster.add_topic(topic)
    (cluster.log_dir / "epochs-0").rename(tmp_path / "epochs-0")
    options = tier_options("codecs,epochs")
    assert cluster.plan(options).refusals == ()
    before = cluster.files()
    with pytest.raises(InvalidOptionError, match=r"several log\.dirs, plan the partitions of each"):
        cluster.write(options)
    assert {name for name, _ in cluster.files().items() ^ before.items()} <= {".lock"}
    assert not _journal(cluster).steps


@pytest.mark.parametrize("has_placed", [True, False])
def test_status_after_refused_producer_id_names_the_topic_to_leave_out(
    has_placed: bool, tmp_path: Path, cluster: NewCluster
) -> None:
    builder = LogBuilder()
    builder.send(100_000_001, [SimpleRecord(b"value")])
    builder.commit(100_000_001)
    builder.roll()
    name = "orders" if has_placed else "bills"
    LocalTierWriter(tmp_path / "tier", topic=name).write_segment(builder.build().segments[0])
    other = LogBuilder()
    other.append([SimpleRecord(b"value")])
    other.roll()
    LocalTierWriter(tmp_path / "tier", topic="cats").write_segment(other.build().segments[0])
    for snapshot in (tmp_path / "tier").rglob("*.snapshot"):
        snapshot.write_bytes(b"")  # only the batches have the id
    options = {"path": str(tmp_path / "tier"), "layout": "local-tiered-storage"}
    options["subscribe"] = f"cats,{name}"
    for topic in ("cats", name):
        cluster.add_topic(topic)
    assert cluster.plan(options).refusals == ()
    for _ in range(2):
        with pytest.raises(CorruptSegmentError, match="producer id 100000001"):
            cluster.write(options)
        anew = "start broker 0, delete the topics of the plan and create them again, then "
        assert state_of(cluster) == (
            f"written: {int(has_placed)} of 2 partitions",
            f"refused: {name} has a producer id above 100,000,000",
            f"next: {anew if has_placed else ''}plan again without topic {name}",
        )


def test_disk_of_old_broker_is_restored(tmp_path: Path, cluster: NewCluster) -> None:
    """Restores from the log directory of an earlier restore, which stands for an old broker's disk:
    alone, and in addition to a tier that lacks the last segment.
    """
    topic_id = uuid_from_text(topic_summary("epochs")["topicId"])
    cluster.add_topic("epochs", topic_id=topic_id)
    cluster.plan(EPOCHS)
    cluster.write(EPOCHS)
    disk = str(cluster.log_dir)
    alone = {"path": disk, "layout": "kafka-logs", "endOfLog": "true", "subscribe": "epochs"}
    tier = copied_tier(tmp_path, "epochs", lost=-1)
    joined = {**tier, "tailPath": disk, "endOfLog": "true"}
    for number, options in enumerate((alone, joined)):
        other = new_cluster(tmp_path / str(number), cluster.brokers)
        other.add_topic(f"copy-{number}")
        assert other.plan(options, rename={"epochs": f"copy-{number}"}).refusals == ()
        other.write(options)
        rows = _written(other, f"copy-{number}", "read_committed").drop_columns(["topic"])
        assert_same_rows(rows, expected_table("epochs", "read_committed"))


@pytest.mark.parametrize("base", [0, 300])
def test_resumed_write_after_broker_ran_is_rejected_without_changes(
    base: int, cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("epochs")
    cluster.plan(EPOCHS)
    with monkeypatch.context() as patch:
        patch.setattr("kts_source.restore.writing.place_files", _crash)
        with pytest.raises(_CrashError):
            cluster.write(EPOCHS)
    log = cluster.log_dir / "epochs-0" / f"{base:020d}.log"
    log.write_bytes(b"records")
    before = cluster.files()
    with pytest.raises(InvalidOptionError, match="records that the restore did not write"):
        cluster.write(EPOCHS)
    assert cluster.files() == before


def _crash(*_: object) -> None:
    raise _CrashError
