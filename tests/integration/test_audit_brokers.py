"""Audits of a live tier beside its brokers: no false alarm, and what brokers alone tell."""

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
from tests.integration.hybrid import hybrid_options, planned
from tests.integration.kafka_jars import kafka_class_path
from tests.integration.lost_branches import elect_unclean
from tests.integration.oracle import consumed
from tests.integration.tier_mischief import tiered_segments
from tests.needs import needs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from kts_source.auditing.report import AuditReport
    from tests.integration.tier_mischief import TieredSegment

    Found = tuple[str, str, int | None, int | None, frozenset[str]]
    Span = tuple[int, int]

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

AUDITS = 9
"""So many at least while segments come and go."""
_QUICK = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-proc:none")
RECORDS_PER_SECOND = 800.0
OTHER_ID = "AAAAAAAAAAAAAAAAAAAABQ"
LEVELS = ("listing", "metadata", "bytes")
NOTHING: frozenset[str] = frozenset()


@pytest.fixture(scope="module")
def sign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As long as this file is there, deletes in the tier do not end."""
    return tmp_path_factory.mktemp("sign") / "wait"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, sign: Path) -> Iterator[Cluster]:
    """Two brokers that hold user topics. Each has one thread that looks for what retention gave up,
    and that deletes it: where a delete does not end, it does not look any more.
    """
    needs("java", "javac", "mvn")
    classes = tmp_path_factory.mktemp("classes")
    source = Path(__file__).with_name("WaitingStorage.java")
    class_path = kafka_class_path()
    command = ["javac", *_QUICK, "-cp", class_path, "-d", str(classes), str(source)]
    subprocess.run(command, check=True, timeout=120)
    settings = {
        "broker.session.timeout.ms": "8000",  # a slow machine is no dead broker
        "remote.log.manager.expiration.thread.pool.size": "1",
        "remote.log.storage.manager.class.name": "WaitingStorage",
        "rsm.config.wait.while.there": str(sign),
    }
    spec = ClusterSpec(replicas=2, settings=settings, classes=classes)
    with Cluster(tmp_path_factory.mktemp("audits") / "cluster", spec) as cluster:
        yield cluster


def test_no_false_alarm_in_motion_nor_at_rest(cluster: Cluster) -> None:
    admin, places = cluster.admin, [("copied", 0), ("copied", 1), ("short", 0)]
    # Markers are dated by the broker's clock, so records must be.
    admin.create_topic("copied", 2, message_timestamp_type="LogAppendTime")
    admin.create_topic("short", message_timestamp_type="LogAppendTime", retention_bytes="50000")
    filler = Filler(cluster.bootstrap, _seed())
    for topic, partition in places:
        _write(cluster, filler, topic, 3, partition)
        _wait_tiered(cluster, topic, partition)
    reports: list[AuditReport] = []
    with Background(RandomWork(cluster.bootstrap, places, _seed()), RECORDS_PER_SECOND):
        log_start, deadline = admin.offsets("short").earliest, time.monotonic() + 60
        # Until segments have come and gone; on a machine that is short of time, for a while.
        while len(reports) < AUDITS or (
            time.monotonic() < deadline
            and not (
                _segments(reports[-1]) > _segments(reports[0]) + 2
                and admin.offsets("short").earliest > log_start
            )
        ):
            reports += [audited(cluster, "copied", "short", level=level) for level in LEVELS]
    for report in reports:
        # The log start moves before a delete begins, so what retention gave up may be there still.
        told = {(name, place) for name, place, *_ in alarms(report)}
        assert told <= {("below-log-start", "short-0")}
        assert all(part.is_whole for part in report.partitions)

    for place in places[:2]:
        _wait_tiered(cluster, *place)
    for level in LEVELS:
        report = audited(cluster, "copied", level=level, grace_ms=0)
        assert alarms(report) == set()
        assert [part.is_whole for part in report.partitions] == [True, True]
        for part in report.partitions if level != "listing" else ():
            known = admin.offsets(part.topic, part.partition)
            start, stop = known.earliest, known.tiered
            assert (part.start, part.stop) == (start, stop)
            rows = consumed(cluster.bootstrap, part.topic, part.partition, start, stop)
            assert part.records == (len(rows) if level == "bytes" else None)


def test_what_only_one_side_has(cluster: Cluster, tmp_path: Path) -> None:
    _filled(cluster, "sides", 3)
    tier = Path(shutil.copytree(cluster.tier, tmp_path / "tier"))
    parts = [tiered_segments(tier, "sides", number) for number in range(3)]
    spans = [
        _spans(segments, cluster.admin.offsets("sides", number).tiered)
        for number, segments in enumerate(parts)
    ]
    second = parts[0][1]
    copies = [path.with_name(_with_id(path, OTHER_ID)) for path in second.objects]
    for path, copy in zip(second.objects, copies, strict=True):
        shutil.copy(path, copy)
    # The last of the first partition, one amid the second, all of the third.
    for segment in (parts[0][-1], parts[1][2], *parts[2]):
        for path in segment.objects:
            path.unlink()
    base, stop = spans[0][1]
    own, strange = _keys(tier, second.objects), _keys(tier, copies)
    found = {
        ("unknown-to-brokers", "sides-0", base, None, strange),
        ("named-not-there", "sides-0", *spans[0][-1], NOTHING),
        ("named-not-there", "sides-1", *spans[1][2], NOTHING),
        *(("named-not-there", "sides-2", *span, NOTHING) for span in spans[2]),
    }
    around = _keys(tier, [parts[1][1].log, parts[1][3].log])
    is_least = second.log.name < copies[0].name  # of two the least id is read
    of_manifests = {
        ("duplicate-upload", "sides-0", base, stop, strange if is_least else own),
        ("unsure-gap", "sides-1", *spans[1][2], around),  # without brokers
    }
    listed = {("duplicate-upload", "sides-0", base, None, own | strange)}
    for level in LEVELS:
        report = audited(cluster, "sides", level=level, tier=tier)
        assert alarms(report) == found | (listed if level == "listing" else of_manifests)
        assert report.exit_code == 3
        assert [part.is_whole for part in report.partitions] == [False, False]


def test_what_brokers_gave_up_and_do_not_delete(cluster: Cluster, sign: Path) -> None:
    admin, tier = cluster.admin, cluster.tier
    topics = ("trimmed", "aged", "sized", "fine")
    for topic in topics:
        _filled(cluster, topic)
    stored = {topic: tiered_segments(tier, topic) for topic in topics}
    spans = {topic: _spans(stored[topic], admin.offsets(topic).tiered) for topic in topics}
    keys = {topic: [_keys(tier, segment.objects) for segment in stored[topic]] for topic in topics}
    sizes = [segment.log.stat().st_size for segment in stored["sized"]]
    log_start = spans["trimmed"][2][0] + 7
    sign.touch()
    try:
        admin.delete_records("trimmed", 0, log_start)
        # The thread begins with the first segment, and goes no further.
        wait_until(lambda: _deleting(cluster, "trimmed") == 1)
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
            report = audited(cluster, *topics, level=level, grace_ms=0)
            assert alarms(report) == {*below, *overdue, begun}
            assert report.exit_code == 0
        # All this is not old enough for the usual grace.
        assert alarms(audited(cluster, *topics, level="listing")) == below
    finally:
        sign.unlink()
    starts = {"trimmed": log_start, "aged": spans["aged"][3][0], "sized": spans["sized"][2][0]}
    for topic, start in starts.items():
        wait_until(lambda: tiered_segments(tier, topic)[0].base_offset > start - 100)  # noqa: B023
        # Brokers count what is on their disks alone, too.
        at_least = admin.offsets(topic).earliest
        assert at_least >= start if topic == "sized" else at_least == start
    # What is copied now tells the tier where the log starts.
    filler = Filler(cluster.bootstrap, _seed())
    _write(cluster, filler, "trimmed", 1)
    _wait_tiered(cluster, "trimmed")
    for level in LEVELS:
        report = audited(cluster, *topics, level=level, grace_ms=0)
        # One copy alone tells the new log start, and the leader confirms it.
        assert alarms(report) == set()
        if level != "listing":
            (part,) = (part for part in report.partitions if part.topic == "trimmed")
            assert part.start == log_start


def test_a_branch_that_an_election_lost(cluster: Cluster) -> None:
    admin, tier, topic = cluster.admin, cluster.tier, "unclean"
    admin.create_topic(topic, replicas=(2, 3), local_retention_bytes="-2")
    filler = Filler(cluster.bootstrap, _seed())
    _write(cluster, filler, topic, 2)
    wait_until(lambda: admin.in_sync(topic) == [2, 3])
    cut = admin.offsets(topic).latest
    stored: list[tuple[TieredSegment, Span]] = []

    def lost() -> None:
        _write(cluster, filler, topic, 2)
        _wait_tiered(cluster, topic)
        segments = tiered_segments(tier, topic)
        spans = _spans(segments, admin.offsets(topic).tiered)
        stored.extend(zip(segments, spans, strict=True))

    elect_unclean(cluster, topic, lost)
    assert admin.offsets(topic).latest == cut
    dead = {
        ("dead-branch", "unclean-0", max(low, cut), high, _keys(tier, segment.objects))
        for segment, (low, high) in stored
        if high > cut
    }
    assert len(dead) > 1
    for level in LEVELS:
        report = audited(cluster, topic, level=level)
        assert alarms(report) == dead
        assert report.exit_code == 0
    # The tier alone does not tell before the new branch is copied.
    assert alarms(audited(cluster, topic, level="metadata", brokers=False)) == set()
    _write(cluster, filler, topic, 2)
    _wait_tiered(cluster, topic)
    for level in LEVELS[1:]:
        report = audited(cluster, topic, level=level)
        assert {one for one in alarms(report) if one[0] != "duplicate-upload"} == dead
        assert report.exit_code == 0


def audited(
    cluster: Cluster,
    *topics: str,
    level: str,
    tier: Path | None = None,
    brokers: bool = True,
    grace_ms: int = 3_600_000,
) -> AuditReport:
    """The audit of some topics."""
    options = {
        "path": str(tier or cluster.tier),
        "layout": "local-tiered-storage",
        "subscribe": ",".join(topics),
    }
    if brokers:
        options["kafka.bootstrap.servers"] = cluster.bootstrap
    return kts_source.audit(options, level=level, grace_ms=grace_ms)


def alarms(report: AuditReport) -> set[Found]:
    """The findings that are warnings or errors; each is told once."""
    found = [
        (one.name, f"{one.topic}-{one.partition}", one.start, one.stop, frozenset(one.objects))
        for one in report.findings
        if one.severity is not Severity.INFO
    ]
    assert len(set(found)) == len(found)
    return set(found)


def _segments(report: AuditReport) -> int:
    return sum(part.segments for part in report.partitions if part.topic == "copied")


def _filled(cluster: Cluster, topic: str, partitions: int = 1) -> None:
    """Creates a topic with five segments and more in the tier, and nothing that is still copied."""
    cluster.admin.create_topic(topic, partitions)
    filler = Filler(cluster.bootstrap, _seed())
    for number in range(partitions):
        _write(cluster, filler, topic, 5, number)
        _wait_tiered(cluster, topic, number)


def _write(cluster: Cluster, filler: Filler, topic: str, segments: int, partition: int = 0) -> None:
    """Writes until so many more segments are closed."""
    leader = cluster.admin.leader(topic, partition)
    active, closed = -1, -1
    while closed < segments:
        filler.send(filler.plain("none"), topic, partition, 40)
        newest = cluster.admin.local_bases(leader, topic, partition)[-1]
        closed += newest != active
        active = newest


def _wait_tiered(cluster: Cluster, topic: str, partition: int = 0) -> None:
    """Waits until all closed segments are in the tier."""
    admin = cluster.admin
    admin.wait_stable(topic, partition)
    active = admin.local_bases(admin.leader(topic, partition), topic, partition)[-1]
    admin.wait_tiered(topic, partition, active)


def _newest_ms(cluster: Cluster, topic: str, spans: list[Span]) -> list[int]:
    """The time of the newest record of each of these offsets, as a consumer has them."""
    rows = consumed(cluster.bootstrap, topic, 0, spans[0][0], spans[-1][1])
    return [max(row.timestamp for row in rows if low <= row.offset < high) for low, high in spans]


def _deleting(cluster: Cluster, topic: str) -> int:
    """How many segments brokers have begun to delete."""
    catalog = {"catalog": "metadata-topic", "subscribe": topic}
    plan = planned(hybrid_options(cluster.bootstrap, cluster.tier, **catalog))
    return sum(part.catalog.deleting for part in plan.partitions if part.catalog is not None)


def _spans(segments: list[TieredSegment], end: int) -> list[Span]:
    """The offsets [start, stop) of segments that follow each other up to an end."""
    bases = [segment.base_offset for segment in segments]
    return list(zip(bases, [*bases[1:], end], strict=True))


def _keys(tier: Path, paths: Collection[Path]) -> frozenset[str]:
    return frozenset(str(path.relative_to(tier)) for path in paths)


def _union(keys: list[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*keys)


def _with_id(path: Path, segment_id: str) -> str:
    """The name of an object of another segment of the same offsets."""
    base, suffix = path.name.split("-", 1)[0], path.name.split(".", 1)[1]
    return f"{base}-{segment_id}.{suffix}"


def _seed() -> int:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")  # noqa: T201  # shown where the test fails
    return seed
