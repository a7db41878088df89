"""Ranges from brokers that fail: the same rows, or an error that says what is wrong; no hang."""

from __future__ import annotations

import dataclasses
import struct
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.broker import cluster as cluster_module
from kts_source.broker import fetch_range
from kts_source.broker.broker_range import BrokerRange
from kts_source.broker.cluster import Cluster
from kts_source.broker.fetch_range import RangeFetcher, begins_at_or_after
from kts_source.errors import (
    BrokerError,
    BrokerUnavailableError,
    CorruptSegmentError,
    DataLossError,
)
from kts_source.options import parse_options
from kts_source.read.broker_rows import read_range
from kts_source.read.read_settings import ReadSettings
from segment_format.testing import LogBuilder, SimpleRecord
from segment_format.testing.legacy import write_message_set
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import FakeLog, StoredBatch, fake_log, with_log_start
from tests.kts_source.broker.fake_node import FETCH, LIST_OFFSETS, Fault
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

END = 60
SETTINGS = dataclasses.replace(
    ReadSettings.of(parse_options({"path": "/", "subscribe": "t"})), columns=("offset",)
)


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_range, "_PATIENCE_SECONDS", 20.0)
    monkeypatch.setattr(cluster_module, "_PATIENCE_SECONDS", 10.0)


class Scene:
    """Two brokers, one partition of 20 batches with three records each, and a client."""

    def __init__(self) -> None:
        builder = LogBuilder()
        for number in range(END // 3):
            builder.append([SimpleRecord(b"%d" % number)] * 3)
        self.part = FakePartition(fake_log(builder.build()))
        self.brokers = FakeCluster(2)
        self.topic_id = self.brokers.create("t", [self.part])
        self.cluster = Cluster(
            self.brokers.settings(partition_fetch_bytes=300, request_timeout_seconds=0.2)
        )

    @property
    def wanted(self) -> BrokerRange:
        return BrokerRange("t", self.topic_id, 0, 0, 0, END, False, 1)

    def offsets(self, wanted: BrokerRange | None = None, **changed: Any) -> list[int]:  # noqa: ANN401
        """What a range gives."""
        settings = dataclasses.replace(SETTINGS, **changed)
        batches = read_range(wanted or self.wanted, self.cluster, settings)
        return [offset for batch in batches for offset in batch["offset"].to_pylist()]

    def elect(self, *, keeps: int = END) -> None:
        """Another broker leads; its log has so many offsets of the epoch before."""
        self.part.leader, self.part.epoch = 1, 1
        self.part.log.epochs = [(0, 0), (1, keeps)]


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    with made.brokers:
        yield made
        made.cluster.close()


def _empty(answer: Any) -> None:  # noqa: ANN401
    answer.responses[0].partitions[0].records = b""


def _cut(answer: Any) -> None:  # noqa: ANN401
    part = answer.responses[0].partitions[0]
    part.records = part.records[:50]


def _throttled(answer: Any) -> None:  # noqa: ANN401
    answer.responses, answer.throttle_time_ms = [], 20


def _other_request(framed: bytes) -> bytes:
    return framed[:4] + b"\x7f" + framed[5:]


PASSING = {
    "hung up before": Fault(alter=lambda _: b"", hang_up=True),
    "hung up inside": Fault(alter=lambda framed: framed[:100], hang_up=True),
    "hung up in the size": Fault(alter=lambda framed: framed[:2], hang_up=True),
    "too late": Fault(pause=0.3),
    "a little late": Fault(pause=0.05),
    "in drips": Fault(drip=0.01),
    "garbage": Fault(alter=lambda framed: framed[:8] + b"\xff" * (len(framed) - 8)),
    "answer of another request": Fault(alter=_other_request),
    "a giant": Fault(alter=lambda framed: struct.pack(">i", 1 << 30) + framed[4:]),
    "a negative size": Fault(alter=lambda framed: struct.pack(">i", -1) + framed[4:]),
    "empty": Fault(edit=_empty),
    "no whole batch": Fault(edit=_cut),
    "throttled": Fault(edit=_throttled),
    **{f"error {code}": Fault(code) for code in (-1, 3, 5, 6, 7, 8, 9, 13, 14, 56, 74, 75, 78, 89)},
    **{f"error {code}": Fault(code) for code in (100, 103)},
}


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("after", only(1, [2, 0]))
def test_temporary_failures_lose_no_row(scene: Scene, name: str, after: int) -> None:
    scene.brokers.fail(FETCH, *[Fault()] * after, PASSING[name], PASSING[name])
    assert scene.offsets() == list(range(END))
    assert not scene.brokers.faults[FETCH]
    # What was left of a connection is nobody's answer.
    assert scene.offsets() == list(range(END))


@pytest.mark.parametrize(
    "name",
    [
        *("hung up inside", "too late", "garbage", "a giant", "empty", "throttled"),
        *("no whole batch", "error 56", "error 75", "error 100"),
    ],
)
def test_permanent_failure_is_an_error_in_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(fetch_range, "_PATIENCE_SECONDS", 0.3)
    scene.brokers.fail(FETCH, Fault(), PASSING[name], times=1)
    scene.brokers.fail(FETCH, PASSING[name], times=1000)
    began = time.monotonic()
    with pytest.raises(BrokerUnavailableError, match=r"returned no batch.*topic t, partition 0"):
        scene.offsets()
    assert time.monotonic() - began < 15


def test_fetch_ends_at_offsets_emptied_by_compaction(scene: Scene) -> None:
    # A consumer of read_committed hears nothing then; this was once taken for a broker that waits.
    builder = LogBuilder()
    for number in range(9):
        builder.append([SimpleRecord(b"%d" % number)] * 3)
    builder.send(5, [SimpleRecord(b"open")] * 3)
    log = fake_log(builder.build())
    assert (log.stable, log.end) == (27, 30)
    log.batches = [batch for batch in log.batches if batch.base not in (15, 18, 21, 24)]
    scene.part.log = log
    wanted = dataclasses.replace(scene.wanted, stop_offset=27, read_committed=True)
    assert scene.offsets(wanted) == list(range(15))
    # What is there is waited for, however long it takes.
    scene.part.log = fake_log(builder.build())
    scene.brokers.fail(FETCH, Fault(), *[Fault(edit=_empty)] * 11)
    assert scene.offsets(wanted) == list(range(27))


@pytest.mark.parametrize("code", [2, 29, 31, 35])
def test_refusal_is_an_error_immediately(scene: Scene, code: int) -> None:
    scene.brokers.fail(FETCH, Fault(), Fault(code))
    with pytest.raises(BrokerError, match=r"topic t, partition 0, offset 9"):
        scene.offsets()


def test_damaged_batches_are_an_error(scene: Scene) -> None:
    def damage(answer: Any) -> None:  # noqa: ANN401
        part = answer.responses[0].partitions[0]
        part.records = part.records[:80] + b"\xff" + part.records[81:]

    scene.brokers.fail(FETCH, Fault(), Fault(edit=damage))
    with pytest.raises(CorruptSegmentError, match="a broker sent invalid data"):
        scene.offsets()


def _other_partition(answer: Any) -> None:  # noqa: ANN401
    answer.responses[0].partitions[0].partition_index = 7


def _other_topic(answer: Any) -> None:  # noqa: ANN401
    answer.responses[0].topic_id = uuid.UUID(int=5)


def _twice(answer: Any) -> None:  # noqa: ANN401
    answer.responses[0].partitions *= 2


@pytest.mark.parametrize("edit", [_other_partition, _other_topic, _twice])
def test_answer_of_another_partition_is_an_error(scene: Scene, edit: Callable[[Any], None]) -> None:
    scene.brokers.fail(FETCH, Fault(), Fault(edit=edit))
    with pytest.raises(BrokerError, match=r"not what it was asked for \[topic t, partition 0"):
        scene.offsets()


@pytest.mark.parametrize("dies", [False, True])
def test_fetch_continues_from_a_new_leader(scene: Scene, dies: bool) -> None:
    # A leader that died was once asked for ever.
    def change() -> None:
        scene.elect()
        if dies:
            scene.brokers.stop_node(0)

    scene.brokers.fail(FETCH, Fault(), Fault(), Fault(change=change, hang_up=dies))
    assert scene.offsets() == list(range(END))


def test_fetch_follows_the_leader_after_a_failed_disk(scene: Scene) -> None:
    scene.brokers.fail(FETCH, Fault(), Fault(56, change=scene.elect))
    assert scene.offsets() == list(range(END))


def test_new_leader_without_the_records_is_an_error(scene: Scene) -> None:
    scene.brokers.fail(FETCH, Fault(), Fault(change=lambda: scene.elect(keeps=30)))
    with pytest.raises(DataLossError, match="unclean election"):
        scene.offsets()


def test_recreated_topic_returns_no_row(scene: Scene) -> None:
    def again() -> None:
        scene.brokers.create("t", [scene.part])

    scene.brokers.fail(FETCH, Fault(), Fault(change=again))
    with pytest.raises(DataLossError, match="created again"):
        scene.offsets()


@pytest.mark.parametrize("told", [False, True])
def test_moved_log_start_is_data_loss(scene: Scene, told: bool) -> None:
    # Real brokers do not tell the log start in that answer: loss was then never allowed. And the
    # batch that holds it begins below, with rows that no consumer sees.
    def move() -> None:
        scene.part.log = with_log_start(scene.part.log, 31)

    scene.part.tells_log_start = told
    start = scene.part.log
    scene.brokers.fail(FETCH, Fault(), Fault(change=move))
    with pytest.raises(DataLossError, match="starts at 31"):
        scene.offsets()
    scene.part.log = start
    scene.brokers.fail(FETCH, Fault(), Fault(change=move))
    assert scene.offsets(fail_on_data_loss=False) == [*range(9), *range(31, END)]


@pytest.mark.parametrize("dead", [False, True])
def test_near_follower_is_preferred(scene: Scene, dead: bool) -> None:
    scene.part.followers = {"here": 1}
    scene.cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=300, rack="here"))
    if dead:
        scene.brokers.stop_node(1)
        scene.cluster.settings = dataclasses.replace(
            scene.cluster.settings, bootstrap=scene.cluster.settings.bootstrap[:1]
        )
    assert scene.offsets() == list(range(END))
    assert any(node == 1 for node, *_ in scene.brokers.fetches) is not dead


def test_silent_follower_is_left_for_the_leader(scene: Scene) -> None:
    scene.part.followers = {"here": 1}
    scene.cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=300, rack="here"))
    scene.brokers.fail(FETCH, Fault(edit=_empty, node=1), times=100)
    assert scene.offsets() == list(range(END))
    assert [node for node, *_ in scene.brokers.fetches].count(1) == 3


def test_next_request_is_sent_before_batches_are_returned(scene: Scene) -> None:
    fetcher = RangeFetcher(scene.cluster, scene.wanted, max_batch_bytes=1 << 20)
    batches = fetcher.batches()
    next(batches)
    until = time.monotonic() + 5
    while len(scene.brokers.fetches) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert [offset for _, offset, *_ in scene.brokers.fetches] == [0, 9]
    batches.close()
    # Its answer was read by nobody, and must not be the next range's.
    assert scene.offsets() == list(range(END))


def test_connections_are_reused(scene: Scene) -> None:
    scene.offsets()
    opened = scene.brokers.opened
    for _ in range(3):
        assert scene.offsets() == list(range(END))
    assert scene.brokers.opened == opened


def test_worker_authenticates_once_for_metadata_and_fetch(scene: Scene) -> None:
    assert scene.offsets() == list(range(END))
    assert scene.brokers.opened == 1
    # Metadata asked for later need a connection of their own: answers of the other may be due.
    assert scene.cluster.topics(["t"])["t"].topic_id == scene.topic_id
    assert scene.offsets() == list(range(END))
    assert scene.brokers.opened == 2


def test_slow_consumer_sends_no_extra_requests(scene: Scene) -> None:
    # The next answer waits in the socket; how long it lay there says nothing about the broker.
    fetcher = RangeFetcher(scene.cluster, scene.wanted, max_batch_bytes=1 << 20)
    answers = 0
    with closing(fetcher.batches()) as fetched:
        for _ in fetched:
            answers += 1
            if answers < 4:
                time.sleep(1.5 * scene.cluster.settings.request_timeout_seconds)
    assert answers > 4
    assert fetcher.requests == answers


def test_old_broker_that_reads_its_tier_is_refused(scene: Scene) -> None:
    """Brokers before Kafka 4.0 do not list all aborted transactions there (KAFKA-17801)."""
    scene.brokers.versions = {"ListOffsets": 9}
    committed = dataclasses.replace(scene.wanted, read_committed=True)
    scene.part.log = dataclasses.replace(scene.part.log, local_start=9)
    with pytest.raises(BrokerError, match=r"KAFKA-17801.*offset 0\]"):
        scene.offsets(committed)
    behind = committed.from_offset(9)
    assert scene.offsets(behind) == list(range(9, END))
    assert scene.offsets() == list(range(END))

    def move() -> None:
        scene.part.log = dataclasses.replace(scene.part.log, local_start=31)

    scene.brokers.fail(FETCH, Fault(), Fault(change=move))
    with pytest.raises(BrokerError, match=r"have moved into the tier.*KAFKA-17801"):
        scene.offsets(behind)
    scene.cluster.close()
    scene.brokers.versions = {}
    assert scene.offsets(committed) == list(range(END))


def test_old_follower_is_not_asked_for_committed_rows(scene: Scene) -> None:
    scene.brokers.versions = {"ListOffsets": 9}
    scene.part.followers = {"here": 1}
    scene.cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=300, rack="here"))
    committed = dataclasses.replace(scene.wanted, read_committed=True)
    assert scene.offsets(committed) == list(range(END))
    assert {node for node, *_ in scene.brokers.fetches} == {0}
    assert scene.offsets() == list(range(END))
    assert {node for node, *_ in scene.brokers.fetches} == {0, 1}


@pytest.mark.parametrize("kind", [FETCH, LIST_OFFSETS])
def test_too_old_broker_is_refused(scene: Scene, kind: str) -> None:
    scene.brokers.versions = {FETCH: 12, LIST_OFFSETS: 7} if kind == FETCH else {LIST_OFFSETS: 7}
    committed = dataclasses.replace(scene.wanted, read_committed=True)
    if kind == FETCH:
        with pytest.raises(BrokerError, match=r"127\.0\.0\.1:\d+ is older than Kafka 3\.1"):
            scene.offsets()
    else:  # Kafka 3.1 to 3.4: no tier, so nothing is read from it
        assert scene.offsets(committed) == list(range(END))


@pytest.mark.parametrize("magic", [0, 1])
def test_silent_broker_still_returns_message_set_across_the_end(scene: Scene, magic: int) -> None:
    """The offset field of a compressed message set is the offset of its last record."""

    def message_set(base: int) -> StoredBatch:
        records = [SimpleRecord(b"v", timestamp=base + number) for number in range(10)]
        data = write_message_set(records, magic=magic, base_offset=base, codec="gzip")
        return StoredBatch(base, base + 10, 0, base + 9, data)

    scene.part.log = FakeLog([message_set(0), message_set(10)])
    scene.brokers.fail(FETCH, Fault(), *[Fault(edit=_empty)] * 3)
    cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=1))
    wanted = dataclasses.replace(scene.wanted, stop_offset=15, read_committed=True)
    fetched = list(read_range(wanted, cluster, SETTINGS))
    cluster.close()
    assert [at for one in fetched for at in one["offset"].to_pylist()] == list(range(15))


def test_begins_at_or_after_reads_the_first_record_of_a_message_set() -> None:
    records = [SimpleRecord(b"v", timestamp=number) for number in range(3)]
    batch = LogBuilder()
    batch.append(records)
    entries = [
        memoryview(write_message_set(records, magic=magic, base_offset=0, codec=codec))
        for magic in (0, 1)
        for codec in ("none", "gzip")
    ]
    for data in [*entries, memoryview(batch.build().segments[0].log)]:
        assert begins_at_or_after(data, 0)
        assert not begins_at_or_after(data, 1)
        assert not begins_at_or_after(data[:20], 0), "it is cut, so nothing is certain"


@pytest.mark.parametrize("holes", [[(3, 6)], [(3, 6), (9, 12)], [(54, 60)], [(0, 60)], [(4, 47)]])
def test_hole_in_brokers_tier_is_skipped_where_loss_is_allowed(
    scene: Scene, holes: list[tuple[int, int]]
) -> None:
    scene.part.log.holes = holes
    scene.cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=1))
    readable = [at for at in range(END) if not any(low <= at < high for low, high in holes)]
    if holes[0][0] % 3:  # it begins inside of a batch that a fetch of its first offset returns
        readable = sorted({*readable, 4, 5})
    assert scene.offsets(fail_on_data_loss=False) == readable
    with pytest.raises(DataLossError, match=r"refuse offsets \[\d+, \d+\).*own tier has lost"):
        scene.offsets(dataclasses.replace(scene.wanted, start_offset=holes[0][0]))


def test_hole_in_brokers_tier_ends_by_bisection_in_a_long_range(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_range, "_MAX_PROBES", 4)
    scene.part.log.holes = [(6, 30)]
    expected = [*range(6), *range(30, END)]
    scene.cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=1))
    assert scene.offsets(fail_on_data_loss=False) == expected


def test_hole_in_brokers_tier_never_reaches_into_the_leaders_disk(scene: Scene) -> None:
    scene.part.log.holes, scene.part.log.local_start = [(3, 6)], 6
    scene.brokers.fetches.clear()
    assert scene.offsets(fail_on_data_loss=False)[:4] == [0, 1, 2, 6]
    assert {at for _, at, _, _ in scene.brokers.fetches if 3 <= at <= 6} == {3, 4, 5, 6}


def test_refusal_that_passes_loses_nothing(scene: Scene) -> None:
    """A broker that still loads what its tier holds may refuse an offset of its log."""
    scene.brokers.fail(FETCH, Fault(), Fault(1))
    assert scene.offsets(fail_on_data_loss=False) == list(range(END))


@pytest.mark.parametrize("leader", [0, 1])
def test_committed_rows_never_come_from_an_old_follower(scene: Scene, leader: int) -> None:
    """The leader is newer than the follower during a rolling upgrade, or the other way round."""
    builder = LogBuilder()
    builder.append([SimpleRecord(b"plain")] * 2)
    builder.send(7, [SimpleRecord(b"aborted")] * 3)
    builder.abort(7)
    builder.append([SimpleRecord(b"plain")] * 54)
    scene.part.log = fake_log(builder.build())
    scene.part.log.local_start = 6
    scene.part.leader, scene.part.followers = leader, {"near": 1 - leader}
    scene.brokers.old_nodes = {1}
    scene.cluster = Cluster(scene.brokers.settings(rack="near"))
    committed = dataclasses.replace(scene.wanted, read_committed=True)
    if leader == 1:
        with pytest.raises(BrokerError, match="KAFKA-17801"):
            scene.offsets(committed)
    else:
        assert scene.offsets(committed) == [0, 1, *range(6, END)]
    assert {node for node, *_ in scene.brokers.fetches} == {leader}
    scene.brokers.fetches.clear()
    assert scene.offsets() == [*range(5), *range(6, END)], "without isolation it does not matter"
    assert 1 - leader in {node for node, *_ in scene.brokers.fetches}


@pytest.mark.parametrize("listed", [(), ((7, 0),), ((7, 2), (8, 2)), ((7, 2), (7, 9))])
def test_wrong_list_of_aborted_transactions_is_an_error(
    scene: Scene, listed: tuple[tuple[int, int], ...]
) -> None:
    builder = LogBuilder()
    builder.send(7, [SimpleRecord(b"committed")])
    builder.commit(7)
    builder.send(7, [SimpleRecord(b"aborted")] * 3)
    builder.abort(7)
    builder.send(8, [SimpleRecord(b"committed")] * 2)
    builder.commit(8)
    builder.send(7, [SimpleRecord(b"committed")])
    builder.commit(7)
    builder.append([SimpleRecord(b"plain")] * 49)
    scene.part.log = fake_log(builder.build())
    scene.cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=100_000))
    committed = dataclasses.replace(scene.wanted, read_committed=True)
    assert scene.offsets(committed) == [0, 6, 7, 9, *range(11, END)]

    def lists(answer: Any) -> None:  # noqa: ANN401
        part = answer.responses[0].partitions[0]
        (transaction,) = part.aborted_transactions
        part.aborted_transactions = [
            type(transaction)(producer_id=producer, first_offset=first)
            for producer, first in listed
        ]

    scene.brokers.fail(FETCH, Fault(edit=lists))
    with pytest.raises(CorruptSegmentError, match="transaction indexes do not fit the log"):
        scene.offsets(committed)
