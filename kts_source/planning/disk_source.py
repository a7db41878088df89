"""Combines a tier and the disks of lost brokers as the sources of a scan.

The branch with the highest leader epoch, in the tier or on disks, survives. Segments on this branch
are read from the tier. All other offsets (the tail, unfinished copies, holes) are read from the
replica with the highest offset on the branch. If this replica lacks offsets, they are read from
other replicas of the branch.

The log start is the highest log start that the tier or a disk records. Brokers write the log start
to disk every minute and at shutdown, together with the leader-epoch checkpoint. The log ends at the
high watermark of the disks or at the end of the tier, whichever is higher, because brokers copy
only offsets below the high watermark to the tier.

Source: `UnifiedLog`, `LogLoader`, `RemoteLogManager`, `LogManager.checkpointLogStartOffsetsInDir`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError, TierNotFoundError, TopicNotFoundError
from kts_source.layout.find_layout import find_layout
from kts_source.layout.kafka_logs.kafka_logs import Disks
from kts_source.layout.kafka_logs.recovered_segments import described, lost_partition, lost_reason
from kts_source.layout.kafka_logs.replica import EPOCHS_FILE, Recovery
from kts_source.layout.kafka_logs.replica_choice import (
    Branch,
    Filler,
    ReplicaSource,
    end_of_agreement,
    longest_replica,
    newest_branch,
    surviving_log,
)
from kts_source.layout.layout import Orphan, TopicFolder
from kts_source.layout.remote_segment import IndexType
from kts_source.options.selection import Assign, Subscribe
from kts_source.planning.bounds import Place
from kts_source.planning.lineage import (
    MAX_OFFSET,
    Hole,
    OffsetSpan,
    PartitionLog,
    SegmentRange,
    between,
    last_epoch,
    owned_offsets,
    union_log,
    usable_range,
    with_epochs,
)
from kts_source.planning.lineage_evidence import contradiction
from kts_source.planning.partition_plan import DiskPart
from kts_source.planning.segment_catalog import SegmentCatalog, discover, wanted_topic_id
from kts_source.planning.sources import SourceLog, SourcePartition
from kts_source.planning.tier_source import newest_lineage, open_tier_log
from kts_source.store.joined_store import additional_store_prefix
from kts_source.texts import printable, some

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from kts_source.layout.kafka_logs.recovered_segments import Lost
    from kts_source.layout.kafka_logs.replica import SurvivingLog
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.planning.side_files import SideFiles
    from kts_source.tier import Tier

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Topic:
    """A selected topic that is in the tier, on disks or in both.

    Attributes:
        listed: Partitions of the topic in the tier.
        on_disks: Numbers of the partitions that have a replica on disks.
        asked: Numbers of the selected partitions.
    """

    topic: str
    topic_id: str
    listed: Mapping[int, ListedPartition]
    on_disks: frozenset[int]
    asked: tuple[int, ...]
    notes: tuple[str, ...]


class DiskSource:
    """A `Source` that lists the selected partitions of a tier and of disks."""

    def __init__(
        self, options: ScanOptions, tier: Tier, describing: Executor, pool: Executor
    ) -> None:
        self._options = options
        self._store = tier.store
        self._pool = pool
        self._topics: list[_Topic] = []
        self._catalog = SegmentCatalog(
            tier,
            find_layout(options.layout),
            describing,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        self._disks = Disks(
            tier.store, map(additional_store_prefix, range(len(options.tail_paths)))
        )
        if self._disks.without:
            names = ", ".join(tier.store.uri(root) for root in self._disks.without)
            raise TierNotFoundError(
                f"option 'tailPath': there is no log directory of a broker at {names}. A log"
                " directory is a folder with meta.properties, checkpoints or partition folders. It"
                " may be up to two levels below the path"
            )

    @property
    def topics(self) -> set[str]:
        """Names of the selected topics. Bounds in JSON may name any partition of them."""
        return {topic.topic for topic in self._topics}

    @property
    def asked(self) -> Mapping[str, Sequence[int]]:
        """Numbers of the partitions that the options select, by topic."""
        return {topic.topic: topic.asked for topic in self._topics}

    def partitions(self) -> list[SourcePartition]:
        """Lists the selected partitions that have data, ascending by topic and number."""
        self._topics = self._selected_topics()
        partitions = [
            SourcePartition(
                topic.topic,
                topic.topic_id,
                number,
                topic.listed.get(number),
                partial(self._open_log, topic, number),
            )
            for topic in self._topics
            for number in topic.asked
            if number in topic.listed
            or number in topic.on_disks
            or self._disks.lost_replicas((topic.topic, number))
        ]
        self._catalog.expect(len(partitions))
        return partitions

    def finish(self) -> list[str]:
        """Returns notes for the user about the selected topics."""
        return [note for topic in self._topics for note in topic.notes]

    def _selected_topics(self) -> list[_Topic]:
        options, disks = self._options, self._disks
        on_disks = options.selection.wanted(disks.topics())
        disk_ids = {name: disks.topic_ids(name) for name in on_disks if name in disks.topics()}
        uri = self._store.uri(options.key_prefix)
        tiered = self._tiered_names(disk_ids)
        available = tiered | disks.topics()
        names = sorted(options.selection.wanted(available))
        missing = [name for name in names if name not in available]
        if missing or not names:
            problem = f"no topic {', '.join(map(repr, missing))}" if missing else "no topic matches"
            remains = sorted(disks.topics_not_in_use().intersection(missing))
            also = (
                f"; checkpoints or folders set aside there name {some(remains)}" if remains else ""
            )
            raise TopicNotFoundError(
                f"{problem} in the tier at {uri}, nor in the log directories of option"
                f" 'tailPath'{also}; existing topics: {some(sorted(available)) or 'none'}"
            )
        discovered = {}
        if in_tier := tuple(name for name in names if name in tiered):
            # Search the disks first, because they may have offsets that the tier lacks.
            lenient = replace(options, selection=Subscribe(in_tier), fail_on_data_loss=False)
            tiered_topics = discover(lenient, self._catalog, self._pool)
            discovered = {topic.topic: topic for topic in tiered_topics}
        topics = []
        for name in names:
            ids = disk_ids.get(name, frozenset())
            if name in discovered:
                topic_id = discovered[name].topic_id
                listed = {each.partition: each for each in discovered[name].partitions}
                notes = list(discovered[name].notes)
            else:
                topic_id, listed = _topic_id_on_disks(options, name, ids), {}
                notes = [f"topic {name}: the tier at {uri} has no object; all of it is on disks"]
            topics.append(self._topic(name, topic_id, ids, listed, notes))
        return topics

    def _tiered_names(self, disk_ids: Mapping[str, frozenset[str]]) -> set[str]:
        """Returns the topics in the tier. A topic is omitted if option `topicId` selects one of its
        incarnations that is only on disks.
        """
        layout, key_prefix = self._catalog.layout, self._options.key_prefix
        return {
            folder.topic
            for folder in layout.topic_folders(self._store, key_prefix, None)
            if (wanted := wanted_topic_id(self._options, folder.topic)) in (None, folder.topic_id)
            or wanted not in disk_ids.get(folder.topic, ())
        }

    def _topic(
        self,
        name: str,
        topic_id: str,
        disk_ids: frozenset[str],
        listed: Mapping[int, ListedPartition],
        notes: list[str],
    ) -> _Topic:
        disks = self._disks
        if disk_ids and topic_id not in disk_ids:
            raise InvalidOptionError(
                f"topic {name!r} has topic id {topic_id} in the tier and"
                f" {', '.join(sorted(disk_ids))} on the disks of option 'tailPath': it was deleted"
                " and created again in the meantime. Choose an id with option 'topicId', or remove"
                " 'tailPath'"
            )
        replicas = self._with_replica(name, topic_id)
        asked: Sequence[int] = sorted({*listed, *disks.partitions(name, topic_id)})
        if isinstance(self._options.selection, Assign):
            asked = self._options.selection.partitions[name]
        elsewhere = {n for other in disk_ids for n in self._with_replica(name, other)}
        if lost := sorted(elsewhere - replicas):
            notes.append(f"topic {name}: on disks, partitions {lost} have another topic id")
        if empty := [n for n in asked if n not in listed and n not in replicas]:
            aside = [orphan for n in empty for orphan in disks.set_aside((name, n))]
            note = f"topic {name}: partitions {empty} are neither in the tier nor on disks"
            notes.append(f"{note}, but {some(map(str, aside))}" if aside else note)
        if others := disks.folders_set_aside(name, topic_id):
            unused = some(map(str, others))
            notes.append(f"topic {name}: not read, because no partition in use has them: {unused}")
        return _Topic(name, topic_id, listed, replicas, tuple(asked), tuple(notes))

    def _with_replica(self, topic: str, topic_id: str) -> frozenset[int]:
        """Returns the partitions that have a replica with this topic id. Ignores folders of
        deleted, stray and future replicas.
        """
        numbers = self._disks.partitions(topic, topic_id)
        return frozenset(n for n in numbers if self._disks.has_replica((topic, n), topic_id))

    def _open_log(
        self, topic: _Topic, number: int, side_files: SideFiles, is_resumed: bool
    ) -> SourceLog | None:
        del is_resumed
        options, disks = self._options, self._disks
        key = topic.topic, number
        listed = topic.listed.get(number)
        orphans = () if listed is None else listed.orphans
        if number not in topic.on_disks:
            remains = [*map(str, disks.set_aside(key))]
            remains += [
                f"{disks.store.uri(replica.checkpoint)}: {lost_reason(*key, replica)}"
                for replica in disks.lost_replicas(key)
            ]
            Place(*key, orphans, options.fail_on_data_loss, mirror=side_files.mirror).raise_or_warn(
                f"no log directory of option 'tailPath' holds a replica of topic id"
                f" {topic.topic_id}, so offsets that were not tiered are lost"
                f"{''.join(f'; {text}' for text in remains)}; failOnDataLoss=false reads what the"
                " tier has"
            )
            if listed is None:
                return None
            return open_tier_log(options, listed, side_files, in_part=False)
        location = Place(
            *key,
            orphans,
            options.fail_on_data_loss,
            holder="the tier with the disks",
            beyond="above the end of the log",
            mirror=side_files.mirror,
        )
        disk_log = DiskLog(
            location, topic.topic_id, side_files, disks, listed, end_of_log=options.end_of_log
        )
        for note in disk_log.notes:
            log.warning("%s: not read: %s", location, printable(str(note)))
        if disk_log.is_undecided and options.read_committed:
            location.raise_or_warn(
                f"no producer snapshot is valid at the first segment of {disk_log.disks.folder}, so"
                " it is unknown which transactions were open there, and whether records on the disk"
                " ended them; failOnDataLoss=false assumes that none was open"
            )
        return disk_log


def _topic_id_on_disks(options: ScanOptions, topic: str, ids: Iterable[str]) -> str:
    """Returns the topic id to read for a topic that is on disks but not in the tier. Raises
    `InvalidOptionError` if the options do not determine the id.
    """
    available = sorted(ids)
    wanted = wanted_topic_id(options, topic)
    if wanted is not None and wanted not in available:
        raise InvalidOptionError(
            f"option 'topicId': topic {topic!r} has no id {wanted}; the disks have"
            f" {', '.join(available)}"
        )
    if wanted is None and len(available) > 1:
        raise InvalidOptionError(
            f"topic {topic!r} has several topic ids on the disks ({', '.join(available)}), and it"
            " is unknown which of them is the newest: choose one with option 'topicId'"
        )
    return wanted or available[0]


class DiskLog(SourceLog):
    """The log of a partition, merged from a tier and at least one replica on disks.

    Attributes:
        disks: Facts about the chosen replica on disks, for the plan.
        notes: Objects on the disks that are not read, with the reasons.
        is_undecided: True if the outcome of transactions in segments on disk is unknown: the tier
            has offsets before the first segment on disk, but no file records which transactions are
            open at the start of this segment.
    """

    def __init__(
        self,
        location: Place,
        topic_id: str,
        side_files: SideFiles,
        disks: Disks,
        listed: ListedPartition | None,
        *,
        end_of_log: bool,
    ) -> None:
        super().__init__(location, topic_id, side_files)
        self._key = location.topic, location.partition
        self._all_disks = disks
        self._replicas = disks.replicas(self._key, topic_id)
        self._segments = [] if listed is None else listed.all()
        self._damaged = [] if listed is None else listed.damaged()
        self._tier_lineage, newest = newest_lineage(self._segments, self._damaged, side_files)
        tier_epoch = -1 if newest is None else last_epoch(newest)
        disk_epoch = max(replica.last_epoch for replica in self._replicas)
        branch = self._branch = self._surviving_branch(tier_epoch, disk_epoch)
        self._lineage = with_epochs(branch.lineage, self._damaged)
        log_start = self._log_start()
        tier = union_log(self._segments, log_start, MAX_OFFSET, owned_offsets(self._lineage))
        if newest is not None:
            is_of_tier = self._tier_lineage and branch.lineage == tuple(self._tier_lineage)
            name = "" if is_of_tier else "the leader-epoch checkpoint of the disks"
            self._contradiction = contradiction(
                tier, branch.lineage, newest, self._segments, side_files, name
            )
        newest_epoch = max(tier_epoch, disk_epoch)
        newer = (segment for segment in self._damaged if last_epoch(segment) > newest_epoch)
        self.unknown_lineage = next(newer, None)
        self._merge(tier, log_start, end_of_log=end_of_log)

    def completed(self, plan: PartitionPlan) -> PartitionPlan:
        """Returns `plan` with the facts about the chosen replica."""
        return replace(plan, disks=self.disks)

    def _surviving_branch(self, tier_epoch: int, disk_epoch: int) -> Branch:
        """Returns the branch with the highest leader epoch: the branch of the tier or of a disk."""
        branch, tier_lineage = newest_branch(self._replicas), self._tier_lineage
        # All logs with the same epoch have the same history, but a disk may record only a part of
        # it.
        is_longer = tier_epoch == disk_epoch and branch.log_start > tier_lineage[0].start_offset
        if tier_epoch > disk_epoch or is_longer:
            end = max((segment.stop_offset for segment in self._segments), default=0)
            end = end if tier_epoch > disk_epoch else MAX_OFFSET
            branch = Branch(tuple(tier_lineage), tier_lineage[0].start_offset, end)
        return branch

    def _log_start(self) -> int:
        """Returns the first offset that a consumer may see, according to the tier and the disks.

        The first segment on disk is not the log start of a tiered topic, because brokers delete
        copied segments from disk.
        """
        branch, tier_lineage = self._branch, self._tier_lineage
        recorded = []
        if tier_lineage:
            end = max(segment.stop_offset for segment in (*self._segments, *self._damaged))
            first = tier_lineage[0].start_offset
            if first <= end_of_agreement(Branch(tuple(tier_lineage), first, end), branch):
                recorded.append(first)
        from_epochs = []
        for replica in self._replicas:
            agreed = end_of_agreement(replica, branch)
            log_start = replica.log_dir.log_starts.get(self._key)
            if log_start is not None and log_start <= agreed:
                recorded.append(log_start)
            if replica.history and EPOCHS_FILE in replica.files.others:
                first = replica.history[0].start_offset
                from_epochs += [first] if first <= agreed else []
        local = longest_replica(self._replicas, branch).log_start
        is_tiered = self._segments or self._damaged
        if is_tiered or any(offset < local for offset in recorded):
            return max([*recorded, *from_epochs], default=0)
        return max([*recorded, local])

    def _merge(self, tier: PartitionLog, low: int, *, end_of_log: bool) -> None:
        """Merges the segments of the tier with segments on disks, for the offsets that the tier
        lacks. Sets `log`, `disks`, `notes`, `place` and `is_undecided`.
        """
        disks, branch = self._all_disks, self._branch
        store, (topic, number) = disks.store, self._key
        folder = TopicFolder(topic, self.topic_id, "")
        tier_end = tier.ranges[-1].stop if tier.ranges else 0
        disk = surviving_log(
            self._key, self._replicas, end_of_log=end_of_log, branch=branch, replicated=tier_end
        )
        replica = disk.replica
        recovery = Recovery(store, replica.log_dir, self._key, replica.files)
        on_disk, lost = described(store, folder, number, disk, recovery)
        segments = [segment for segment, _ in on_disk]
        if tier_end > replica.stop:
            # After the disks were copied, segments were uploaded to the tier, and its oldest
            # segments were deleted. No file records this log start yet, because only the next
            # uploaded segment would record it. So begin at the first existing segment.
            low = max(
                low, min([tier.ranges[0].start, *(segment.start_offset for segment in segments)])
            )
        gaps = between(tier.ranges, low, MAX_OFFSET)
        from_disk = [span for gap in gaps for span in _ranges_in_gap(gap, segments)]
        held = sorted([*tier.ranges, *from_disk], key=lambda span: span.start)
        main = ReplicaSource(replica, on_disk, recovery)
        others = [other for other in self._replicas if other is not replica]
        filler = Filler(store, folder, number, branch, main, others, low, disk.stop)
        filled = _replica_ranges(filler, held, low, disk.stop)
        ranges = sorted([*held, *filled], key=lambda span: span.start)
        lost_replicas, remarks = _lost_replicas(disks, folder, number, disk, tier_end)
        lost += lost_replicas
        gone = [
            SegmentRange(e.segment, e.segment.start_offset, e.segment.stop_offset) for e in lost
        ]
        usable = (usable_range(segment, self._lineage) for segment in self._damaged)
        gone += [span for span in usable if span is not None]
        stop = max([low, disk.stop, tier_end, *(span.stop for span in gone)])
        holes, unverifiable = _holes(ranges, gone, low, stop)
        lineage = tuple(entry for entry in self._lineage if entry.start_offset < stop)
        self.log = PartitionLog(
            lineage, low, stop, tuple(ranges), tuple(holes), tier.skipped, tuple(unverifiable)
        )
        folder_uri = store.uri(replica.folder)
        self.disks = DiskPart(folder_uri, replica.log_start, disk.stop, disk.high_watermark)
        self.notes: tuple[Orphan, ...] = (
            *disks.set_aside(self._key),
            *disk.notes,
            *dict.fromkeys(filler.notes),
            *remarks,
            *(Orphan((each.key,), each.reason) for each in lost),
        )
        self.place = replace(self.place, orphans=(*self.place.orphans, *self.notes))
        begins_on_disk = not ranges or ranges[0] in from_disk
        is_decided = begins_on_disk or recovery.records_open_at_start()
        self.is_undecided = not is_decided and any(map(_has_rebuilt_index, from_disk))


def _has_rebuilt_index(span: SegmentRange) -> bool:
    """Returns whether the transaction index of the segment in `span` was rebuilt from the log."""
    index = span.segment.objects.indexes.get(IndexType.TRANSACTION)
    return index is not None and index.content is not None


def _ranges_in_gap(gap: OffsetSpan, segments: Iterable[RemoteSegment]) -> Iterator[SegmentRange]:
    """Yields the range of offsets in `gap` of each segment that has such offsets."""
    for segment in segments:
        start, stop = max(gap.start, segment.start_offset), min(gap.stop, segment.stop_offset)
        if start < stop:
            yield SegmentRange(segment, start, stop)


def _replica_ranges(
    filler: Filler, held: Sequence[SegmentRange], low: int, stop: int
) -> list[SegmentRange]:
    """Returns ranges of other replicas for those offsets of [low, stop) that are in no range of
    `held`.
    """
    return [
        span
        for gap in between(held, low, max(low, stop))
        for piece in filler.fill(gap.start, gap.stop)
        for span in _ranges_in_gap(
            OffsetSpan(piece.start, piece.stop), (segment for segment, _ in piece.segments)
        )
    ]


def _lost_replicas(
    disks: Disks, folder: TopicFolder, partition: int, disk: SurvivingLog, tier_end: int
) -> tuple[list[Lost], list[Orphan]]:
    """Compares the end of the log with the checkpoints of replicas that have no folder. Returns the
    records above the end of the log that a checkpoint shows, which are lost; and a note about each
    replica whose checkpoint shows no such records.
    """
    reach = max(disk.expected_stop, disk.replica.stop, tier_end)
    lost, notes = [], []
    for replica in disks.lost_replicas((folder.topic, partition)):
        if replica.stop > max(reach, replica.start):
            after = replace(disk, expected_stop=max(disk.expected_stop, tier_end))
            lost.append(lost_partition(disks.store, folder, partition, replica, after))
        else:
            text = lost_reason(folder.topic, partition, replica)
            notes.append(Orphan((replica.checkpoint,), text))
    return lost, notes


def _holes(
    ranges: Sequence[SegmentRange], gone: Sequence[SegmentRange], low: int, stop: int
) -> tuple[list[Hole], list[Hole]]:
    """Returns two lists of gaps between the ranges: gaps in which records are missing, and gaps
    that may never have had records.
    """
    holes: list[Hole] = []
    unverifiable: list[Hole] = []
    for gap in between(ranges, low, stop):
        below = [span for span in ranges if span.stop <= gap.start]
        above = [span for span in (*ranges, *gone) if span.stop > gap.start]
        before = below[-1] if below else None
        after = min(above, key=lambda span: (span.start, span.stop)) if above else below[-1]
        hole = Hole(gap.start, gap.stop, None if before is None else before.segment, after.segment)
        existed = any(span.start < gap.stop and span.stop > gap.start for span in gone)
        has_inexact_end = (
            before is not None
            and before.stop == before.segment.stop_offset == gap.start
            and not before.segment.end_is_exact
        )
        (unverifiable if has_inexact_end and not existed else holes).append(hole)
    return holes, unverifiable
