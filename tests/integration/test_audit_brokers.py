"""Tests audits of tiers whose brokers are running.

Audits must report no false findings. They must also report findings that they can detect only with
the help of the brokers.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.auditing.report import Severity
from tests.integration.admin import wait_until
from tests.integration.background import Background, RandomWork
from tests.integration.cluster import Cluster, ClusterSpec
from tests.integration.filler import Filler
from tests.integration.hybrid import hybrid_options, make_plan
from tests.integration.kafka_jars import kafka_class_path
from tests.integration.lost_branches import elect_unclean
from tests.integration.oracle import consume_range
from tests.integration.tier_mischief import list_tiered_segments
from tests.needs import needs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from kts_source.auditing.report import AuditReport
    from tests.integration.tier_mischief import TieredSegment

    Alarm = tuple[str, str, int | None, int | None, frozenset[str]]
    Span = tuple[int, int]

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

AUDITS = 9
"""Minimum number of audits while brokers add and delete segments."""
_QUICK = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-proc:none")
RECORDS_PER_SECOND = 800.0
OTHER_ID = "AAAAAAAAAAAAAAAAAAAABQ"
LEVELS = ("listing", "metadata", "bytes")
NOTHING: frozenset[str] = frozenset()


@pytest.fixture(scope="module")
def wait_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the path of a file. While a test has created this file, brokers cannot finish
    deleting segments from the tier.
    """
    return tmp_path_factory.mktemp("wait-file") / "wait"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, wait_file: Path) -> Iterator[Cluster]:
    """Runs two brokers for user topics.

    Each broker has one thread that finds and deletes expired segments. While `wait_file` exists,
    this thread waits in its current delete and deletes no other segments.
    """
    needs("java", "javac", "mvn")
    classes = tmp_path_factory.mktemp("classes")
    source = Path(__file__).with_name("WaitingStorage.java")
    class_path = kafka_class_path()
    command = ["javac", *_QUICK, "-cp", class_path, "-d", str(classes), str(source)]
    subprocess.run(command, check=True, timeout=120)
    settings = {
        "broker.session.timeout.ms": "8000",  # a slow machine must not look like a dead broker
        "remote.log.manager.expiration.thread.pool.size": "1",
        "remote.log.storage.manager.class.name": "WaitingStorage",
        "rsm.config.wait.while.there": str(wait_file),
    }
    spec = ClusterSpec(replicas=2, settings=settings, classes=classes)
    with Cluster(tmp_path_factory.mktemp("audits") / "cluster", spec) as cluster:
        yield cluster


def test_audit_of_changing_or_idle_topics_reports_no_false_findings(cluster: Cluster) -> None:
    admin, keys = cluster.admin, [("copied", 0), ("copied", 1), ("short", 0)]
    # The broker's clock sets the times of transaction markers. Let it set record times, too.
    admin.create_topic("copied", 2, message_timestamp_type="LogAppendTime")
    admin.create_topic("short", message_timestamp_type="LogAppendTime", retention_bytes="50000")
    filler = Filler(cluster.bootstrap, _seed())
    for topic, partition in keys:
        _write(cluster, filler, topic, 3, partition)
        _wait_tiered(cluster, topic, partition)
    reports: list[AuditReport] = []
    with Background(RandomWork(cluster.bootstrap, keys, _seed()), RECORDS_PER_SECOND):
        log_start, deadline = admin.offsets("short").earliest, time.monotonic() + 60
        # Audit until brokers added and deleted segments, but for at most a minute.
        while len(reports) < AUDITS or (
            time.monotonic() < deadline
            and not (
                _segments(reports[-1]) > _segments(reports[0]) + 2
                and admin.offsets("short").earliest > log_start
            )
        ):
            reports += [run_audit(cluster, "copied", "short", level=level) for level in LEVELS]
    for report in reports:
        # Brokers move the log start first, so segments below it may still exist.
        named = {(name, partition) for name, partition, *_ in list_alarms(report)}
        assert named <= {("below-log-start", "short-0")}
        assert all(partition.is_whole for partition in report.partitions)

    for key in keys[:2]:
        _wait_tiered(cluster, *key)
    for level in LEVELS:
        report = run_audit(cluster, "copied", level=level, grace_ms=0)
        assert list_alarms(report) == set()
        assert [audited_partition.is_whole for audited_partition in report.partitions] == [
            True,
            True,
        ]
        for audited_partition in report.partitions if level != "listing" else ():
            offsets = admin.offsets(audited_partition.topic, audited_partition.partition)
            start, stop = offsets.earliest, offsets.tiered
            assert (audited_partition.start, audited_partition.stop) == (start, stop)
            rows = consume_range(
                cluster.bootstrap, audited_partition.topic, audited_partition.partition, start, stop
            )
            assert audited_partition.records == (len(rows) if level == "bytes" else None)


def test_audit_reports_segments_that_only_the_tier_or_only_the_brokers_have(
    cluster: Cluster, tmp_path: Path
) -> None:
    _fill_topic(cluster, "sides", 3)
    tier = Path(shutil.copytree(cluster.tier, tmp_path / "tier"))
    segments_by_partition = [list_tiered_segments(tier, "sides", number) for number in range(3)]
    spans = [
        _spans(stored, cluster.admin.offsets("sides", number).tiered)
        for number, stored in enumerate(segments_by_partition)
    ]
    second = segments_by_partition[0][1]
    copies = [path.with_name(_with_id(path, OTHER_ID)) for path in second.objects]
    for path, copy in zip(second.objects, copies, strict=True):
        shutil.copy(path, copy)
    # Remove the last segment of partition 0, one inside partition 1, and all of partition 2.
    for segment in (
        segments_by_partition[0][-1],
        segments_by_partition[1][2],
        *segments_by_partition[2],
    ):
        for path in segment.objects:
            path.unlink()
    base, stop = spans[0][1]
    own, copied = _relative_keys(tier, second.objects), _relative_keys(tier, copies)
    expected = {
        ("unknown-to-brokers", "sides-0", base, None, copied),
        ("named-not-there", "sides-0", *spans[0][-1], NOTHING),
        ("named-not-there", "sides-1", *spans[1][2], NOTHING),
        *(("named-not-there", "sides-2", *span, NOTHING) for span in spans[2]),
    }
    around = _relative_keys(
        tier, [segments_by_partition[1][1].log, segments_by_partition[1][3].log]
    )
    is_smallest = (
        second.log.name < copies[0].name
    )  # of duplicates, the one with the smallest id is read
    by_manifests = {
        ("duplicate-upload", "sides-0", base, stop, copied if is_smallest else own),
        ("unsure-gap", "sides-1", *spans[1][2], around),  # without brokers
    }
    by_listing = {("duplicate-upload", "sides-0", base, None, own | copied)}
    for level in LEVELS:
        report = run_audit(cluster, "sides", level=level, tier=tier)
        assert list_alarms(report) == expected | (
            by_listing if level == "listing" else by_manifests
        )
        assert report.exit_code == 3
        assert [partition.is_whole for partition in report.partitions] == [False, False]


def test_audit_reports_expired_segments_that_brokers_did_not_delete(
    cluster: Cluster, wait_file: Path
) -> None:
    admin, tier = cluster.admin, cluster.tier
    topics = ("trimmed", "aged", "sized", "fine")
    for topic in topics:
        _fill_topic(cluster, topic)
    stored = {topic: list_tiered_segments(tier, topic) for topic in topics}
    spans = {topic: _spans(stored[topic], admin.offsets(topic).tiered) for topic in topics}
    keys = {
        topic: [_relative_keys(tier, segment.objects) for segment in stored[topic]]
        for topic in topics
    }
    sizes = [segment.log.stat().st_size for segment in stored["sized"]]
    log_start = spans["trimmed"][2][0] + 7
    wait_file.touch()
    try:
        admin.delete_records("trimmed", 0, log_start)
        # The thread of the broker waits while it deletes the first segment.
        wait_until(lambda: _count_deleting_segments(cluster, "trimmed") == 1)
        now_ms = time.time_ns() // 1_000_000
        newest = _newest_ms(cluster, "aged", spans["aged"])
        kept_ms = now_ms - (newest[2] + newest[3]) // 2
        admin.alter_topic("aged", retention_ms=str(kept_ms))
        admin.alter_topic("sized", retention_bytes=str(sum(sizes[2:])))
        (oldest, *_) = _newest_ms(cluster, "fine", spans["fine"][:1])
        fine = {"retention_ms": str(now_ms - oldest + 3_600_000), "retention_bytes": "10000000"}
        admin.alter_topic("fine", **fine)
        below = {("below-log-start", "trimmed-0", *spans["trimmed"][1], keys["trimmed"][1])}
        overdue = {
            ("retention-overdue", "aged-0", 0, spans["aged"][2][1], _union(keys["aged"][:3])),
            ("retention-overdue", "sized-0", 0, spans["sized"][1][1], _union(keys["sized"][:2])),
        }
        begun = ("delete-not-finished", "trimmed-0", *spans["trimmed"][0], keys["trimmed"][0])
        for level in LEVELS:
            report = run_audit(cluster, *topics, level=level, grace_ms=0)
            assert list_alarms(report) == {*below, *overdue, begun}
            assert report.exit_code == 0
        # The default grace period, one hour, is not over for the other segments.
        assert list_alarms(run_audit(cluster, *topics, level="listing")) == below
    finally:
        wait_file.unlink()
    starts = {"trimmed": log_start, "aged": spans["aged"][3][0], "sized": spans["sized"][2][0]}
    for topic, start in starts.items():
        wait_until(lambda: list_tiered_segments(tier, topic)[0].base_offset > start - 100)  # noqa: B023
        # Retention by size also counts local segments, so it may delete more.
        earliest = admin.offsets(topic).earliest
        assert earliest >= start if topic == "sized" else earliest == start
    # Segments copied from now on contain the new log start in their checkpoint.
    _write(cluster, Filler(cluster.bootstrap, _seed()), "trimmed", 1)
    _wait_tiered(cluster, "trimmed")
    for level in LEVELS:
        report = run_audit(cluster, *topics, level=level, grace_ms=0)
        # Only the newest segment contains the new log start, but the leader confirms it.
        assert list_alarms(report) == set()
        if level != "listing":
            (partition,) = (
                partition for partition in report.partitions if partition.topic == "trimmed"
            )
            assert partition.start == log_start


def test_audit_reports_branch_lost_by_unclean_election(cluster: Cluster) -> None:
    admin, tier, topic = cluster.admin, cluster.tier, "unclean"
    admin.create_topic(topic, replicas=(2, 3), local_retention_bytes="-2")
    filler = Filler(cluster.bootstrap, _seed())
    _write(cluster, filler, topic, 2)
    wait_until(lambda: admin.in_sync(topic) == [2, 3])
    cut = admin.offsets(topic).latest
    stored: list[tuple[TieredSegment, Span]] = []

    def write_lost_branch() -> None:
        _write(cluster, filler, topic, 2)
        _wait_tiered(cluster, topic)
        segments = list_tiered_segments(tier, topic)
        spans = _spans(segments, admin.offsets(topic).tiered)
        stored.extend(zip(segments, spans, strict=True))

    elect_unclean(cluster, topic, write_lost_branch)
    assert admin.offsets(topic).latest == cut
    dead = {
        ("dead-branch", "unclean-0", max(low, cut), high, _relative_keys(tier, segment.objects))
        for segment, (low, high) in stored
        if high > cut
    }
    assert len(dead) > 1
    for level in LEVELS:
        report = run_audit(cluster, topic, level=level)
        assert list_alarms(report) == dead
        assert report.exit_code == 0
    # Without brokers, an audit finds the dead branch only after the new branch is tiered.
    assert list_alarms(run_audit(cluster, topic, level="metadata", brokers=False)) == set()
    _write(cluster, filler, topic, 2)
    _wait_tiered(cluster, topic)
    for level in LEVELS[1:]:
        report = run_audit(cluster, topic, level=level)
        assert {alarm for alarm in list_alarms(report) if alarm[0] != "duplicate-upload"} == dead
        assert report.exit_code == 0


def run_audit(
    cluster: Cluster,
    *topics: str,
    level: str,
    tier: Path | None = None,
    brokers: bool = True,
    grace_ms: int = 3_600_000,
) -> AuditReport:
    """Audits `topics` at `level` and returns the report.

    `tier` is by default the tier of the cluster. If `brokers` is true, the audit compares the tier
    with the brokers. Objects of an incomplete segment that are younger than `grace_ms` are reported
    as an unfinished copy.
    """
    options = {
        "path": str(tier or cluster.tier),
        "layout": "local-tiered-storage",
        "subscribe": ",".join(topics),
    }
    if brokers:
        options["kafka.bootstrap.servers"] = cluster.bootstrap
    return kts_source.audit(options, level=level, grace_ms=grace_ms)


def list_alarms(report: AuditReport) -> set[Alarm]:
    """Returns the findings with severity warning or error. Asserts that each occurs only once."""
    alarm_list = [
        (
            finding.name,
            f"{finding.topic}-{finding.partition}",
            finding.start,
            finding.stop,
            frozenset(finding.objects),
        )
        for finding in report.findings
        if finding.severity is not Severity.INFO
    ]
    assert len(set(alarm_list)) == len(alarm_list)
    return set(alarm_list)


def _segments(report: AuditReport) -> int:
    return sum(partition.segments for partition in report.partitions if partition.topic == "copied")


def _fill_topic(cluster: Cluster, topic: str, partitions: int = 1) -> None:
    """Creates a topic, writes at least five segments and waits until all of them are tiered."""
    cluster.admin.create_topic(topic, partitions)
    filler = Filler(cluster.bootstrap, _seed())
    for number in range(partitions):
        _write(cluster, filler, topic, 5, number)
        _wait_tiered(cluster, topic, number)


def _write(cluster: Cluster, filler: Filler, topic: str, segments: int, partition: int = 0) -> None:
    """Writes until `segments` additional segments are closed."""
    leader = cluster.admin.leader(topic, partition)
    active, closed = -1, -1
    while closed < segments:
        filler.send(filler.plain("none"), topic, partition, 40)
        newest = cluster.admin.local_bases(leader, topic, partition)[-1]
        closed += newest != active
        active = newest


def _wait_tiered(cluster: Cluster, topic: str, partition: int = 0) -> None:
    """Waits until the tier contains all closed segments of a partition."""
    admin = cluster.admin
    admin.wait_stable(topic, partition)
    active = admin.local_bases(admin.leader(topic, partition), topic, partition)[-1]
    admin.wait_tiered(topic, partition, active)


def _newest_ms(cluster: Cluster, topic: str, spans: list[Span]) -> list[int]:
    """Returns the newest timestamp in ms of the records in each offset range of `spans`."""
    rows = consume_range(cluster.bootstrap, topic, 0, spans[0][0], spans[-1][1])
    return [max(row.timestamp for row in rows if low <= row.offset < high) for low, high in spans]


def _count_deleting_segments(cluster: Cluster, topic: str) -> int:
    """Returns the number of segments whose deletion has started but is not finished."""
    catalog = {"catalog": "metadata-topic", "subscribe": topic}
    plan = make_plan(hybrid_options(cluster.bootstrap, cluster.tier, **catalog))
    return sum(
        partition.catalog.deleting for partition in plan.partitions if partition.catalog is not None
    )


def _spans(segments: list[TieredSegment], end: int) -> list[Span]:
    """Returns the offset range [start, stop) of each segment. The last segment stops at `end`."""
    bases = [segment.base_offset for segment in segments]
    return list(zip(bases, [*bases[1:], end], strict=True))


def _relative_keys(tier: Path, paths: Collection[Path]) -> frozenset[str]:
    return frozenset(str(path.relative_to(tier)) for path in paths)


def _union(keys: list[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*keys)


def _with_id(path: Path, segment_id: str) -> str:
    """Returns the file name of `path` with the segment id replaced by `segment_id`."""
    base, suffix = path.name.split("-", 1)[0], path.name.split(".", 1)[1]
    return f"{base}-{segment_id}.{suffix}"


def _seed() -> int:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")  # noqa: T201  # shown if the test fails
    return seed
