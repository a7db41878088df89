"""A tier against what its brokers say: which segments they know, where logs begin, which branches
died.

Brokers write to `__remote_log_metadata` before they copy the first object of a segment, and before
they delete the first. They are asked before the tier is listed and once more behind: what is live
both times was in the listing, and what is in the listing was known at one of the times. Where
something is wrong they are asked a last time, as they may have deleted it while it was read.

Segments that brokers should have deleted by retention.

A leader looks at its remote segments from the log start on and deletes those that the time or the
size of the topic's retention gives up, up to the first that it does not
(`RemoteLogManager.RLMExpirationTask.cleanupExpiredRemoteLogSegments`).
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from kts_source.auditing.place import PartitionObjects, keys_of
from kts_source.auditing.segment_checks import place_of
from kts_source.planning.cluster_view import ClusterView
from kts_source.planning.metadata_topic import read_metadata_topic
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.auditing.place import Place
    from kts_source.auditing.report import Finding, PartitionStatement
    from kts_source.broker.cluster import TopicConfigs, TopicPartition
    from kts_source.broker.settings import BrokerSettings
    from kts_source.options import ScanOptions
    from kts_source.planning.cluster_view import BrokerLog
    from kts_source.planning.metadata_topic import NamedSegments
    from segment_format.metadata.model import RemoteLogSegmentMetadata


CONFIGS: Final = ("cleanup.policy", "retention.ms", "retention.bytes")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a topic's records are kept.

    Attributes:
        time_ms: Segments whose newest record is older are deleted; `None` = however old.
        size: Of a partition, the oldest segments above it are deleted; `None` = however much.
        refusal: Why neither is known; empty where they are.
    """

    time_ms: int | None = None
    size: int | None = None
    refusal: str = ""

    @classmethod
    def of(cls, configs: TopicConfigs) -> Self:
        """As a topic is configured."""
        if configs.refusal:
            return cls(refusal=configs.refusal)
        if "delete" not in configs.values.get("cleanup.policy", "delete").split(","):
            return cls()
        time_ms, size = (_bound(configs.values.get(name)) for name in CONFIGS[1:])
        return cls(time_ms, size)

    def overdue(
        self, live: Sequence[RemoteLogSegmentMetadata], log_start: int, old_ms: int
    ) -> list[RemoteLogSegmentMetadata]:
        """The segments that should have been deleted by some time, from the log start on.

        Args:
            live: Those that brokers name, in any order.
            log_start: What ends below it is given up for another reason.
            old_ms: The time, in ms since 1970; segments copied later do not count, as retention may
                not have looked since.
        """
        counted = [
            one for one in live if one.end_offset >= log_start and one.event_timestamp_ms < old_ms
        ]
        size = sum(one.segment_size_in_bytes for one in counted)
        found = []
        for one in sorted(counted, key=lambda one: (one.start_offset, one.end_offset)):
            size -= one.segment_size_in_bytes
            is_old = self.time_ms is not None and one.max_timestamp_ms + self.time_ms < old_ms
            if not is_old and (self.size is None or size < self.size):
                break
            found.append(one)
        return found

    def __str__(self) -> str:
        return f"retention.ms={_text(self.time_ms)}, retention.bytes={_text(self.size)}"


def _bound(text: str | None) -> int | None:
    """The number of a configuration; −1 is none."""
    number = -1 if text is None else int(text)
    return None if number < 0 else number


def _text(bound: int | None) -> int:
    return -1 if bound is None else bound


_GAPS: Final = ("hole", "unsure-gap")
_BELOW_START: Final = ("below-log-start", "log-start-unconfirmed")
_ID_CHARS: Final = 22


@dataclass(frozen=True, slots=True)
class BrokerSide:
    """What brokers said at one time.

    Attributes:
        logs: By topic and partition.
        named: The segments that the metadata topic names, likewise.
        owned: Epoch to the offsets [start, stop) that it owns on the leader's branch, likewise, of
            the epochs of named segments.
        retention: By topic.
    """

    logs: Mapping[TopicPartition, BrokerLog]
    named: Mapping[TopicPartition, NamedSegments]
    owned: Mapping[TopicPartition, Mapping[int, tuple[int, int]]]
    retention: Mapping[str, Retention]

    @classmethod
    def now(cls, settings: BrokerSettings, options: ScanOptions, counts: Mapping[str, int]) -> Self:
        """Asks them.

        Args:
            settings: How brokers are reached.
            options: What is audited.
            counts: See `ClusterView`.

        Raises:
            TopicNotFoundError: The cluster has not the topics, or no metadata topic.
            InvalidOptionError: It has another incarnation than option `topicId` names.
            BrokerError: Brokers refuse, or do not answer.
        """
        with closing(ClusterView(settings, options, counts=counts)) as view:
            wanted = {place: log.topic_id for place, log in view.logs.items()}
            state = read_metadata_topic(settings, wanted, max_batch_bytes=options.max_batch_bytes)
            owned = {}
            for place, of in state.partitions.items():
                epochs = {e.epoch for one in of.live for e in one.segment_leader_epochs}
                owned[place] = view.owned(view.logs[place], epochs) if epochs else {}
            retention = {name: Retention.of(one) for name, one in view.configs(CONFIGS).items()}
            # A leader forgets epochs below its log start, which must not be older than what it
            # said of them: it moves on while all this is read.
            view.renew(view.logs)
            logs = {at: log for at, log in view.logs.items() if wanted.get(at) == log.topic_id}
            return cls(logs, {at: state.partitions[at] for at in logs}, owned, retention)


def against_brokers(
    part: PartitionObjects,
    statement: PartitionStatement,
    findings: Sequence[Finding],
    before: BrokerSide,
    after: BrokerSide,
    last: BrokerSide,
    *,
    old_ms: int,
) -> list[Finding]:
    """Where a partition of the tier is not what brokers say it is.

    Args:
        part: Its objects.
        statement: What the tier serves of it.
        findings: What is known to be wrong; it is not told again.
        before: What brokers said before the listing.
        after: And behind it.
        last: And when all was read.
        old_ms: What brokers began at this time or later, in ms since 1970, may be under way.
    """
    at, place = (part.topic, part.partition), place_of(part)
    first, second = before.logs.get(at), after.logs.get(at)
    if first is None and second is None:
        text = "the cluster has no such partition, or does not show it"
        return [place.finding("other-topic-id", None, None, sorted(place.sizes), text)]
    if first is None or second is None or first.topic_id != second.topic_id:
        return []  # made or deleted meanwhile
    if second.topic_id != part.topic_id:
        text = f"the cluster has topic id {second.topic_id}"
        return [place.finding("other-topic-id", None, None, sorted(place.sizes), text)]
    told = {(one.name, one.start) for one in findings}
    found = [
        *_differences(part, place, before.named[at], after.named[at], old_ms),
        *_branches(part, place, before, after),
        *_overdue(part, place, before, after, old_ms),
    ]
    missed = _missing_segments(found)
    newest = last.logs.get(at)
    if newest is None or newest.topic_id != part.topic_id:  # deleted, and perhaps made again
        newest = second
    if statement.start is not None and statement.stop is not None:
        found += _borders(place, (statement.start, statement.stop), first, newest, missed)
    lost = {one.start for one in findings if one.kind.loses_data}
    return [
        one
        for one in found
        if (one.name, one.start) not in told
        and not (one.name == "named-not-there" and one.start in lost)
    ]


def without_deleted(
    part: PartitionObjects,
    statement: PartitionStatement,
    findings: Sequence[Finding],
    sides: Sequence[BrokerSide],
    old_ms: int,
) -> tuple[PartitionStatement, list[Finding]]:
    """Leaves out what is wrong with segments below the log start that brokers deleted while the
    audit ran, or delete now: it is what a delete looks like.

    Args:
        part: The objects of a partition.
        statement: What the tier serves of it.
        findings: What is wrong with it.
        sides: What brokers said, first to last.
        old_ms: Deletes that began before, in ms since 1970, are not under way any more.
    """
    at, last = (part.topic, part.partition), sides[-1]
    log = last.logs.get(at)
    if log is None or log.topic_id != part.topic_id:
        return statement, [*findings]
    now = last.named[at]
    stays = {_id(one) for one in (*now.live, *now.copying)}
    stays |= {_id(one) for one in now.deleting if one.event_timestamp_ms < old_ms}
    deleted = {
        _id(one): one.end_offset + 1
        for side in sides
        if at in side.named
        for one in (*side.named[at].live, *side.named[at].copying, *side.named[at].deleting)
        if one.end_offset < log.log_start and _id(one) not in stays
    }

    def stop_of(one: Finding) -> int | None:
        """Up to where a finding is about offsets that nobody wants any more."""
        if one.name in _GAPS and one.stop is not None and one.stop <= log.log_start:
            return one.stop
        # `<base offset>-<segment id>.<suffix>`
        stops = [deleted.get(key.rpartition(".")[0][-_ID_CHARS:]) for key in one.objects]
        known = [stop for stop in stops if stop is not None]
        return max(known) if known and len(known) == len(stops) else None

    stops = [(one, stop_of(one)) for one in findings]
    low = max((stop for _, stop in stops if stop is not None), default=0)
    start, stop = statement.start, statement.stop
    # What was read to the end is served as it was read.
    if start is not None and stop is not None and start < low and statement.digest is None:
        statement = replace(statement, start=min(low, stop))
    return statement, [one for one, stop in stops if stop is None]


def with_leaders_start(
    part: PartitionObjects, findings: Sequence[Finding], last: BrokerSide
) -> list[Finding]:
    """Compares the log start that a checkpoint states with that of the leader.

    A log start that is not above the leader's is confirmed. If it is above, the tier does not serve
    offsets that consumers read, and nothing may be deleted on its word.

    Args:
        part: The objects of a partition.
        findings: What is wrong with it.
        last: What brokers said after everything was read.
    """
    log = last.logs.get((part.topic, part.partition))
    if log is None or log.topic_id != part.topic_id:
        return [*findings]
    starts = [one for one in findings if one.name in _BELOW_START and one.stop is not None]
    wrong = [one for one in starts if one.stop is not None and one.stop > log.log_start]
    confirmed = [one for one in starts if one.name == "log-start-unconfirmed" and one not in wrong]
    kept = [one for one in findings if one not in wrong and one not in confirmed]
    if not wrong:
        return kept
    low = min(one.start for one in wrong if one.start is not None)
    high = max(one.stop for one in wrong if one.stop is not None)
    keys = dict.fromkeys(key for one in wrong for key in one.objects)
    text = (
        f"the leader's log starts at offset {log.log_start}, and the newest leader-epoch checkpoint"
        f" drops offsets [{max(low, log.log_start)}, {high})"
    )
    return [*kept, place_of(part).finding("lineage-disagrees", low, high, [*keys], text)]


def unlisted(
    objects: Sequence[PartitionObjects], before: BrokerSide, after: BrokerSide
) -> list[Finding]:
    """Finds missing segments and offsets of partitions that have no object in the tier."""
    listed = {(part.topic, part.partition) for part in objects}
    found: list[Finding] = []
    for at, named in after.named.items():
        if at in before.named and at not in listed:
            topic_id = after.logs[at].topic_id
            if before.logs[at].topic_id == topic_id:
                part = PartitionObjects(at[0], topic_id, at[1], (), ())
                place, first, last = place_of(part), before.logs[at], after.logs[at]
                here = [*_differences(part, place, before.named[at], named, 0)]
                missed = _missing_segments(here)
                nothing = last.log_start, last.log_start
                found += [*here, *_borders(place, nothing, first, last, missed)]
    return found


def _differences(
    part: PartitionObjects,
    place: Place,
    before: NamedSegments,
    after: NamedSegments,
    old_ms: int,
) -> Iterator[Finding]:
    """Segments that only one side knows, and what brokers began and did not finish."""
    whole = {entry.segment_id: entry for entry in part.entries}
    rest: dict[int | None, list[str]] = defaultdict(list)
    for orphan in part.orphans:
        rest[orphan.base_offset] += orphan.keys
    live_before = {_id(one) for one in before.live}
    for one in after.live:
        if _id(one) in live_before and _id(one) not in whole:
            text = f"segment {_id(one)} is named by the metadata topic"
            keys = rest[one.start_offset]
            yield place.finding("named-not-there", one.start_offset, one.end_offset + 1, keys, text)
    for name, unfinished, what in (
        ("copy-not-finished", after.copying, "copied"),
        ("delete-not-finished", after.deleting, "deleted"),
    ):
        for one in unfinished:
            entry = whole.get(_id(one))
            if entry is not None and one.event_timestamp_ms < old_ms:
                text = f"{what} since {one.event_timestamp_ms} ms since 1970"
                stop = one.end_offset + 1
                yield place.finding(name, one.start_offset, stop, keys_of(entry), text)
    missing = [*before.read.missing, *after.read.missing]
    if missing:
        yield place.finding("metadata-incomplete", None, None, [], missing[-1])
        return
    known = {
        _id(one) for side in (before, after) for one in (*side.live, *side.copying, *side.deleting)
    }
    for entry in part.entries:
        if entry.segment_id not in known:
            text = f"segment {entry.segment_id} is not named by the metadata topic"
            base = entry.base_offset
            yield place.finding("unknown-to-brokers", base, None, keys_of(entry), text)


def _missing_segments(findings: Sequence[Finding]) -> list[tuple[int, int]]:
    """Returns the offsets [start, stop) of segments that brokers name and the tier lacks."""
    return sorted(
        (one.start, one.stop)
        for one in findings
        if one.name == "named-not-there" and one.start is not None and one.stop is not None
    )


def _borders(
    place: Place,
    held: tuple[int, int],
    before: BrokerLog,
    last: BrokerLog,
    missed: Sequence[tuple[int, int]],
) -> Iterator[Finding]:
    """Finds offsets that neither the tier nor the leader's disk holds.

    Args:
        place: The partition.
        held: The offsets [start, stop) that the tier serves.
        before: What the leader said before the listing.
        last: What it said after everything was read.
        missed: Offsets [start, stop) of missing segments, which have findings of their own.

    Below where its disk began before the listing, all was copied; above where the log starts now,
    all is wanted.
    """
    if before.local_start is None or last.log_start >= before.local_start:
        return
    low, high = last.log_start, before.local_start
    text = f"the leader's log starts at {low}, its disk at {high}"
    for start, stop in ((low, min(held[0], high)), (max(low, held[1]), high)):
        for from_here, missed_stop in (*missed, (stop, stop)):
            if start < min(from_here, stop):
                yield place.finding("hole", start, min(from_here, stop), [], text)
            start = max(start, missed_stop)


def _branches(
    part: PartitionObjects, place: Place, before: BrokerSide, after: BrokerSide
) -> Iterator[Finding]:
    """Named segments below the log start, and of branches that the leader does not have."""
    at = part.topic, part.partition
    log_start = before.logs[at].log_start
    whole = {entry.segment_id: entry for entry in part.entries}
    for one in after.named[at].live:
        entry = whole.get(_id(one))
        if entry is None:
            continue
        stop = one.end_offset + 1
        if stop <= log_start:
            text = f"the leader's log starts at {log_start}"
            yield place.finding("below-log-start", one.start_offset, stop, keys_of(entry), text)
            continue
        dead = _dead_part(one, after, at)
        if dead is not None:
            low, end, epoch = dead
            text = f"offsets [{low}, {end}) of epoch {epoch} are not the leader's"
            yield place.finding("dead-branch", low, stop, keys_of(entry), text)


def _dead_part(
    one: RemoteLogSegmentMetadata, side: BrokerSide, at: TopicPartition
) -> tuple[int, int, int] | None:
    """The first offsets [start, stop) of a segment that are not on the leader's branch, and their
    epoch.
    """
    starts = [epoch.start_offset for epoch in one.segment_leader_epochs[1:]]
    for epoch, end in zip(one.segment_leader_epochs, [*starts, one.end_offset + 1], strict=True):
        # Below its log start the leader does not remember epochs.
        low = max(epoch.start_offset, one.start_offset, side.logs[at].log_start)
        own = side.owned[at].get(epoch.epoch, (end, end))
        if low < end and not (own[0] <= low and end <= own[1]):
            return (max(low, own[1]) if own[0] <= low else low), end, epoch.epoch
    return None


def _overdue(
    part: PartitionObjects, place: Place, before: BrokerSide, after: BrokerSide, old_ms: int
) -> Iterator[Finding]:
    """What retention gave up long ago, and what is not known of it."""
    at = part.topic, part.partition
    retention = after.retention[part.topic]
    if retention.refusal:
        if at == min(one for one in after.logs if one[0] == part.topic):  # once a topic
            text = f"brokers do not tell its configuration: {retention.refusal}"
            yield place.finding("retention-unknown", None, None, [], text)
        return
    live_before = {_id(one) for one in before.named[at].live}
    # The leader spares segments of other branches.
    live = [
        one
        for one in after.named[at].live
        if _id(one) in live_before and _dead_part(one, after, at) is None
    ]
    overdue = retention.overdue(live, after.logs[at].log_start, old_ms)
    if overdue:
        whole = {entry.segment_id: keys_of(entry) for entry in part.entries}
        keys = [key for one in overdue for key in whole.get(_id(one), ())]
        start, stop = overdue[0].start_offset, max(one.end_offset for one in overdue) + 1
        oldest = overdue[0].max_timestamp_ms
        text = f"{len(overdue)} segments, up to {oldest} ms since 1970 the first; {retention}"
        yield place.finding("retention-overdue", start, stop, keys, text)


def _id(one: RemoteLogSegmentMetadata) -> str:
    return uuid_to_text(one.segment_id.id)
