"""Compares a tier with its brokers: segments, log starts, leader epochs and retention.

Brokers announce each copy and each delete of a segment in the topic `__remote_log_metadata` before
they change the first object. The audit queries the brokers before it lists the tier, and again
after the listing. If both responses contain a segment as copied, the listing must contain this
segment. Every listed segment must be in at least one of the two responses. If there are findings,
the audit queries the brokers a third time, because they may have deleted segments in the meantime.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from kts_source.auditing.listing_checks import PartitionObjects, keys_of, segment_name
from kts_source.planning.cluster_view import ClusterView
from kts_source.planning.metadata_topic import read_metadata_topic
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.auditing.listing_checks import PartitionKey
    from kts_source.auditing.report import Finding, PartitionStatement
    from kts_source.broker.cluster import TopicConfigs, TopicPartition
    from kts_source.broker.settings import BrokerSettings
    from kts_source.options import ScanOptions
    from kts_source.planning.cluster_view import BrokerLog
    from kts_source.planning.metadata_topic import NamedSegments
    from segment_format.metadata.model import RemoteLogSegmentMetadata

CONFIGS: Final = ("cleanup.policy", "retention.ms", "retention.bytes")
_ID_CHARS: Final = 22


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of a topic.

    A leader checks its remote segments in offset order, from the log start on. It deletes each
    segment that exceeds the retention time or size, and stops at the first segment that exceeds
    neither. Source: `RemoteLogManager.RLMExpirationTask.cleanupExpiredRemoteLogSegments`.

    Attributes:
        time_ms: Maximum age of the newest record of a segment; `None` = no limit.
        size: Maximum size of the remote segments of a partition in bytes; `None` = no limit.
        refusal: Why the retention is unknown; empty if it is known.
    """

    time_ms: int | None = None
    size: int | None = None
    refusal: str = ""

    @classmethod
    def of(cls, configs: TopicConfigs) -> Self:
        """Returns the retention according to the configuration of a topic."""
        if configs.refusal:
            return cls(refusal=configs.refusal)
        if "delete" not in configs.values.get("cleanup.policy", "delete").split(","):
            return cls()
        limits = (int(configs.values.get(name) or -1) for name in CONFIGS[1:])
        time_ms, size = (None if limit < 0 else limit for limit in limits)
        return cls(time_ms, size)

    def overdue(
        self, live: Sequence[RemoteLogSegmentMetadata], log_start: int, old_ms: int
    ) -> list[RemoteLogSegmentMetadata]:
        """Returns the segments that the leader should have deleted before `old_ms`.

        Args:
            live: Segments that brokers list, in any order.
            log_start: Log start of the partition. Segments that end below it are ignored.
            old_ms: A time in ms since 1970. Segments that were copied later are ignored, because
                the leader may not have checked retention since then.
        """
        counted = [
            segment
            for segment in live
            if segment.end_offset >= log_start and segment.event_timestamp_ms < old_ms
        ]
        size = sum(segment.segment_size_in_bytes for segment in counted)
        overdue = []
        for segment in sorted(
            counted, key=lambda segment: (segment.start_offset, segment.end_offset)
        ):
            size -= segment.segment_size_in_bytes
            is_old = self.time_ms is not None and segment.max_timestamp_ms + self.time_ms < old_ms
            if not is_old and (self.size is None or size < self.size):
                break
            overdue.append(segment)
        return overdue

    def __str__(self) -> str:
        time_ms, size = (-1 if limit is None else limit for limit in (self.time_ms, self.size))
        return f"retention.ms={time_ms}, retention.bytes={size}"


@dataclass(frozen=True, slots=True)
class BrokerSnapshot:
    """The responses of the brokers at one time.

    Attributes:
        logs: The log of each partition as the brokers describe it, by topic and partition.
        named: The segments that the topic `__remote_log_metadata` contains, by topic and partition.
        owned: For each topic and partition, a map from leader epoch to the offsets [start, stop) of
            the epoch in the leader's log. The map contains only epochs of the segments in `named`.
        retention: Retention by topic.
    """

    logs: Mapping[TopicPartition, BrokerLog]
    named: Mapping[TopicPartition, NamedSegments]
    owned: Mapping[TopicPartition, Mapping[int, tuple[int, int]]]
    retention: Mapping[str, Retention]

    @classmethod
    def take(
        cls, settings: BrokerSettings, options: ScanOptions, counts: Mapping[str, int]
    ) -> Self:
        """Queries the brokers and returns their responses. `counts` are the known numbers of
        partitions by topic id; a topic may have more.

        Raises:
            TopicNotFoundError: The cluster lacks the audited topics or the topic
                `__remote_log_metadata`.
            InvalidOptionError: The topic id in the cluster differs from option `topicId`.
            BrokerError: Brokers reject the requests, or do not answer.
        """
        with closing(ClusterView(settings, options, counts=counts)) as view:
            topic_ids = {key: log.topic_id for key, log in view.logs.items()}
            limit = options.max_batch_bytes
            metadata = read_metadata_topic(settings, topic_ids, max_batch_bytes=limit)
            owned = {}
            for key, named in metadata.partitions.items():
                epochs = {e.epoch for segment in named.live for e in segment.segment_leader_epochs}
                owned[key] = view.owned(view.logs[key], epochs) if epochs else {}
            retention = {
                name: Retention.of(values) for name, values in view.configs(CONFIGS).items()
            }
            # Leaders drop epochs below their log start. So the log starts must be requested after
            # `owned`.
            view.renew(view.logs)
            logs = {
                key: log for key, log in view.logs.items() if topic_ids.get(key) == log.topic_id
            }
            return cls(logs, {key: metadata.partitions[key] for key in logs}, owned, retention)

    def log_of(self, partition: PartitionObjects) -> BrokerLog | None:
        """Returns the brokers' log of a partition; `None` if brokers do not have the partition, or
        if its topic has another topic id in the cluster.
        """
        log = self.logs.get((partition.topic, partition.partition))
        return log if log is not None and log.topic_id == partition.topic_id else None

    @property
    def topic_ids(self) -> dict[str, str]:
        """Topic ids in the cluster by topic."""
        return {topic: log.topic_id for (topic, _), log in self.logs.items()}

    def announced(self) -> Iterator[tuple[PartitionKey, Iterator[str]]]:
        """Yields two values per partition: its key, and the names of all segments in `named`."""
        for (topic, partition), named in self.named.items():
            key = topic, self.logs[topic, partition].topic_id, partition
            yield (
                key,
                (
                    segment_name(partition, segment.start_offset, _id(segment))
                    for segment in _all_segments(named)
                ),
            )


_Snapshots = tuple[BrokerSnapshot, BrokerSnapshot, BrokerSnapshot]
"""Snapshots from before the listing, after it, and after everything was read."""


def check_partition(
    partition: PartitionObjects,
    statement: PartitionStatement,
    findings: Sequence[Finding],
    snapshots: _Snapshots,
    *,
    old_ms: int,
) -> list[Finding]:
    """Finds differences between a partition of the tier and the brokers.

    Args:
        partition: The partition.
        statement: Offsets that readers get from the partition.
        findings: Findings about the partition so far. The result does not repeat them.
        snapshots: Three snapshots of the brokers: before the listing, after the listing, and after
            all reads of the audit.
        old_ms: A time in ms since 1970. A copy or delete that began at this time or later may still
            be running, so it is not reported as unfinished.
    """
    before, after, last = snapshots
    key = partition.topic, partition.partition
    first, second = before.logs.get(key), after.logs.get(key)
    if first is None and second is None:
        text = "the cluster does not have the partition, or does not show it"
        return _other_topic_id(partition, text)
    if first is None or second is None or first.topic_id != second.topic_id:
        return []  # the topic was created or deleted in the meantime
    if second.topic_id != partition.topic_id:
        return _other_topic_id(partition, f"the cluster has topic id {second.topic_id}")
    differences = [
        *_check_segments(partition, before.named[key], after.named[key], old_ms),
        *_check_branches(partition, before, after),
        *_check_retention(partition, before, after, old_ms),
    ]
    if statement.start is not None and statement.stop is not None:
        newest = last.log_of(partition) or second  # deleted, and perhaps created again
        served = statement.start, statement.stop
        differences += _check_bounds(
            partition, served, first, newest, _missing_segments(differences)
        )
    reported = {(finding.name, finding.start) for finding in findings}
    lost = {finding.start for finding in findings if finding.kind.loses_data}
    return [
        finding
        for finding in differences
        if (finding.name, finding.start) not in reported
        and not (finding.name == "named-not-there" and finding.start in lost)
    ]


def _other_topic_id(partition: PartitionObjects, text: str) -> list[Finding]:
    keys = partition.unused
    if not keys and partition.sizes:
        return []  # another topic uses all objects
    return [partition.finding("other-topic-id", None, None, keys, text)]


def without_deleted(
    partition: PartitionObjects,
    statement: PartitionStatement,
    findings: Sequence[Finding],
    snapshots: Sequence[BrokerSnapshot],
    old_ms: int,
) -> tuple[PartitionStatement, list[Finding]]:
    """Drops findings about segments that brokers deleted during the audit or are deleting now,
    because a running delete looks like a fault in the listing.

    Only segments below the log start are considered. Returns two values: the statement and the
    remaining findings. If the statement has no digest, its start is raised to the end of the
    deleted segments.

    Args:
        findings: Findings about the partition.
        partition: The partition.
        statement: Offsets that readers get from the partition.
        snapshots: Snapshots of the brokers, oldest first.
        old_ms: A time in ms since 1970. A delete that began earlier and has not finished counts as
            failed, so findings about its segment are kept.
    """
    key, last = (partition.topic, partition.partition), snapshots[-1]
    log = last.log_of(partition)
    if log is None:
        return statement, [*findings]
    current = last.named[key]
    remaining = {_id(segment) for segment in (*current.live, *current.copying)}
    remaining |= {
        _id(segment) for segment in current.deleting if segment.event_timestamp_ms < old_ms
    }
    deleted = {
        _id(segment): segment.end_offset + 1
        for snapshot in snapshots
        if key in snapshot.named
        for segment in _all_segments(snapshot.named[key])
        if segment.end_offset < log.log_start and _id(segment) not in remaining
    }

    def deleted_stop(finding: Finding) -> int | None:
        """If `finding` is about deleted segments or about a gap below the log start, returns the
        end of their offsets (exclusive). Otherwise returns `None`.
        """
        is_gap = finding.name in ("hole", "unsure-gap")
        if is_gap and finding.stop is not None and finding.stop <= log.log_start:
            return finding.stop
        # Object names are `<base offset>-<segment id>.<suffix>`.
        stops = [deleted.get(name.rpartition(".")[0][-_ID_CHARS:]) for name in finding.objects]
        known_stops = [stop for stop in stops if stop is not None]
        return max(known_stops) if known_stops and len(known_stops) == len(stops) else None

    stops = [(finding, deleted_stop(finding)) for finding in findings]
    low = max((stop for _, stop in stops if stop is not None), default=0)
    start, stop = statement.start, statement.stop
    # A statement with a digest is not changed, because all its offsets were read.
    if start is not None and stop is not None and start < low and statement.digest is None:
        statement = replace(statement, start=min(low, stop))
    return statement, [finding for finding, stop in stops if stop is None]


def check_leader_start(
    partition: PartitionObjects, findings: Sequence[Finding], last: BrokerSnapshot
) -> list[Finding]:
    """Compares the log start in the newest leader-epoch checkpoint with the leader's log start.

    If the checkpoint's log start is at or below the leader's, findings of kind
    `log-start-unconfirmed` are dropped. If it is higher, the tier does not serve offsets that
    consumers can read, so a finding `lineage-disagrees` replaces the findings that advise to delete
    these offsets. Returns the resulting findings.
    """
    log = last.log_of(partition)
    if log is None:
        return [*findings]
    kept, wrong = [], []
    for finding in findings:
        is_start = finding.name in ("below-log-start", "log-start-unconfirmed")
        if is_start and finding.stop is not None and finding.stop > log.log_start:
            wrong.append(finding)
        elif finding.name != "log-start-unconfirmed" or finding.stop is None:
            kept.append(finding)
    if not wrong:
        return kept
    low = min(finding.start for finding in wrong if finding.start is not None)
    high = max(finding.stop for finding in wrong if finding.stop is not None)
    keys = dict.fromkeys(key for finding in wrong for key in finding.objects)
    text = (
        f"the leader's log starts at offset {log.log_start}, and the newest leader-epoch checkpoint"
        f" drops offsets [{max(low, log.log_start)}, {high})"
    )
    return [*kept, partition.finding("lineage-disagrees", low, high, [*keys], text)]


def check_unlisted(
    partitions: Sequence[PartitionObjects], before: BrokerSnapshot, after: BrokerSnapshot
) -> list[Finding]:
    """Checks partitions that brokers know but that have no object in the tier under the topic id of
    the brokers. Reports their missing segments and missing offsets.
    """
    listed = {partition.key for partition in partitions}
    findings: list[Finding] = []
    for key, named in after.named.items():
        last = after.logs[key]
        partition = PartitionObjects(key[0], last.topic_id, key[1], (), ())
        is_listed = partition.key in listed
        if is_listed or key not in before.named or before.logs[key].topic_id != last.topic_id:
            continue
        segments = [*_check_segments(partition, before.named[key], named, 0)]
        missing = _missing_segments(segments)
        nothing = last.log_start, last.log_start
        findings += [*segments, *_check_bounds(partition, nothing, before.logs[key], last, missing)]
    return findings


def _check_segments(
    partition: PartitionObjects, before: NamedSegments, after: NamedSegments, old_ms: int
) -> Iterator[Finding]:
    """Reports segments of the tier that brokers do not list, and segments listed by brokers that
    the tier lacks. Also reports copies and deletes that began before `old_ms` and have not
    finished.
    """
    entries_by_id = {entry.segment_id: entry for entry in partition.entries}
    rest: dict[int | None, list[str]] = defaultdict(list)
    for orphan in partition.orphans:
        rest[orphan.base_offset] += orphan.keys
    live_before = {_id(segment) for segment in before.live}
    for segment in after.live:
        if _id(segment) in live_before and _id(segment) not in entries_by_id:
            text = f"the metadata topic lists segment {_id(segment)}"
            bounds = segment.start_offset, segment.end_offset + 1
            yield partition.finding("named-not-there", *bounds, rest[segment.start_offset], text)
    for name, unfinished, action in (
        ("copy-not-finished", after.copying, "copy"),
        ("delete-not-finished", after.deleting, "delete"),
    ):
        for segment in unfinished:
            entry = entries_by_id.get(_id(segment))
            if entry is not None and segment.event_timestamp_ms < old_ms:
                text = f"the {action} began at {segment.event_timestamp_ms} ms since 1970"
                bounds = segment.start_offset, segment.end_offset + 1
                yield partition.finding(name, *bounds, keys_of(entry), text)
    missing = [*before.read.missing, *after.read.missing]
    if missing:
        yield partition.finding("metadata-incomplete", None, None, [], missing[-1])
        return
    listed_ids = {_id(segment) for named in (before, after) for segment in _all_segments(named)}
    for entry in partition.entries:
        if entry.segment_id not in listed_ids:
            text = f"the metadata topic does not list segment {entry.segment_id}"
            keys = keys_of(entry)
            yield partition.finding("unknown-to-brokers", entry.base_offset, None, keys, text)


def _missing_segments(findings: Sequence[Finding]) -> list[tuple[int, int]]:
    """Returns the offsets [start, stop) of each segment that is missing in the tier according to
    `findings`.
    """
    return sorted(
        (finding.start, finding.stop)
        for finding in findings
        if finding.name == "named-not-there"
        and finding.start is not None
        and finding.stop is not None
    )


def _check_bounds(
    partition: PartitionObjects,
    served: tuple[int, int],
    before: BrokerLog,
    last: BrokerLog,
    missing: Sequence[tuple[int, int]],
) -> Iterator[Finding]:
    """Reports offsets that neither the tier nor the leader's disk has. `served` are the offsets
    [start, stop) that the tier serves. Offsets in `missing` were reported already.

    The tier must have all offsets from the log start in `last` (the snapshot after all reads) to
    the first offset on the leader's disk in `before` (the snapshot before the listing).
    """
    if before.local_start is None or last.log_start >= before.local_start:
        return
    low, high = last.log_start, before.local_start
    text = f"the leader's log starts at offset {low}, its disk at offset {high}"
    for start, stop in ((low, min(served[0], high)), (max(low, served[1]), high)):
        for missing_start, missing_stop in (*missing, (stop, stop)):
            if start < min(missing_start, stop):
                yield partition.finding("hole", start, min(missing_start, stop), [], text)
            start = max(start, missing_stop)


def _check_branches(
    partition: PartitionObjects, before: BrokerSnapshot, after: BrokerSnapshot
) -> Iterator[Finding]:
    """Reports listed segments that end below the log start. Also reports listed segments with
    offsets of a leader epoch that the leader's log does not have at these offsets.
    """
    key = partition.topic, partition.partition
    log_start = before.logs[key].log_start
    entries_by_id = {entry.segment_id: entry for entry in partition.entries}
    for segment in after.named[key].live:
        entry = entries_by_id.get(_id(segment))
        if entry is None:
            continue
        stop = segment.end_offset + 1
        if stop <= log_start:
            text = f"the leader's log starts at offset {log_start}"
            yield partition.finding(
                "below-log-start", segment.start_offset, stop, keys_of(entry), text
            )
            continue
        dead = _dead_range(segment, after, key)
        if dead is not None:
            low, end, epoch = dead
            text = f"the leader does not have offsets [{low}, {end}) of epoch {epoch}"
            yield partition.finding("dead-branch", low, stop, keys_of(entry), text)


def _dead_range(
    segment: RemoteLogSegmentMetadata, snapshot: BrokerSnapshot, key: TopicPartition
) -> tuple[int, int, int] | None:
    """Finds the first offsets of a segment that the leader's log does not have with the leader
    epoch of the segment.

    Returns three values: the first of these offsets, their end (exclusive) and their leader epoch.
    Returns `None` if there are no such offsets.
    """
    starts = [epoch.start_offset for epoch in segment.segment_leader_epochs[1:]]
    for epoch, end in zip(
        segment.segment_leader_epochs, [*starts, segment.end_offset + 1], strict=True
    ):
        # The leader drops epochs below its log start, so lower offsets cannot be compared.
        low = max(epoch.start_offset, segment.start_offset, snapshot.logs[key].log_start)
        own = snapshot.owned[key].get(epoch.epoch, (end, end))
        if low < end and not (own[0] <= low and end <= own[1]):
            return (max(low, own[1]) if own[0] <= low else low), end, epoch.epoch
    return None


def _check_retention(
    partition: PartitionObjects, before: BrokerSnapshot, after: BrokerSnapshot, old_ms: int
) -> Iterator[Finding]:
    """Reports segments that the leader should have deleted because of the topic's retention. If the
    retention is unknown, reports this instead, once per topic.
    """
    key = partition.topic, partition.partition
    retention = after.retention[partition.topic]
    if retention.refusal:
        if key == min(
            log_key for log_key in after.logs if log_key[0] == partition.topic
        ):  # once per topic
            text = f"brokers do not return its configuration: {retention.refusal}"
            yield partition.finding("retention-unknown", None, None, [], text)
        return
    live_before = {_id(segment) for segment in before.named[key].live}
    # The leader does not delete segments with offsets that are not in its own log.
    live = [
        segment
        for segment in after.named[key].live
        if _id(segment) in live_before and _dead_range(segment, after, key) is None
    ]
    overdue = retention.overdue(live, after.logs[key].log_start, old_ms)
    if overdue:
        keys_by_id = {entry.segment_id: keys_of(entry) for entry in partition.entries}
        keys = [key for segment in overdue for key in keys_by_id.get(_id(segment), ())]
        start, stop = overdue[0].start_offset, max(segment.end_offset for segment in overdue) + 1
        newest = overdue[0].max_timestamp_ms
        text = (
            f"{len(overdue)} segments; the newest record of the first is of {newest} ms since 1970;"
            f" {retention}"
        )
        yield partition.finding("retention-overdue", start, stop, keys, text)


def _all_segments(named: NamedSegments) -> Iterator[RemoteLogSegmentMetadata]:
    yield from (*named.live, *named.copying, *named.deleting)


def _id(segment: RemoteLogSegmentMetadata) -> str:
    return uuid_to_text(segment.segment_id.id)
