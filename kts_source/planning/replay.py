"""Reads the plan of option `planFile` instead of planning.

The other options must not contradict the plan, and the objects of the plan must be unchanged.
Groups of options:

    error if they differ              the selection, topicId, keyPrefix, layout, catalog,
                                      tail, bounds, isolationLevel, limits on tasks, where (if
                                      the plan skips rows), failOnDataLoss=true
    change the result                 columns, includeHeaders, includeLineage, where and
                                      timestampRange (if the plan skips no rows), and how keys
                                      and values are decoded: the plan contains only byte ranges
    have no effect on the plan        path and its credentials (versions of objects are checked),
                                      keys, checksums, timeouts, caches, limits, metrics
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import (
    DataLossError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectTooLargeError,
    StoreError,
)
from kts_source.options.selection import Assign, Subscribe
from kts_source.planning.bounds import (
    Place,
    check_decided,
    check_named,
    check_no_holes,
    first_offset_at_or_after,
    requested_bounds,
)
from kts_source.planning.scan_plan import ScanPlan
from kts_source.planning.segment_catalog import wanted_topic_id
from kts_source.planning.side_files import SideFiles
from kts_source.planning.slicing import fingerprint
from kts_source.read.segment_source import SegmentSource
from kts_source.secret import scrub
from kts_source.store.joined_store import is_in_additional_store
from kts_source.store.open_store import open_store, scheme_of, storage_of_other_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.options import ScanOptions
    from kts_source.planning.bounds import Progress
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.store.object_store import ObjectStore
    from kts_source.tier import Tier

_THREADS: Final = 16
_MAX_BYTES: Final = 1 << 30
_MAX_SHOWN: Final = 200


def made_with(options: ScanOptions, partitions: Mapping[str, Sequence[int]]) -> Mapping[str, Any]:
    """Returns the options that affect a plan, without those that another field of the plan stores.
    `partitions` has the numbers of all selected partitions by topic, even of partitions without
    data.
    """
    return {
        "partitions": {topic: list(numbers) for topic, numbers in partitions.items()},
        "isolationLevel": options.isolation_level,
        "failOnDataLoss": options.fail_on_data_loss,
        "layout": options.layout,
        "catalog": options.catalog,
        "endOfLog": options.end_of_log,
        "tailPath": bool(options.tail_paths),
        "tail": options.tail,
        "minPartitions": options.min_partitions,
        "maxRecordsPerPartition": options.max_records_per_partition,
        "targetPartitionBytes": options.target_partition_bytes,
        "maxSegmentsPerTask": options.max_segments_per_task,
    }


def replayed(options: ScanOptions, tier: Tier, progress: Progress | None = None) -> ScanPlan:
    """Reads the plan in `planFile`. Checks that the objects of the plan are unchanged and that no
    other option contradicts the plan.

    If `progress` is set, the result has no offsets that the reader already has.

    Raises:
        InvalidOptionError: The file does not exist or is not a plan, or an option contradicts it.
        DataLossError: The plan skips a hole, and `failOnDataLoss` does not allow it.
        OffsetOutOfRangeError: A bound of the options is outside the log that the plan recorded.
        ObjectNotFoundError: An object was deleted.
        ObjectChangedError: An object was replaced.
        StoreError: The file cannot be read.
    """
    name = scrub(options.plan_file or "")
    try:
        plan = ScanPlan.from_json(_read_file(options))
    except InvalidOptionError as error:
        raise InvalidOptionError(f"option 'planFile' ({name}): {error.message}") from None
    except StoreError as error:
        error.message = scrub(f"option 'planFile' ({name}): {error.message}")
        error.uri = None
        raise
    has_disks = options.tail_paths or options.disk_paths
    if not has_disks and any(is_in_additional_store(ref.key) for ref in plan.objects_read()):
        raise InvalidOptionError(
            f"option 'planFile' ({name}): the plan reads brokers' disks at several paths; set"
            " option 'tailPath' (or 'path' with layout 'kafka-logs') to the same paths"
        )
    _check_options(plan, options)
    _check_selection(plan, options)
    clipped = plan
    if progress is not None:
        clipped = plan.from_offsets(
            [progress.first_missing(partition) for partition in plan.partitions]
        )
    _check_objects(clipped, tier.store)
    _check_brokers(clipped, options)
    source = SegmentSource(tier, options.key_ring.loaded())
    side_files = SideFiles(source, max_batch_bytes=options.max_batch_bytes)
    for partition, rest in zip(plan.partitions, clipped.partitions, strict=True):
        location = Place(
            partition.topic, partition.partition, fail_on_data_loss=options.fail_on_data_loss
        )
        _check_bounds(partition, location, options, side_files)
        check_no_holes(location, rest.surviving, rest.start, rest.stop)
    return replace(clipped, columns=options.columns)


def _read_file(options: ScanOptions) -> str:
    """Reads the plan file with the storage options of the tier."""
    assert options.plan_file is not None
    path = options.plan_file
    scheme = scheme_of(path)
    if scheme == "file":
        from kts_source.store.local_store import local_root

        file = local_root(path).resolve()
        root, key = str(file.parent), file.name
    else:
        before, _, query = path.partition("?")
        folder, _, key = before.rpartition("/")
        root = f"{folder}/" if folder.endswith(("/", ":")) else folder
        key = f"{key}?{query}" if query else key
    storage = storage_of_other_path(options.path, path, options.storage)
    with closing(open_store(root, storage, retry_policy=options.fetch.retry_policy)) as store:
        try:
            info = store.head(key)
            if info.size > _MAX_BYTES:
                raise ObjectTooLargeError(
                    f"the object has {info.size} bytes, more than the limit of {_MAX_BYTES} bytes",
                    uri=store.uri(key),
                )
            return bytes(store.get_range(key, 0, info.size, version=info.version)).decode()
        except FileNotFoundError:
            raise InvalidOptionError(
                "the file does not exist; create it with `kts plan --json` or `ScanPlan.to_json`"
            ) from None
        except UnicodeDecodeError:
            raise InvalidOptionError(
                "the file is not a plan, because it is not UTF-8; plan again"
            ) from None


def _contradiction(option: str, value: object, plan: str) -> InvalidOptionError:
    text = str(value)
    shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return InvalidOptionError(
        f"option {option!r} ({shown}) contradicts option 'planFile', whose plan"
        f" {plan[:_MAX_SHOWN]}: remove one of them, or plan again"
    )


def _check_options(plan: ScanPlan, options: ScanOptions) -> None:
    wanted, planned = made_with(options, {}), plan.made_with
    if options.tail_paths and not planned.get("tailPath", False):
        raise _contradiction("tailPath", "given", "was made without disks")
    level = planned["isolationLevel"]
    if level != options.isolation_level:
        raise _contradiction("isolationLevel", options.isolation_level, f"was made with {level}")
    if options.fail_on_data_loss and planned.get("failOnDataLoss", True) is not True:
        raise _contradiction("failOnDataLoss", "true", "was made with false")
    for name in sorted(options.given & wanted.keys() - {"failOnDataLoss"}):
        before = planned.get(name, wanted[name])
        if before != wanted[name]:
            raise _contradiction(name, wanted[name], f"was made with {before}")
    if plan.where not in (None, fingerprint(options.where)):
        where = fingerprint(options.where) or "none"
        raise _contradiction(
            "where", where, f"skips rows that its own condition excludes: {plan.where}"
        )


def _check_selection(plan: ScanPlan, options: ScanOptions) -> None:
    held = {
        (partition.topic, partition.partition): partition.topic_id for partition in plan.partitions
    }
    asked = plan.made_with["partitions"]
    planned = held.keys() | {
        (topic, number) for topic, numbers in asked.items() for number in numbers
    }
    topics = {topic for topic, _ in planned} | asked.keys()
    selection = options.selection
    if isinstance(selection, Assign):
        option, numbers_of = "assign", selection.partitions
        pairs = {(topic, number) for topic, numbers in numbers_of.items() for number in numbers}
        differs = pairs != planned
    else:
        option = "subscribe" if isinstance(selection, Subscribe) else "subscribePattern"
        differs = set(selection.wanted(topics)) != topics
    if differs:
        names = ", ".join(f"{topic}-{number}" for topic, number in sorted(planned)) or "nothing"
        raise _contradiction(option, selection, f"reads {names}")
    for (topic, number), topic_id in held.items():
        wanted = wanted_topic_id(options, topic)
        if wanted not in (None, topic_id):
            raise _contradiction("topicId", wanted, f"reads {topic_id} of {topic}-{number}")
    for partition in plan.partitions:
        if (
            partition.catalog is not None
        ):  # the metadata topic may name objects under other prefixes
            continue
        for span in partition.surviving.ranges:
            key = span.segment.objects.log.key
            if not (key.startswith(options.key_prefix) or is_in_additional_store(key)):
                raise _contradiction("keyPrefix", options.key_prefix, f"reads {key}")
    check_named(options, held.keys(), topics)


def _check_objects(plan: ScanPlan, store: ObjectStore) -> None:
    def check(ref: ObjectRef) -> None:
        info = store.head(ref.key)
        if (info.size, info.version) != (ref.size, ref.version):
            raise ObjectChangedError(
                "the object has changed since the plan was made; plan again", uri=store.uri(ref.key)
            )

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="kts-plan") as pool:
        for _ in pool.map(check, plan.objects_read()):
            pass


def _check_brokers(plan: ScanPlan, options: ScanOptions) -> None:
    """Compares a plan with the cluster. Topic ids must be unchanged, brokers must still have all
    planned offsets, and after a leader change the new leader must have all planned records of the
    previous leader.

    Raises:
        InvalidOptionError: The plan reads from brokers, but option `kafka.bootstrap.servers` is not
            set.
        DataLossError: The cluster lost planned offsets.
        BrokerError: Brokers refuse a request, or do not answer.
    """
    wanted = {
        (partition.topic, partition.partition): (partition, partition.brokers.leader_epoch)
        for partition in plan.partitions
        if partition.brokers is not None
    }
    if not wanted:
        return
    if options.brokers is None:
        raise InvalidOptionError(
            "the plan of option 'planFile' reads from brokers; set option kafka.bootstrap.servers"
        )
    from kts_source.broker.cluster import EARLIEST, Cluster

    with closing(Cluster(options.brokers)) as cluster:
        counts: dict[str, int] = {}
        for partition, _ in wanted.values():
            counts[partition.topic_id] = max(
                partition.partition + 1, counts.get(partition.topic_id, 0)
            )
        topics = cluster.topics({topic for topic, _ in wanted}, counts=counts)
        for (name, number), (partition, _) in wanted.items():
            topic = topics.get(name)
            if topic is None or topic.topic_id != partition.topic_id or number not in topic.leaders:
                now = "is gone" if topic is None else f"has topic id {topic.topic_id}"
                raise _lost(
                    partition,
                    f"the plan reads topic id {partition.topic_id}, but now the topic {now}",
                )
        starts = cluster.offsets(wanted, EARLIEST, read_committed=False)
        for key, (partition, epoch) in wanted.items():
            if partition.start < starts[key] and partition.start < partition.stop:
                raise _lost(
                    partition,
                    f"the plan begins at offset {partition.start}, but the brokers' log now starts"
                    f" at offset {starts[key]}",
                )
            if topics[partition.topic].leaders[partition.partition].epoch == epoch:
                continue
            (end,) = cluster.epoch_ends({key: [epoch]})[key]
            if end.epoch != epoch or end.end_offset < partition.stop:
                raise _lost(
                    partition,
                    f"records were lost in an unclean election: the plan reads leader epoch"
                    f" {epoch} up to offset {partition.stop}, but the leader's log has epoch"
                    f" {end.epoch} up to offset {end.end_offset}",
                )


def _lost(partition: PartitionPlan, text: str) -> DataLossError:
    return DataLossError(
        f"{text}; plan again",
        topic=partition.topic,
        partition=partition.partition,
        offset=partition.start,
    )


def _check_bounds(
    partition: PartitionPlan, location: Place, options: ScanOptions, side_files: SideFiles
) -> None:
    """Resolves the bounds of the options in the log that the plan recorded. Raises
    `InvalidOptionError` if the result differs from the offsets of the plan.
    """
    log = partition.surviving

    def lookup(timestamp_ms: int) -> tuple[PartitionLog, int | None]:
        if partition.brokers is not None:
            raise InvalidOptionError(
                f"{location}: the plan of option 'planFile' also reads from brokers, so a bound by"
                " timestamp cannot be compared with the plan; remove the bound, or plan again"
            )
        offset = first_offset_at_or_after(log, timestamp_ms, side_files)
        ranges = log.ranges
        if ranges and ranges[0].start > log.log_start and offset in (None, ranges[0].start):
            raise InvalidOptionError(
                f"{location}: the plan of option 'planFile' has no segments below offset"
                f" {ranges[0].start}, so a bound by timestamp cannot be compared with the plan;"
                " remove the bound, or plan again"
            )
        return log, offset

    start, stop = requested_bounds(options, location, log, lookup)
    starting, ending = (
        _bound_option_name(options, "starting"),
        _bound_option_name(options, "ending"),
    )
    if starting and start != partition.start:
        raise _contradiction(
            starting, f"offset {start} of {location}", f"begins at {partition.start}"
        )
    if ending and stop != partition.wanted_stop:
        raise _contradiction(
            ending, f"offset {stop} of {location}", f"ends at {partition.wanted_stop}"
        )
    check_decided(options.ending, location, stop, partition.stop, partition.end_reason)


def _bound_option_name(options: ScanOptions, side: str) -> str:
    """Returns the name of the option that sets the bound `side`, which is `starting` or `ending`;
    an empty text if no option sets it.
    """
    names = (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets")
    return next((name for name in names if name in options.given), "")
