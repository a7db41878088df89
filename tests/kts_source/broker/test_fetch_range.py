"""Tests fetches from failing brokers.

A fetch must end before its deadline. It must return all rows, or raise an error that names the
cause.
"""

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
from segment_format.testing.batches import write_message_set
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
    """Two brokers and a client. The brokers have one partition with 20 batches of three records."""

    def __init__(self) -> None:
        builder = LogBuilder()
        for number in range(END // 3):
            builder.append([SimpleRecord(b"%d" % number)] * 3)
        self.partition = FakePartition(fake_log(builder.build()))
        self.brokers = FakeCluster(2)
        self.topic_id = self.brokers.create("t", [self.partition])
        self.cluster = Cluster(
            self.brokers.settings(partition_fetch_bytes=300, request_timeout_seconds=0.2)
        )

    @property
    def broker_range(self) -> BrokerRange:
        return BrokerRange("t", self.topic_id, 0, 0, 0, END, False, 1)

    def offsets(self, broker_range: BrokerRange | None = None, **changed: Any) -> list[int]:  # noqa: ANN401
        """Reads `broker_range`, by default the entire partition, and returns the offsets of its
        rows. `changed` replaces client settings.
        """
        settings = dataclasses.replace(SETTINGS, **changed)
        rows = read_range(broker_range or self.broker_range, self.cluster, settings)
        return [offset for batch in rows for offset in batch["offset"].to_pylist()]

    def elect(self, *, keeps: int = END) -> None:
        """Elects broker 1 as leader. Its leader epoch 1 begins at offset `keeps`; earlier offsets
        have epoch 0.
        """
        self.partition.leader, self.partition.epoch = 1, 1
        self.partition.log.epochs = [(0, 0), (1, keeps)]


@pytest.fixture
def scene() -> Iterator[Scene]:
    new_scene = Scene()
    with new_scene.brokers:
        yield new_scene
        new_scene.cluster.close()


def _empty(answer: Any) -> None:  # noqa: ANN401
    answer.responses[0].partitions[0].records = b""


def _cut(answer: Any) -> None:  # noqa: ANN401
    partition = answer.responses[0].partitions[0]
    partition.records = partition.records[:50]


def _throttled(answer: Any) -> None:  # noqa: ANN401
    answer.responses, answer.throttle_time_ms = [], 20


def _other_request(framed: bytes) -> bytes:
    return framed[:4] + b"\x7f" + framed[5:]


TEMPORARY = {
    "closed before response": Fault(alter=lambda _: b"", hang_up=True),
    "closed within response": Fault(alter=lambda framed: framed[:100], hang_up=True),
    "closed within size": Fault(alter=lambda framed: framed[:2], hang_up=True),
    "timeout": Fault(pause=0.3),
    "slow response": Fault(pause=0.05),
    "byte by byte": Fault(drip=0.01),
    "garbage": Fault(alter=lambda framed: framed[:8] + b"\xff" * (len(framed) - 8)),
    "other correlation id": Fault(alter=_other_request),
    "size too large": Fault(alter=lambda framed: struct.pack(">i", 1 << 30) + framed[4:]),
    "negative size": Fault(alter=lambda framed: struct.pack(">i", -1) + framed[4:]),
    "empty": Fault(edit=_empty),
    "incomplete batch": Fault(edit=_cut),
    "throttled": Fault(edit=_throttled),
    **{f"error {code}": Fault(code) for code in (-1, 3, 5, 6, 7, 8, 9, 13, 14, 56, 74, 75, 78, 89)},
    **{f"error {code}": Fault(code) for code in (100, 103)},
}


@pytest.mark.parametrize("name", TEMPORARY)
@pytest.mark.parametrize("requests_before", only(1, [2, 0]))
def test_fetch_returns_all_rows_after_temporary_failures(
    scene: Scene, name: str, requests_before: int
) -> None:
    scene.brokers.fail(FETCH, *[Fault()] * requests_before, TEMPORARY[name], TEMPORARY[name])
    assert scene.offsets() == list(range(END))
    assert not scene.brokers.faults[FETCH]
    # The second read must not receive leftover bytes of a failed connection.
    assert scene.offsets() == list(range(END))


@pytest.mark.parametrize(
    "name",
    [
        *("closed within response", "timeout", "garbage", "size too large", "empty", "throttled"),
        *("incomplete batch", "error 56", "error 75", "error 100"),
    ],
)
def test_permanent_failure_raises_broker_unavailable_error_before_the_deadline(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(fetch_range, "_PATIENCE_SECONDS", 0.3)
    scene.brokers.fail(FETCH, Fault(), TEMPORARY[name], times=1)
    scene.brokers.fail(FETCH, TEMPORARY[name], times=1000)
    began = time.monotonic()
    with pytest.raises(BrokerUnavailableError, match=r"returned no batch.*topic t, partition 0"):
        scene.offsets()
    assert time.monotonic() - began < 15


def test_fetch_ends_if_compaction_removed_the_last_requested_records(scene: Scene) -> None:
    # A read_committed fetch returns no batch for the removed offsets. The client must not mistake
    # this for a broker that is still loading.
    builder = LogBuilder()
    for number in range(9):
        builder.append([SimpleRecord(b"%d" % number)] * 3)
    builder.send(5, [SimpleRecord(b"open")] * 3)
    log = fake_log(builder.build())
    assert (log.stable, log.end) == (27, 30)
    log.batches = [batch for batch in log.batches if batch.base not in (15, 18, 21, 24)]
    scene.partition.log = log
    broker_range = dataclasses.replace(scene.broker_range, stop_offset=27, read_committed=True)
    assert scene.offsets(broker_range) == list(range(15))
    # If the batches exist, the client repeats its requests until the broker returns them.
    scene.partition.log = fake_log(builder.build())
    scene.brokers.fail(FETCH, Fault(), *[Fault(edit=_empty)] * 11)
    assert scene.offsets(broker_range) == list(range(27))


@pytest.mark.parametrize("code", [2, 29, 31, 35])
def test_fatal_error_code_is_not_retried(scene: Scene, code: int) -> None:
    scene.brokers.fail(FETCH, Fault(), Fault(code))
    with pytest.raises(BrokerError, match=r"topic t, partition 0, offset 9"):
        scene.offsets()


def test_damaged_batch_raises_corrupt_segment_error(scene: Scene) -> None:
    def damage(answer: Any) -> None:  # noqa: ANN401
        partition = answer.responses[0].partitions[0]
        partition.records = partition.records[:80] + b"\xff" + partition.records[81:]

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
def test_response_without_exactly_the_requested_partition_raises_broker_error(
    scene: Scene, edit: Callable[[Any], None]
) -> None:
    scene.brokers.fail(FETCH, Fault(), Fault(edit=edit))
    with pytest.raises(
        BrokerError, match=r"only this partition was requested \[topic t, partition 0"
    ):
        scene.offsets()


@pytest.mark.parametrize("has_died", [False, True])
def test_fetch_continues_from_a_new_leader(scene: Scene, has_died: bool) -> None:
    # The client must not keep sending requests to a leader that died.
    def change() -> None:
        scene.elect()
        if has_died:
            scene.brokers.stop_node(0)

    scene.brokers.fail(FETCH, Fault(), Fault(), Fault(change=change, hang_up=has_died))
    assert scene.offsets() == list(range(END))


def test_fetch_continues_from_a_new_leader_after_a_storage_error(scene: Scene) -> None:
    scene.brokers.fail(FETCH, Fault(), Fault(56, change=scene.elect))
    assert scene.offsets() == list(range(END))


def test_new_leader_that_lacks_planned_records_raises_data_loss_error(scene: Scene) -> None:
    scene.brokers.fail(FETCH, Fault(), Fault(change=lambda: scene.elect(keeps=30)))
    with pytest.raises(DataLossError, match="unclean election"):
        scene.offsets()


def test_recreated_topic_raises_data_loss_error(scene: Scene) -> None:
    def recreate() -> None:
        scene.brokers.create("t", [scene.partition])

    scene.brokers.fail(FETCH, Fault(), Fault(change=recreate))
    with pytest.raises(DataLossError, match="created again"):
        scene.offsets()


@pytest.mark.parametrize("reports_log_start", [False, True])
def test_log_start_that_moves_during_fetch_raises_data_loss_error(
    scene: Scene, reports_log_start: bool
) -> None:
    # Real brokers do not return the log start in an OFFSET_OUT_OF_RANGE response. The log start is
    # inside a batch, and consumers do not see the rows of the batch that are below it.
    def move() -> None:
        scene.partition.log = with_log_start(scene.partition.log, 31)

    scene.partition.reports_log_start = reports_log_start
    original_log = scene.partition.log
    scene.brokers.fail(FETCH, Fault(), Fault(change=move))
    with pytest.raises(DataLossError, match="starts at offset 31"):
        scene.offsets()
    scene.partition.log = original_log
    scene.brokers.fail(FETCH, Fault(), Fault(change=move))
    assert scene.offsets(fail_on_data_loss=False) == [*range(9), *range(31, END)]


@pytest.mark.parametrize("is_dead", [False, True])
def test_fetch_prefers_follower_in_client_rack(scene: Scene, is_dead: bool) -> None:
    scene.partition.followers = {"here": 1}
    scene.cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=300, rack="here"))
    if is_dead:
        scene.brokers.stop_node(1)
        scene.cluster.settings = dataclasses.replace(
            scene.cluster.settings, bootstrap=scene.cluster.settings.bootstrap[:1]
        )
    assert scene.offsets() == list(range(END))
    assert any(node == 1 for node, *_ in scene.brokers.fetches) is not is_dead


def test_fetch_uses_the_leader_if_the_follower_returns_no_data(scene: Scene) -> None:
    scene.partition.followers = {"here": 1}
    scene.cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=300, rack="here"))
    scene.brokers.fail(FETCH, Fault(edit=_empty, node=1), times=100)
    assert scene.offsets() == list(range(END))
    assert [node for node, *_ in scene.brokers.fetches].count(1) == 3


def test_next_request_is_sent_before_batches_are_returned(scene: Scene) -> None:
    fetcher = RangeFetcher(scene.cluster, scene.broker_range, max_batch_bytes=1 << 20)
    batches = fetcher.batches()
    next(batches)
    deadline = time.monotonic() + 5
    while len(scene.brokers.fetches) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [offset for _, offset, *_ in scene.brokers.fetches] == [0, 9]
    batches.close()
    # The client did not read the second response. The next range must not receive it.
    assert scene.offsets() == list(range(END))


def test_fetches_reuse_open_connections(scene: Scene) -> None:
    scene.offsets()
    opened = scene.brokers.opened
    for _ in range(3):
        assert scene.offsets() == list(range(END))
    assert scene.brokers.opened == opened


def test_worker_authenticates_once_for_metadata_and_fetch(scene: Scene) -> None:
    assert scene.offsets() == list(range(END))
    assert scene.brokers.opened == 1
    # Later metadata requests use a second connection, because the first connection may have
    # unread fetch responses.
    assert scene.cluster.topics(["t"])["t"].topic_id == scene.topic_id
    assert scene.offsets() == list(range(END))
    assert scene.brokers.opened == 2


def test_fetch_for_a_slow_caller_sends_no_extra_requests(scene: Scene) -> None:
    # The next response is in the socket buffer while the consumer is slow. The client must not
    # count this time as a broker timeout.
    fetcher = RangeFetcher(scene.cluster, scene.broker_range, max_batch_bytes=1 << 20)
    responses = 0
    with closing(fetcher.batches()) as fetched:
        for _ in fetched:
            responses += 1
            if responses < 4:
                time.sleep(1.5 * scene.cluster.settings.request_timeout_seconds)
    assert responses > 4
    assert fetcher.requests == responses


def test_read_committed_fetch_of_tiered_offsets_from_old_broker_raises_error(scene: Scene) -> None:
    """Brokers before Kafka 4.0 do not list all aborted transactions of the tier (KAFKA-17801)."""
    scene.brokers.versions = {"ListOffsets": 9}
    committed = dataclasses.replace(scene.broker_range, read_committed=True)
    scene.partition.log = dataclasses.replace(scene.partition.log, local_start=9)
    with pytest.raises(BrokerError, match=r"KAFKA-17801.*offset 0\]"):
        scene.offsets(committed)
    local_range = committed.from_offset(9)
    assert scene.offsets(local_range) == list(range(9, END))
    assert scene.offsets() == list(range(END))

    def move() -> None:
        scene.partition.log = dataclasses.replace(scene.partition.log, local_start=31)

    scene.brokers.fail(FETCH, Fault(), Fault(change=move))
    with pytest.raises(BrokerError, match=r"moved offsets below .* into their tier.*KAFKA-17801"):
        scene.offsets(local_range)
    scene.cluster.close()
    scene.brokers.versions = {}
    assert scene.offsets(committed) == list(range(END))


def test_read_committed_fetch_does_not_use_an_old_follower(scene: Scene) -> None:
    scene.brokers.versions = {"ListOffsets": 9}
    scene.partition.followers = {"here": 1}
    scene.cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=300, rack="here"))
    committed = dataclasses.replace(scene.broker_range, read_committed=True)
    assert scene.offsets(committed) == list(range(END))
    assert {node for node, *_ in scene.brokers.fetches} == {0}
    assert scene.offsets() == list(range(END))
    assert {node for node, *_ in scene.brokers.fetches} == {0, 1}


@pytest.mark.parametrize("kind", [FETCH, LIST_OFFSETS])
def test_fetch_accepts_kafka_3_1_and_refuses_older_brokers(scene: Scene, kind: str) -> None:
    scene.brokers.versions = {FETCH: 12, LIST_OFFSETS: 7} if kind == FETCH else {LIST_OFFSETS: 7}
    committed = dataclasses.replace(scene.broker_range, read_committed=True)
    if kind == FETCH:
        with pytest.raises(BrokerError, match=r"127\.0\.0\.1:\d+ is older than Kafka 3\.1"):
            scene.offsets()
    else:  # Kafka 3.1 to 3.4 has no tier
        assert scene.offsets(committed) == list(range(END))


@pytest.mark.parametrize("magic", [0, 1])
def test_message_set_that_crosses_range_end_is_read_after_empty_responses(
    scene: Scene, magic: int
) -> None:
    """The header of a compressed message set contains the offset of its last record, not of its
    first.
    """

    def message_set(base: int) -> StoredBatch:
        records = [SimpleRecord(b"v", timestamp=base + number) for number in range(10)]
        data = write_message_set(records, magic=magic, base_offset=base, codec="gzip")
        return StoredBatch(base, base + 10, 0, base + 9, data)

    scene.partition.log = FakeLog([message_set(0), message_set(10)])
    scene.brokers.fail(FETCH, Fault(), *[Fault(edit=_empty)] * 3)
    cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=1))
    broker_range = dataclasses.replace(scene.broker_range, stop_offset=15, read_committed=True)
    fetched = list(read_range(broker_range, cluster, SETTINGS))
    cluster.close()
    offsets = [offset for batch in fetched for offset in batch["offset"].to_pylist()]
    assert offsets == list(range(15))


def test_begins_at_or_after_returns_true_only_up_to_the_first_offset() -> None:
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
        assert not begins_at_or_after(data[:20], 0), "a truncated batch decides nothing"


@pytest.mark.parametrize("holes", [[(3, 6)], [(3, 6), (9, 12)], [(54, 60)], [(0, 60)], [(4, 47)]])
def test_fetch_skips_offsets_missing_in_the_brokers_tier_if_loss_is_allowed(
    scene: Scene, holes: list[tuple[int, int]]
) -> None:
    scene.partition.log.holes = holes
    scene.cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=1))
    readable = [
        offset for offset in range(END) if not any(low <= offset < high for low, high in holes)
    ]
    if holes[0][0] % 3:  # the hole begins inside a batch that a fetch at offset 3 returns
        readable = sorted({*readable, 4, 5})
    assert scene.offsets(fail_on_data_loss=False) == readable
    with pytest.raises(DataLossError, match=r"refuse offsets \[\d+, \d+\).*own tier has lost"):
        scene.offsets(dataclasses.replace(scene.broker_range, start_offset=holes[0][0]))


def test_fetch_finds_the_end_of_a_hole_in_the_brokers_tier_by_bisection(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_range, "_MAX_PROBES", 4)
    scene.partition.log.holes = [(6, 30)]
    expected = [*range(6), *range(30, END)]
    scene.cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=1))
    assert scene.offsets(fail_on_data_loss=False) == expected


def test_hole_search_stops_at_the_local_log_start_of_the_leader(scene: Scene) -> None:
    scene.partition.log.holes, scene.partition.log.local_start = [(3, 6)], 6
    scene.brokers.fetches.clear()
    assert scene.offsets(fail_on_data_loss=False)[:4] == [0, 1, 2, 6]
    assert {offset for _, offset, _, _ in scene.brokers.fetches if 3 <= offset <= 6} == {3, 4, 5, 6}


def test_fetch_returns_all_rows_after_a_temporary_out_of_range_error(scene: Scene) -> None:
    """A broker that is still loading its tier metadata may report existing offsets as out of
    range.
    """
    scene.brokers.fail(FETCH, Fault(), Fault(1))
    assert scene.offsets(fail_on_data_loss=False) == list(range(END))


@pytest.mark.parametrize("leader", [0, 1])
def test_read_committed_fetch_uses_the_leader_if_broker_versions_are_mixed(
    scene: Scene, leader: int
) -> None:
    """During a rolling upgrade, the leader may have a newer or older version than the follower."""
    builder = LogBuilder()
    builder.append([SimpleRecord(b"plain")] * 2)
    builder.send(7, [SimpleRecord(b"aborted")] * 3)
    builder.abort(7)
    builder.append([SimpleRecord(b"plain")] * 54)
    scene.partition.log = fake_log(builder.build())
    scene.partition.log.local_start = 6
    scene.partition.leader, scene.partition.followers = leader, {"near": 1 - leader}
    scene.brokers.old_nodes = {1}
    scene.cluster = Cluster(scene.brokers.settings(rack="near"))
    committed = dataclasses.replace(scene.broker_range, read_committed=True)
    if leader == 1:
        with pytest.raises(BrokerError, match="KAFKA-17801"):
            scene.offsets(committed)
    else:
        assert scene.offsets(committed) == [0, 1, *range(6, END)]
    assert {node for node, *_ in scene.brokers.fetches} == {leader}
    scene.brokers.fetches.clear()
    assert scene.offsets() == [*range(5), *range(6, END)], "read_uncommitted may use any broker"
    assert 1 - leader in {node for node, *_ in scene.brokers.fetches}


@pytest.mark.parametrize("listed", [(), ((7, 0),), ((7, 2), (8, 2)), ((7, 2), (7, 9))])
def test_wrong_list_of_aborted_transactions_raises_corrupt_segment_error(
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
    scene.partition.log = fake_log(builder.build())
    scene.cluster = Cluster(scene.brokers.settings(partition_fetch_bytes=100_000))
    committed = dataclasses.replace(scene.broker_range, read_committed=True)
    assert scene.offsets(committed) == [0, 6, 7, 9, *range(11, END)]

    def replace_list(answer: Any) -> None:  # noqa: ANN401
        partition = answer.responses[0].partitions[0]
        (transaction,) = partition.aborted_transactions
        partition.aborted_transactions = [
            type(transaction)(producer_id=producer, first_offset=first)
            for producer, first in listed
        ]

    scene.brokers.fail(FETCH, Fault(edit=replace_list))
    with pytest.raises(CorruptSegmentError, match="transaction indexes do not fit the log"):
        scene.offsets(committed)
