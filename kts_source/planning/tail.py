"""Plans a scan of a tier and the disks of brokers that are gone."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kts_source.errors import (
    InvalidOptionError,
    TieredKafkaError,
    TierNotFoundError,
    TopicNotFoundError,
)
from kts_source.layout.find_layout import find_layout
from kts_source.layout.kafka_logs.kafka_logs import Disks
from kts_source.layout.kafka_logs.recovered_segments import lost_reason
from kts_source.layout.layout import TopicFolder
from kts_source.options.selection import Assign, Subscribe
from kts_source.planning.assemble import PlannedPartition, assembled
from kts_source.planning.bounds import Place, check_named, requested_bounds
from kts_source.planning.discover import discover
from kts_source.planning.isolation import Decisions, decide
from kts_source.planning.partial_log import PartitionView
from kts_source.planning.plan_log import plan_log
from kts_source.planning.segment_catalog import PLANNING_THREADS, SegmentCatalog
from kts_source.planning.side_files import SideFiles
from kts_source.planning.tail_log import TailLog, Tiered, tail_log
from kts_source.planning.timestamps import first_offset_at_or_after
from kts_source.read.segment_source import SegmentSource
from kts_source.store.joined_store import beside
from kts_source.texts import printable, some

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.bounds import Progress
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.tier import Tier

log = logging.getLogger(__name__)

_HOLDER = "the tier with the disks"


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic of tier or disks.

    Attributes:
        listed: What the tier has of its partitions.
        on_disks: Partitions with a replica.
        asked: Partitions that were asked for.
        notes: What a reader should know.
    """

    topic: str
    topic_id: str
    listed: Mapping[int, ListedPartition]
    on_disks: frozenset[int]
    asked: tuple[int, ...]
    notes: tuple[str, ...]


def planned_with_disks(options: ScanOptions, tier: Tier, progress: Progress | None) -> ScanPlan:
    """Plans one scan of a tier and disks.

    Raises:
        TieredKafkaError: See `discover`, `tail_log` and `plan_log`.
    """
    key_ring = options.key_ring.loaded()
    with (
        ThreadPoolExecutor(PLANNING_THREADS, "kts-describe") as describing,
        ThreadPoolExecutor(PLANNING_THREADS, "kts-plan") as pool,
    ):
        catalog = SegmentCatalog(
            tier,
            find_layout(options.layout),
            describing,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        disks = Disks(tier.store, map(beside, range(len(options.tail_paths))))
        if disks.without:
            names = ", ".join(tier.store.uri(root) for root in disks.without)
            raise TierNotFoundError(
                f"option 'tailPath': no log directory of a broker at {names}: a folder with"
                " meta.properties, checkpoints or partitions, or one or two folders above it"
            )
        topics = _topics(options, catalog, disks, pool)
        places = [
            (topic, number)
            for topic in topics
            for number in topic.asked
            if number in topic.listed
            or number in topic.on_disks
            or disks.lost_replicas((topic.topic, number))
        ]
        held = {(topic.topic, number) for topic, number in places}
        check_named(options, held, {topic.topic for topic in topics})
        catalog.expect(len(places))

        def plan(place: tuple[_Topic, int]) -> PlannedPartition | None:
            topic, number = place
            part = topic.listed.get(number)
            source = SegmentSource(tier, key_ring, pack=part.side_files if part else None)
            side_files = SideFiles(source, max_batch_bytes=options.max_batch_bytes)
            try:
                return _plan_partition(options, topic, number, disks, side_files, progress)
            except TieredKafkaError as error:
                raise error.located(topic=topic.topic, partition=number) from error.__cause__
            finally:
                if part is not None:
                    part.save()

        planned = [one for one in pool.map(plan, places) if one is not None]
    return assembled(
        options,
        planned,
        [*(note for topic in topics for note in topic.notes), *tier.store.remarks],
        {topic.topic: topic.asked for topic in topics},
    )


def _topics(
    options: ScanOptions, catalog: SegmentCatalog, disks: Disks, pool: Executor
) -> list[_Topic]:
    """The selected topics of tier and disks, in order of their names."""
    folders = catalog.layout.topic_folders(catalog.store, options.key_prefix, None)
    on_disks = options.selection.wanted(disks.topics())
    disk_ids = {name: disks.topic_ids(name) for name in on_disks if name in disks.topics()}
    tiered = {
        folder.topic
        for folder in folders
        if (wanted := _wanted_id(options, folder.topic)) in (None, folder.topic_id)
        or wanted not in disk_ids.get(folder.topic, ())
    }
    available = tiered | disks.topics()
    names = sorted(options.selection.wanted(available))
    missing = [name for name in names if name not in available]
    if missing or not names:
        what = f"no topic {', '.join(map(repr, missing))}" if missing else "no topic matches"
        remains = sorted(disks.remains().intersection(missing))
        also = f"; checkpoints or folders set aside there name {some(remains)}" if remains else ""
        raise TopicNotFoundError(
            f"{what} in the tier at {catalog.store.uri(options.key_prefix)}, nor in the log"
            f" directories of option 'tailPath'{also}; there are"
            f" {some(sorted(available)) or 'none'}"
        )
    here = tuple(name for name in names if name in tiered)
    found = {}
    if here:
        # What the tier lacks may be on the disks, so it is looked for there first.
        every = replace(options, selection=Subscribe(here), fail_on_data_loss=False)
        found = {topic.topic: topic for topic in discover(every, catalog, pool)}
    topics = []
    for name in names:
        ids = disk_ids.get(name, frozenset())
        if name in found:
            topic_id = found[name].topic_id
            listed = {part.partition: part for part in found[name].partitions}
            notes = list(found[name].notes)
        else:
            topic_id, listed, notes = _only_on_disks(options, name, ids), {}, []
            where = catalog.store.uri(options.key_prefix)
            notes.append(f"topic {name}: nothing in the tier at {where}; all of it is on disks")
        if ids and topic_id not in ids:
            raise InvalidOptionError(
                f"topic {name!r} has topic id {topic_id} in the tier and {', '.join(sorted(ids))}"
                " on the disks of option 'tailPath': it was deleted and created again, and they are"
                " of different ones; choose with option 'topicId', or leave 'tailPath' out"
            )
        replicas = _with_replica(disks, name, topic_id)
        asked: Sequence[int] = sorted({*listed, *disks.partitions(name, topic_id)})
        if isinstance(options.selection, Assign):
            asked = options.selection.partitions[name]
        elsewhere = {number for other in ids for number in _with_replica(disks, name, other)}
        if lost := sorted(elsewhere - replicas):
            notes.append(f"topic {name}: on disks, partitions {lost} are of another topic id only")
        empty = [number for number in asked if number not in listed and number not in replicas]
        notes += _remains(disks, name, topic_id, empty)
        topics.append(_Topic(name, topic_id, listed, replicas, tuple(asked), tuple(notes)))
    return topics


def _remains(disks: Disks, topic: str, topic_id: str, empty: Sequence[int]) -> Iterator[str]:
    """Yields notes of partitions that neither tier nor disks have, and of folders set aside."""
    if empty:
        aside = [orphan for number in empty for orphan in disks.set_aside((topic, number))]
        note = f"topic {topic}: partitions {empty} are neither in the tier nor on disks"
        yield f"{note}, but {some(map(str, aside))}" if aside else note
    if others := disks.aside_of_others(topic, topic_id):
        yield f"topic {topic}: not read, of no partition in use: {some(map(str, others))}"


def _with_replica(disks: Disks, topic: str, topic_id: str) -> frozenset[int]:
    """Returns the partitions of a topic id that have a replica in use."""
    numbers = disks.partitions(topic, topic_id)
    return frozenset(one for one in numbers if disks.has_replica((topic, one), topic_id))


def _wanted_id(options: ScanOptions, topic: str) -> str | None:
    return options.topic_ids.get(topic, options.topic_ids.get(""))


def _only_on_disks(options: ScanOptions, topic: str, ids: Iterable[str]) -> str:
    """The incarnation of a topic that the tier does not have."""
    known = sorted(ids)
    wanted = _wanted_id(options, topic)
    if wanted is not None and wanted not in known:
        raise InvalidOptionError(
            f"option 'topicId': topic {topic!r} has no id {wanted}; the disks have"
            f" {', '.join(known)}"
        )
    if wanted is None and len(known) > 1:
        raise InvalidOptionError(
            f"topic {topic!r} has several topic ids on the disks ({', '.join(known)}), and nothing"
            " tells which is newest: choose with option 'topicId'"
        )
    return wanted or known[0]


@dataclass(frozen=True, slots=True)
class _WholeLog:
    """A log of which all is known; see `LogView`."""

    log: PartitionLog
    unknown_lineage: RemoteSegment | None
    contradiction: str | None
    side_files: SideFiles

    def covering(self, start: int, stop: int) -> PartitionLog:
        """All of it."""
        del start, stop
        return self.log

    def decided(self, start: int, stop: int) -> tuple[PartitionLog, Decisions]:
        """See `LogView`."""
        return self.log, decide(self.log, start, stop, self.side_files)

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """See `LogView`."""
        return first_offset_at_or_after(self.log, timestamp_ms, self.side_files)


def _plan_partition(
    options: ScanOptions,
    topic: _Topic,
    number: int,
    disks: Disks,
    side_files: SideFiles,
    progress: Progress | None,
) -> PlannedPartition | None:
    part = topic.listed.get(number)
    orphans = () if part is None else part.orphans
    place = Place(topic.topic, number, orphans, options.fail_on_data_loss)
    if number not in topic.on_disks:
        partition = topic.topic, number
        remains = [*map(str, disks.set_aside(partition))]
        remains += [
            f"{disks.store.uri(gone.checkpoint)}: {lost_reason(*partition, gone)}"
            for gone in disks.lost_replicas(partition)
        ]
        place.raise_or_warn(
            f"no log directory of option 'tailPath' holds a replica of topic id {topic.topic_id},"
            f" so what was not tiered is lost{''.join(f'; {text}' for text in remains)};"
            " failOnDataLoss=false reads what the tier has"
        )
    goes_on = None
    if progress is not None:
        goes_on = progress.bounds_of(topic.topic, topic.topic_id, number)
    bounds_of = goes_on or partial(requested_bounds, options, place)
    if number not in topic.on_disks:
        if part is None:
            return None
        alone = PartitionView(part, side_files, in_part=False)
        if alone.is_empty:
            return None
        return plan_log(options, place, topic.topic_id, side_files, alone, bounds_of)
    found = tail_log(
        disks,
        TopicFolder(topic.topic, topic.topic_id, ""),
        number,
        Tiered() if part is None else Tiered(part.all(), part.damaged()),
        side_files,
        end_of_log=options.end_of_log,
    )
    notes = (*disks.set_aside((topic.topic, number)), *found.notes)
    for note in notes:
        log.warning("%s: not read: %s", place, printable(str(note)))
    place = replace(
        place, orphans=(*orphans, *notes), holder=_HOLDER, beyond="above the end of the log"
    )
    bounds_of = goes_on or partial(requested_bounds, options, place)
    _check_decided(options, place, found)
    view = _WholeLog(found.log, found.unknown_lineage, found.contradiction, side_files)
    return plan_log(options, place, topic.topic_id, side_files, view, bounds_of, found.disks)


def _check_decided(options: ScanOptions, place: Place, found: TailLog) -> None:
    """Raises `DataLossError`, or warns, where a disk was recovered without knowing which of the
    tier's transactions were open at its first segment.
    """
    segment = found.not_decided
    if segment is not None and options.read_committed:
        place.raise_or_warn(
            f"no producer snapshot is sound at the first segment of {found.disks.folder}, so"
            " nothing tells which transactions were open there, and whether the disk ended them;"
            " failOnDataLoss=false takes it that none was open"
        )
