"""Requests the offsets of the selected partitions from brokers, in an order that keeps them
consistent with a listing of the tier.

The end of a partition is requested first, then its log start. The tier is listed after that.
Brokers delete their copy of a segment only after its upload, so they still serve all offsets from
the log start to the end that are not in the listing.
"""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kts_source.broker.broker_range import BrokerRange
from kts_source.broker.cluster import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    Cluster,
    reports_aborted_from,
    reports_local_start,
    topic_configs,
)
from kts_source.broker.fetch_range import RangeFetcher
from kts_source.errors import (
    BrokerUnavailableError,
    DataLossError,
    InvalidOptionError,
    LeaderChangedError,
    TopicNotFoundError,
)
from kts_source.options.selection import Assign, SubscribePattern
from kts_source.planning.segment_catalog import wanted_topic_id
from kts_source.texts import some
from segment_format.index.checkpoints import EpochEntry
from segment_format.record.batch_header import MAGIC_2, RecordBatchHeader
from segment_format.record.framing import read_prefix

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from kts_source.broker.cluster import ClusterTopic, TopicConfigs, TopicPartition
    from kts_source.broker.fetch_range import FetchedBatches
    from kts_source.broker.settings import BrokerSettings
    from kts_source.options import ScanOptions

_SAMPLE_BYTES: Final = 64 << 10
_NO_TOPIC_ID: Final = "A" * 22
"""All zeros: the id of all topics if `inter.broker.protocol.version` is below 2.8."""
_EPOCHS_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """A partition's log as its leader describes it.

    Attributes:
        leader_epoch: Epoch of the last record below the end. The leader's current epoch may be
            newer.
        log_start: First offset that a consumer may see.
        end: End of the readable offsets: the last stable offset for `read_committed`, else the high
            watermark.
        high_watermark: One past the last offset that consumers may see.
        last_stable_offset: One past the last offset that consumers with `read_committed` may see.
        local_start: First offset on the leader's own disk; `None` if the leader does not report it.
    """

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    log_start: int
    end: int
    high_watermark: int
    last_stable_offset: int
    local_start: int | None


class ClusterView:
    """Sends the requests of a plan to the brokers of a cluster. Thread-safe.

    Args:
        counts: Known number of partitions by topic id. The topic may have more.
        batch: Topic id of each partition of a micro-batch. If it is set, only these partitions are
            read, not all selected ones. A partition is skipped if its topic now has another id.

    Attributes:
        topics: Selected topics by name.
        logs: Logs of the partitions of these topics, by topic and partition number, in ascending
            order.
        partition_counts: Known number of partitions by topic id.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        options: ScanOptions,
        *,
        counts: Mapping[str, int] | None = None,
        batch: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        self._cluster = Cluster(settings)
        self._batch = batch
        self.partition_counts = dict(counts or {})
        for (_, number), topic_id in (batch or {}).items():
            self._expect(topic_id, number + 1)
        # Fetches during planning use separate connections, one thread at a time. They are sent to
        # leaders, because a follower may lag or be too old to report all aborted transactions.
        leaders = replace(settings, rack="")
        self._probing = Cluster(replace(leaders, partition_fetch_bytes=1))
        self._sampling = Cluster(replace(leaders, partition_fetch_bytes=_SAMPLE_BYTES))
        self._lock = threading.Lock()
        self._options = options
        self._ends: dict[TopicPartition, int] | None = None
        self.topics: dict[str, ClusterTopic] = {}
        self.logs: dict[TopicPartition, BrokerLog] = {}
        try:
            self.renew()
        except BaseException:
            self.close()
            raise

    def renew(self, unread: Collection[TopicPartition] = ()) -> bool:
        """Requests the topics and the ends of their logs. If a topic or an end has changed,
        requests all other facts again. A moved log start of a partition in `unread` (partitions
        with unread records) counts as a change, too. Returns True if something changed.
        """
        read_committed = self._options.read_committed
        if self._batch is None:
            topics = self._selected(self._options)
            keys = _selected_keys(self._options, topics)
        else:
            topics, keys = self._topics_of_batch(self._batch)
        ends = self._cluster.offsets(keys, LATEST, read_committed=read_committed)
        if ends == self._ends and topics == self.topics and not self._log_starts_moved(unread):
            return False
        starts = self._cluster.offsets(keys, EARLIEST, read_committed=False)
        # These high watermarks are used only in messages.
        watermarks = self._cluster.offsets(keys, LATEST, read_committed=False)
        stable = ends
        if not read_committed:
            stable = self._cluster.offsets(keys, LATEST, read_committed=True)
        local = self._local_starts(keys)
        # An empty log has no record and thus no epoch, so request no epoch for it (0).
        ends_of_records = {key: end if end > starts[key] else 0 for key, end in ends.items()}
        epochs = self._cluster.last_epochs(ends_of_records)
        self.logs = {
            key: BrokerLog(
                topic=key[0],
                topic_id=topics[key[0]].topic_id,
                partition=key[1],
                leader_epoch=epochs[key],
                log_start=starts[key],
                # DeleteRecords may move the log start above the last stable offset.
                end=max(ends[key], starts[key]),
                high_watermark=watermarks[key],
                last_stable_offset=stable[key],
                local_start=local.get(key),
            )
            for key in keys
        }
        self.topics, self._ends = topics, ends
        return True

    def _topics_of_batch(
        self, batch: Mapping[TopicPartition, str]
    ) -> tuple[dict[str, ClusterTopic], list[TopicPartition]]:
        """Returns the topics of a micro-batch by name, and the partitions of the micro-batch. Skips
        partitions whose topic now has another id. Asks brokers only about these partitions: another
        partition without a leader must not fail the micro-batch.
        """
        described = self._topics({topic for topic, _ in batch})
        keys = [
            (topic, number)
            for (topic, number), topic_id in sorted(batch.items())
            if topic in described and described[topic].topic_id == topic_id
        ]
        return {topic: described[topic] for topic, _ in keys}, keys

    def _expect(self, topic_id: str, partitions: int) -> None:
        if topic_id != _NO_TOPIC_ID:
            current = self.partition_counts.get(topic_id, 0)
            self.partition_counts[topic_id] = max(partitions, current)

    def _topics(self, names: Iterable[str] | None) -> dict[str, ClusterTopic]:
        """Returns topics by name, with all their partitions. If `names` is `None`, returns the
        topics that match the pattern in the options.
        """
        selects = self._options.selection.wanted if names is None else None
        described = self._cluster.topics(names, counts=self.partition_counts, selects=selects)
        for topic in described.values():
            self._expect(topic.topic_id, len(topic.leaders))
        return described

    def require_partitions(self, topic: str, partitions: int) -> None:
        """Requests a topic again if the tier has more partitions of it than brokers described.

        Raises:
            LeaderChangedError: Brokers describe all partitions now, so planning must start again.
            BrokerUnavailableError: Brokers still describe fewer partitions.
        """
        if self._batch is not None:  # its partitions are described
            return
        topic_id = self.topics[topic].topic_id
        self._expect(topic_id, partitions)
        self._topics([topic])
        raise LeaderChangedError(
            f"brokers described {len(self.topics[topic].leaders)} partitions of topic id"
            f" {topic_id}, but the tier has {partitions} partitions of it",
            topic=topic,
        )

    def _log_starts_moved(self, keys: Collection[TopicPartition]) -> bool:
        """Returns whether the log start of a partition in `keys` has changed."""
        if not keys:
            return False
        starts = self._cluster.offsets(keys, EARLIEST, read_committed=False)
        return any(start != self.logs[key].log_start for key, start in starts.items())

    def close(self) -> None:
        """Closes all connections."""
        for cluster in (self._cluster, self._probing, self._sampling):
            cluster.close()

    def configs(self, names: Sequence[str]) -> dict[str, TopicConfigs]:
        """Returns, for each selected topic, the topic configurations that `names` lists."""
        return topic_configs(self._cluster, self.topics, names)

    def check_topics(self) -> None:
        """Raises `LeaderChangedError` if a topic was deleted or created again. The check is needed
        because requests contain topic names, not ids, so responses may be about the new topic.
        """
        now = self._topics(self.topics)
        for name, topic in self.topics.items():
            if name not in now or now[name].topic_id != topic.topic_id:
                raise LeaderChangedError(
                    f"topic id {topic.topic_id} was deleted during planning", topic=name
                )

    def owned(self, log: BrokerLog, epochs: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Returns the offsets [start, stop) that each epoch has on the leader's branch. Omits
        epochs that are not on this branch.

        Requests the end of every epoch, because the end of the newest epoch does not show whether
        an older epoch is on a dead branch (`LeaderEpochFileCache.endOffsetFor`).
        """
        wanted = sorted(set(epochs))
        asked = sorted({each for epoch in wanted for each in (epoch - 1, epoch) if each >= 0})
        key = log.topic, log.partition
        ends = dict(zip(asked, self._cluster.epoch_ends({key: asked})[key], strict=True))
        owned = {}
        for epoch in wanted:
            end = ends[epoch]
            if end.epoch == epoch:
                before = ends[epoch - 1].end_offset if epoch else 0
                owned[epoch] = (max(before, 0), end.end_offset)
        return owned

    def owner(self, log: BrokerLog, offset: int) -> int | None:
        """Returns the epoch that an offset has on the leader's branch; `None` if the log has no
        epoch for it.

        The response for an epoch is the end offset of the newest existing epoch that is not above
        it (`LeaderEpochFileCache.endOffsetFor`). So the end offsets ascend with the epochs, and a
        binary search finds the epoch.
        """
        key = log.topic, log.partition
        low, high = 0, log.leader_epoch
        while low < high:
            middle = (low + high) // 2
            (end,) = self._cluster.epoch_ends({key: [middle]})[key]
            low, high = (low, middle) if offset < end.end_offset else (middle + 1, high)
        start, stop = self.owned(log, [low]).get(low, (0, 0))
        return low if start <= offset < stop else None

    def lineage(self, log: BrokerLog, offset: int) -> tuple[EpochEntry, ...]:
        """Returns the epochs of the leader's log from the epoch of `offset` on, in ascending order.
        May include earlier epochs. Omits epochs without a record and epochs that end below the log
        start.
        """
        position = max(offset, log.log_start)
        first: dict[int, int] = {}
        high = log.leader_epoch
        while high >= 0:
            low = max(high - _EPOCHS_AT_ONCE + 1, 0)
            for epoch, (start, stop) in self.owned(log, range(low, high + 1)).items():
                if max(start, log.log_start) < stop:
                    first[epoch] = start
            if any(start <= position for start in first.values()):
                break
            high = low - 1
        return tuple(EpochEntry(epoch, start) for epoch, start in sorted(first.items()))

    def first_offset_dated(self, log: BrokerLog, timestamp_ms: int) -> int | None:
        """Asks the leader for the first offset with a timestamp at or after `timestamp_ms`. Returns
        `None` if no such offset exists.
        """
        key = log.topic, log.partition
        offsets = self._cluster.offsets(
            [key], timestamp_ms, read_committed=self._options.read_committed
        )
        offset = offsets[key]
        return offset if 0 <= offset < log.end else None

    def decided_from(self, log: BrokerLog) -> int:
        """Returns the lowest offset at and above which brokers report all aborted transactions.
        Returns the log start for `read_uncommitted`.
        """
        if not self._options.read_committed:
            return log.log_start
        return max(reports_aborted_from(self._cluster, (log.topic, log.partition)), log.log_start)

    def _local_starts(self, keys: list[TopicPartition]) -> dict[TopicPartition, int]:
        supported = [key for key in keys if reports_local_start(self._cluster, key)]
        return self._cluster.offsets(supported, EARLIEST_LOCAL, read_committed=False)

    def aborted_across(self, log: BrokerLog, offset: int) -> frozenset[tuple[int, int]]:
        """Returns the aborted transactions that begin below `offset` and end at or after it, as
        pairs of producer id and first offset. The result may include other aborted transactions.

        A request at the last stable offset would return no records, and so no transactions. In this
        case, requests the record before the last stable offset.

        Raises:
            DataLossError: The brokers' own tier lacks the offset.
            BrokerUnavailableError: There is no record to request.
        """
        position = min(offset, log.end - 1)
        answer = self._first_batches(self._probing, log, position, read_committed=True)
        if answer is None:
            raise BrokerUnavailableError(
                f"brokers have no record between offset {position} and the last stable offset"
                f" {log.end}, so they do not report which transactions were aborted before it: plan"
                " again later, or read with isolationLevel=read_uncommitted",
                topic=log.topic,
                partition=log.partition,
                offset=position,
            )
        return answer.listed

    def first_timestamp_ms(self, log: BrokerLog, offset: int) -> int | None:
        """Returns the timestamp (ms) of the first batch at or after `offset`; `None` if there is no
        such batch, or if its message format has no batch timestamp.
        """
        offset = max(offset, log.log_start)  # the log start may have moved
        if offset >= log.end:
            return None
        answer = self._sample(self._probing, log, offset)
        if answer is None or read_prefix(answer.data).magic != MAGIC_2:
            return None
        return RecordBatchHeader.from_bytes(answer.data).base_timestamp

    def bytes_per_offset(self, log: BrokerLog, start: int) -> float | None:
        """Estimates the bytes per offset from the first batches after `start`; returns `None` if
        there are no batches.
        """
        answer = self._sample(self._sampling, log, start)
        if answer is None:
            return None
        return len(answer.data) / max(answer.next_offset - answer.start_offset, 1)

    def _sample(self, cluster: Cluster, log: BrokerLog, offset: int) -> FetchedBatches | None:
        try:
            return self._first_batches(cluster, log, offset)
        except DataLossError:  # the task that reads the offset reports it
            return None

    def _first_batches(
        self, cluster: Cluster, log: BrokerLog, offset: int, *, read_committed: bool = False
    ) -> FetchedBatches | None:
        """Returns the first batches from an offset on; `None` if the log has no batch between the
        offset and its end.
        """
        # If `read_committed` is true, brokers return no records above the last stable offset.
        wanted = BrokerRange(
            topic=log.topic,
            topic_id=log.topic_id,
            partition=log.partition,
            leader_epoch=log.leader_epoch,
            start_offset=offset,
            stop_offset=offset + 1,
            read_committed=read_committed,
            nominal_bytes=0,
        )
        with self._lock:
            fetcher = RangeFetcher(cluster, wanted, max_batch_bytes=self._options.max_batch_bytes)
            try:
                with closing(fetcher.batches()) as answers:
                    return next(answers, None)
            except DataLossError as error:
                if fetcher.met_hole:
                    raise
                # The offset was deleted, or lost in a leader election, after the leader returned
                # the bounds of its log.
                raise LeaderChangedError(
                    error.message, topic=log.topic, partition=log.partition, offset=offset
                ) from error

    def _selected(self, options: ScanOptions) -> dict[str, ClusterTopic]:
        selection = options.selection
        if isinstance(selection, SubscribePattern):
            everything = self._topics(None)
            names = selection.wanted(everything)
            topics = {name: everything[name] for name in names}
            if not topics:
                raise TopicNotFoundError(
                    f"no topic of the cluster matches {selection.pattern!r}; it has"
                    f" {some(sorted(everything)) or 'none'}"
                )
        else:
            names = selection.wanted(())
            topics = self._topics(names)
        for name in names:
            if name not in topics:
                raise TopicNotFoundError(
                    "the cluster has no such topic, or this user is not allowed to see it. A"
                    " scan without kafka.bootstrap.servers reads a deleted topic from the tier",
                    topic=name,
                )
            wanted = wanted_topic_id(options, name)
            if wanted not in (None, topics[name].topic_id):
                raise InvalidOptionError(
                    f"option 'topicId': the cluster has topic {name!r} under id"
                    f" {topics[name].topic_id}, not {wanted}; to read an earlier topic of this name"
                    " from the tier, remove kafka.bootstrap.servers"
                )
        return dict(sorted(topics.items()))


def _selected_keys(options: ScanOptions, topics: dict[str, ClusterTopic]) -> list[TopicPartition]:
    if not isinstance(options.selection, Assign):
        return [(topic.topic, number) for topic in topics.values() for number in topic.leaders]
    wanted = options.selection.partitions
    for name, topic in topics.items():
        for number in wanted[name]:
            if number not in topic.leaders:
                raise TopicNotFoundError(
                    f"the topic has {len(topic.leaders)} partitions, and the selected partition is"
                    " not among them",
                    topic=name,
                    partition=number,
                )
    return [(name, number) for name in topics for number in wanted[name]]
