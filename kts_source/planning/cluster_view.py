"""What the brokers say of the selected partitions, asked in the order that makes it exact.

The end comes first, then the log start, and the tier is listed after both: so whatever lies between
them and is not in the listing is still served by brokers, which delete their copy of a segment only
after it was uploaded.
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
    knows_local_start,
    told_from,
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
"""Of topics of a cluster whose `inter.broker.protocol.version` is below 2.8: all zeros."""
_EPOCHS_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """A partition's log as its leader describes it.

    Attributes:
        topic_id: The incarnation.
        leader_epoch: Of the last record below the end; the leader's own may have none yet.
        log_start: First offset that a consumer may see.
        end: One past the last: the last stable offset for `read_committed`, else the high
            watermark.
        high_watermark: One past the last offset that consumers may see.
        last_stable_offset: The same for `read_committed`.
        local_start: First offset on the leader's own disk; `None` where it does not tell.
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
    """Asks the brokers of a cluster for a plan. From any thread.

    Args:
        settings: How brokers are reached.
        options: What is read.
        counts: Topic id to the number of partitions that the topic has at least.
        batch: Partitions to ask for instead of the selected ones, with their topic ids. Topics that
            the cluster has no longer, or under another id, are left out.

    Attributes:
        topics: Those selected, by name.
        logs: Their partitions, by topic and number, in order.
        partition_counts: Topic id to the number of partitions that the topic is known to have.

    Raises:
        TopicNotFoundError: The cluster does not have a topic or a partition.
        InvalidOptionError: It has another incarnation than option `topicId` names.
        BrokerError: Brokers refuse, or do not answer.
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
        # Fetches of planning have connections of their own, used by one thread at a time. They ask
        # leaders: a follower may lag, or be too old to report all aborted transactions.
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
        """Asks for the ends, and for all else where something is new: a topic, a partition, an
        end.

        Args:
            unread: Partitions of which something is still to be read: a log start of theirs that
                has moved is new, too, and may have passed it.

        Returns:
            Whether something is.

        Raises:
            TieredKafkaError: As when it is made.
        """
        read_committed = self._options.read_committed
        if self._batch is None:
            topics = self._selected(self._options)
            places = _places(self._options, topics)
        else:
            topics, places = self._of_batch(self._batch)
        ends = self._cluster.offsets(places, LATEST, read_committed=read_committed)
        if ends == self._ends and topics == self.topics and not self._have_moved(unread):
            return False
        starts = self._cluster.offsets(places, EARLIEST, read_committed=False)
        # What follows is for people.
        watermarks = self._cluster.offsets(places, LATEST, read_committed=False)
        stable = ends
        if not read_committed:
            stable = self._cluster.offsets(places, LATEST, read_committed=True)
        local = self._local_starts(places)
        # Nothing below the end of an empty log tells an epoch.
        ends_of_records = {at: end if end > starts[at] else 0 for at, end in ends.items()}
        epochs = self._cluster.last_epochs(ends_of_records)
        self.logs = {
            place: BrokerLog(
                topic=place[0],
                topic_id=topics[place[0]].topic_id,
                partition=place[1],
                leader_epoch=epochs[place],
                log_start=starts[place],
                # DeleteRecords may pass the last stable offset.
                end=max(ends[place], starts[place]),
                high_watermark=watermarks[place],
                last_stable_offset=stable[place],
                local_start=local.get(place),
            )
            for place in places
        }
        self.topics, self._ends = topics, ends
        return True

    def _of_batch(
        self, batch: Mapping[TopicPartition, str]
    ) -> tuple[dict[str, ClusterTopic], list[TopicPartition]]:
        """Exactly the partitions of a batch: others may have no leader, and must not block it."""
        described = self._topics({topic for topic, _ in batch})
        places = [
            (topic, number)
            for (topic, number), topic_id in sorted(batch.items())
            if topic in described and described[topic].topic_id == topic_id
        ]
        return {topic: described[topic] for topic, _ in places}, places

    def _expect(self, topic_id: str, partitions: int) -> None:
        if topic_id != _NO_TOPIC_ID:
            known = self.partition_counts.get(topic_id, 0)
            self.partition_counts[topic_id] = max(partitions, known)

    def _topics(self, names: Iterable[str] | None) -> dict[str, ClusterTopic]:
        """Topics by name, with all partitions that are known to exist; `None` = those that the
        pattern selects.
        """
        selects = self._options.selection.wanted if names is None else None
        described = self._cluster.topics(names, counts=self.partition_counts, selects=selects)
        for topic in described.values():
            self._expect(topic.topic_id, len(topic.leaders))
        return described

    def require_partitions(self, topic: str, partitions: int) -> None:
        """Asks again for a topic of which the tier has more partitions than brokers described.

        Raises:
            LeaderChangedError: Brokers describe them now, so a plan must begin anew.
            BrokerUnavailableError: They still do not.
        """
        if self._batch is not None:  # its partitions are described
            return
        topic_id = self.topics[topic].topic_id
        self._expect(topic_id, partitions)
        self._topics([topic])
        raise LeaderChangedError(
            f"brokers described {len(self.topics[topic].leaders)} partitions of topic id"
            f" {topic_id}, of which the tier has {partitions}",
            topic=topic,
        )

    def _have_moved(self, places: Collection[TopicPartition]) -> bool:
        """Whether one of these logs starts elsewhere than when all was asked for last."""
        if not places:
            return False
        starts = self._cluster.offsets(places, EARLIEST, read_committed=False)
        return any(start != self.logs[place].log_start for place, start in starts.items())

    def close(self) -> None:
        """Hangs up."""
        for cluster in (self._cluster, self._probing, self._sampling):
            cluster.close()

    def configs(self, names: Sequence[str]) -> dict[str, TopicConfigs]:
        """Some configurations of the selected topics.

        Raises:
            BrokerError: Brokers do not answer.
        """
        return topic_configs(self._cluster, self.topics, names)

    def check_topics(self) -> None:
        """Raises where a topic was created again: leaders are asked by its name, so answers may be
        about the new one.

        Raises:
            LeaderChangedError: One was, or is gone.
        """
        now = self._topics(self.topics)
        for name, topic in self.topics.items():
            if name not in now or now[name].topic_id != topic.topic_id:
                raise LeaderChangedError(
                    f"topic id {topic.topic_id} was deleted while it was planned", topic=name
                )

    def owned(self, log: BrokerLog, epochs: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Which of some epochs are on the leader's branch, and which offsets [start, stop) each
        owns there.

        Every epoch is asked for by itself: the answer about the newest says nothing about older
        segments of a dead branch (`LeaderEpochFileCache.endOffsetFor`).
        """
        wanted = sorted(set(epochs))
        asked = sorted({one for epoch in wanted for one in (epoch - 1, epoch) if one >= 0})
        place = log.topic, log.partition
        ends = dict(zip(asked, self._cluster.epoch_ends({place: asked})[place], strict=True))
        found = {}
        for epoch in wanted:
            end = ends[epoch]
            if end.epoch == epoch:
                before = ends[epoch - 1].end_offset if epoch else 0
                found[epoch] = (max(before, 0), end.end_offset)
        return found

    def owner(self, log: BrokerLog, offset: int) -> int | None:
        """The epoch that owns an offset on the leader's branch, however old; `None` where the log
        tells no epoch there.

        An answer about an epoch is of the newest epoch up to it, so ends ascend with the epoch that
        is asked for (`LeaderEpochFileCache.endOffsetFor`). Asks once for each halving.
        """
        place = log.topic, log.partition
        low, high = 0, log.leader_epoch
        while low < high:
            middle = (low + high) // 2
            (end,) = self._cluster.epoch_ends({place: [middle]})[place]
            low, high = (low, middle) if offset < end.end_offset else (middle + 1, high)
        start, stop = self.owned(log, [low]).get(low, (0, 0))
        return low if start <= offset < stop else None

    def lineage(self, log: BrokerLog, offset: int) -> tuple[EpochEntry, ...]:
        """Returns the leader epochs of the leader's log, ascending, with their first offsets: at
        least those that own offsets from `offset` on.

        Epochs without a record, and those below the log start, are not among them.
        """
        at = max(offset, log.log_start)
        first: dict[int, int] = {}
        high = log.leader_epoch
        while high >= 0:
            low = max(high - _EPOCHS_AT_ONCE + 1, 0)
            for epoch, (start, stop) in self.owned(log, range(low, high + 1)).items():
                if max(start, log.log_start) < stop:
                    first[epoch] = start
            if any(start <= at for start in first.values()):
                break
            high = low - 1
        return tuple(EpochEntry(epoch, start) for epoch, start in sorted(first.items()))

    def first_offset_dated(self, log: BrokerLog, timestamp_ms: int) -> int | None:
        """The first offset dated at or after a time, as the leader answers; `None` = there is none
        below the end.
        """
        place = log.topic, log.partition
        found = self._cluster.offsets(
            [place], timestamp_ms, read_committed=self._options.read_committed
        )
        offset = found[place]
        return offset if 0 <= offset < log.end else None

    def decided_from(self, log: BrokerLog) -> int:
        """The first offset from which on brokers tell all aborted transactions (`told_from`)."""
        if not self._options.read_committed:
            return log.log_start
        return max(told_from(self._cluster, (log.topic, log.partition)), log.log_start)

    def _local_starts(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Of the partitions whose leader can tell."""
        able = [one for one in places if knows_local_start(self._cluster, one)]
        return self._cluster.offsets(able, EARLIEST_LOCAL, read_committed=False)

    def aborted_behind(self, log: BrokerLog, offset: int) -> frozenset[tuple[int, int]]:
        """Producer id and first offset of the aborted transactions whose marker stands at or behind
        an offset and that begin below it, as far as the leader knows; perhaps others.

        At the end of what is stable an answer has no records, and then no transactions either: one
        record further back it has both.

        Raises:
            DataLossError: The brokers' own tier lacks the offset.
            BrokerUnavailableError: There is no record to ask about.
        """
        at = min(offset, log.end - 1)
        found = self._first_answer(self._probing, log, at, read_committed=True)
        if found is None:
            raise BrokerUnavailableError(
                f"brokers have no record between offset {at} and the last stable offset {log.end},"
                " so they do not report which transactions were aborted before it: plan again"
                " later, or read with isolationLevel=read_uncommitted",
                topic=log.topic,
                partition=log.partition,
                offset=at,
            )
        return found.listed

    def first_timestamp_ms(self, log: BrokerLog, offset: int) -> int | None:
        """When the first batch at or behind an offset began; `None` where there is none."""
        offset = max(offset, log.log_start)  # which may have passed it since
        if offset >= log.end:
            return None
        try:
            found = self._first_answer(self._probing, log, offset)
        except DataLossError:  # the task that reads the offset reports it
            return None
        if found is None:
            return None
        data = found.data
        entry = read_prefix(data)
        return None if entry.magic != MAGIC_2 else RecordBatchHeader.from_bytes(data).base_timestamp

    def bytes_per_offset(self, log: BrokerLog, start: int) -> float | None:
        """About how many bytes an offset takes, by the first batches of a range; `None` where the
        range begins with none.
        """
        try:
            found = self._first_answer(self._sampling, log, start)
        except DataLossError:  # the task that reads the offset reports it
            return None
        if found is None:
            return None
        offsets = found.next_offset - found.start_offset
        return len(found.data) / max(offsets, 1)

    def _first_answer(
        self, cluster: Cluster, log: BrokerLog, at: int, *, read_committed: bool = False
    ) -> FetchedBatches | None:
        """The first batches from an offset on; `None` if the log has none below its end."""
        # Without a need for transactions, all is asked for: nothing comes from above the last
        # stable offset otherwise.
        wanted = BrokerRange(
            topic=log.topic,
            topic_id=log.topic_id,
            partition=log.partition,
            leader_epoch=log.leader_epoch,
            start_offset=at,
            stop_offset=at + 1,
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
                # Deleted, or lost in an election, since the leader was asked for its bounds.
                raise LeaderChangedError(
                    error.message, topic=log.topic, partition=log.partition, offset=at
                ) from error

    def _selected(self, options: ScanOptions) -> dict[str, ClusterTopic]:
        selection = options.selection
        if isinstance(selection, SubscribePattern):
            everything = self._topics(None)
            names = selection.wanted(everything)
            found = {name: everything[name] for name in names}
            if not found:
                raise TopicNotFoundError(
                    f"no topic of the cluster matches {selection.pattern!r}; it has"
                    f" {some(sorted(everything)) or 'none'}"
                )
        else:
            names = selection.wanted(())
            found = self._topics(names)
        for name in names:
            if name not in found:
                raise TopicNotFoundError(
                    "the cluster has no such topic, or does not show it to this user; to read what"
                    " the tier holds of a topic that is gone, leave kafka.bootstrap.servers out",
                    topic=name,
                )
            wanted = options.topic_ids.get(name, options.topic_ids.get(""))
            if wanted not in (None, found[name].topic_id):
                raise InvalidOptionError(
                    f"option 'topicId': the cluster has topic {name!r} under id"
                    f" {found[name].topic_id}, not {wanted}; to read an earlier one from the tier,"
                    " leave kafka.bootstrap.servers out"
                )
        return dict(sorted(found.items()))


def _places(options: ScanOptions, topics: dict[str, ClusterTopic]) -> list[TopicPartition]:
    if not isinstance(options.selection, Assign):
        return [(topic.topic, number) for topic in topics.values() for number in topic.leaders]
    wanted = options.selection.partitions
    for name, topic in topics.items():
        for number in wanted[name]:
            if number not in topic.leaders:
                raise TopicNotFoundError(
                    f"the topic has {len(topic.leaders)} partitions, and not this one",
                    topic=name,
                    partition=number,
                )
    return [(name, number) for name in topics for number in wanted[name]]
