"""Reading the plan of option `planFile` instead of making one.

A plan is a value, not a licence: options that say something else are refused, never overridden,
and its objects must be what they were. Which option does what:

    contradicts it where it differs   the selection, topicId, keyPrefix, layout, catalog,
                                      tail, bounds, isolationLevel, where it leaves rows
                                      out, failOnDataLoss=true, and what tasks are cut by
    refines it                        columns, includeHeaders, includeLineage, where and
                                      timestampRange of a plan that leaves no row out, and how
                                      keys and values are decoded: a plan is of bytes
    does not concern it               path and what opens it (versions of objects are checked),
                                      keys, checksums, time-outs, caches, limits, metrics
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import (
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
    requested_bounds,
)
from kts_source.planning.plan_brokers import check_brokers
from kts_source.planning.plan_checks import objects_read
from kts_source.planning.plan_json import plan_from_json
from kts_source.planning.pruning import fingerprint
from kts_source.planning.side_files import SideFiles
from kts_source.planning.timestamps import first_offset_at_or_after
from kts_source.read.segment_source import SegmentSource
from kts_source.secret import scrub
from kts_source.store.joined_store import is_beside
from kts_source.store.open_store import open_store, scheme_of, storage_beside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.options import ScanOptions
    from kts_source.planning.bounds import Progress
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.scan_plan import PartitionPlan, ScanPlan
    from kts_source.store.object_store import ObjectStore
    from kts_source.tier import Tier

_THREADS: Final = 16
_MAX_BYTES: Final = 1 << 30
_SHOWN: Final = 200


def made_with(
    options: ScanOptions, partitions: Mapping[str, Sequence[int]] | None = None
) -> Mapping[str, Any]:
    """What a plan made with these options follows from and does not tell otherwise; `partitions`
    by topic are those that were asked for, also those that hold nothing.
    """
    return {
        "partitions": {topic: list(numbers) for topic, numbers in (partitions or {}).items()},
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
    """The plan in `planFile`, once its objects are known to be what they were.

    It is clipped to what is behind the reader's `progress`.

    Raises:
        InvalidOptionError: The file is not there or holds no plan, or an option says something else
            than the plan.
        DataLossError: The plan passes over a hole, and `failOnDataLoss` does not allow it.
        OffsetOutOfRangeError: A bound lies outside what the tier held then.
        ObjectNotFoundError: An object has gone.
        ObjectChangedError: An object is not what it was.
        StoreError: The file cannot be read.
    """
    name = scrub(options.plan_file or "")
    try:
        plan = plan_from_json(_read(options))
    except InvalidOptionError as error:
        raise InvalidOptionError(f"option 'planFile' ({name}): {error.message}") from None
    except StoreError as error:
        error.message = scrub(f"option 'planFile' ({name}): {error.message}")
        error.uri = None
        raise
    beside = options.tail_paths or options.disk_paths
    if not beside and any(is_beside(ref.key) for ref in objects_read(plan)):
        raise InvalidOptionError(
            f"option 'planFile' ({name}): the plan reads brokers' disks at several paths, so option"
            " 'tailPath', or 'path' with layout 'kafka-logs', must be given as it was"
        )
    _check_options(plan, options)
    _check_selection(plan, options)
    clipped = plan
    if progress is not None:
        clipped = plan.from_offsets([progress.first_missing(part) for part in plan.partitions])
    _check_objects(clipped, tier.store)
    check_brokers(clipped, options)
    source = SegmentSource(tier, options.key_ring.loaded())
    side_files = SideFiles(source, max_batch_bytes=options.max_batch_bytes)
    for part, left in zip(plan.partitions, clipped.partitions, strict=True):
        place = Place(part.topic, part.partition, fail_on_data_loss=options.fail_on_data_loss)
        _check_bounds(part, place, options, side_files)
        check_no_holes(place, left.surviving, left.start, left.stop)
    return replace(clipped, columns=options.columns)


def _read(options: ScanOptions) -> str:
    """The text of the plan file, read with what opens the tier's store."""
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
    storage = storage_beside(options.path, path, options.storage)
    store = open_store(root, storage, retry_policy=options.fetch.retry_policy)
    try:
        found = store.head(key)
        if found.size > _MAX_BYTES:
            raise ObjectTooLargeError(
                f"the object has {found.size} bytes, more than the {_MAX_BYTES} allowed here",
                uri=store.uri(key),
            )
        return bytes(store.get_range(key, 0, found.size, version=found.version)).decode()
    except FileNotFoundError:
        raise InvalidOptionError(
            "there is no such file; `kts plan --json` and `ScanPlan.to_json` make one"
        ) from None
    except UnicodeDecodeError:
        raise InvalidOptionError("not a plan: not UTF-8; make it anew") from None
    finally:
        store.close()


def _contradiction(option: str, given: object, plan: str) -> InvalidOptionError:
    text = str(given)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return InvalidOptionError(
        f"option {option!r} ({shown}) contradicts option 'planFile', whose plan {plan[:_SHOWN]}:"
        f" leave one of them out, or plan anew"
    )


def _check_options(plan: ScanPlan, options: ScanOptions) -> None:
    """Compares what the plan was made with, and tells from the plan what an old file does not."""
    wanted = made_with(options)
    if options.tail_paths and not plan.made_with.get("tailPath", False):
        raise _contradiction("tailPath", "given", "was made without disks")
    settled = any(part.undecided for part in plan.partitions) or any(
        len(piece.aborted) for task in plan.tasks for piece in task.slices
    )
    level = plan.made_with.get("isolationLevel", "read_committed" if settled else None)
    if level is None and "isolationLevel" in options.given and options.read_committed:
        raise _contradiction(
            "isolationLevel", options.isolation_level, "is of a version that does not tell its own"
        )
    if level not in (None, options.isolation_level):
        raise _contradiction("isolationLevel", options.isolation_level, f"was made with {level}")
    if options.fail_on_data_loss and plan.made_with.get("failOnDataLoss", True) is not True:
        raise _contradiction("failOnDataLoss", "true", "was made with false")
    for name in sorted(options.given & wanted.keys() - {"failOnDataLoss"}):
        before = plan.made_with.get(name, wanted[name])
        if before != wanted[name]:
            raise _contradiction(name, wanted[name], f"was made with {before}")
    if plan.where not in (None, fingerprint(options.where)):
        where = fingerprint(options.where) or "none"
        leaves_out = f"leaves out what its own cannot match: {plan.where}"
        raise _contradiction("where", where, leaves_out)


def _check_selection(plan: ScanPlan, options: ScanOptions) -> None:
    held = {(part.topic, part.partition): part.topic_id for part in plan.partitions}
    asked = plan.made_with.get("partitions", {})
    known = held.keys() | {
        (topic, number) for topic, numbers in asked.items() for number in numbers
    }
    topics = {topic for topic, _ in known} | asked.keys()
    selection = options.selection
    if isinstance(selection, Assign):
        option, given = "assign", dict(selection.partitions)
        pairs = {(topic, number) for topic, numbers in given.items() for number in numbers}
        differs = pairs != known
    else:
        option = "subscribe" if isinstance(selection, Subscribe) else "subscribePattern"
        differs = set(selection.wanted(topics)) != topics
    if differs:
        names = ", ".join(f"{topic}-{number}" for topic, number in sorted(known)) or "nothing"
        raise _contradiction(option, selection, f"reads {names}")
    for (topic, number), topic_id in held.items():
        wanted = options.topic_ids.get(topic, options.topic_ids.get(""))
        if wanted not in (None, topic_id):
            raise _contradiction("topicId", wanted, f"reads {topic_id} of {topic}-{number}")
    for part in plan.partitions:
        if part.catalog is not None:  # it may name objects under other prefixes
            continue
        for span in part.surviving.ranges:
            key = span.segment.objects.log.key
            if not (key.startswith(options.key_prefix) or is_beside(key)):
                raise _contradiction("keyPrefix", options.key_prefix, f"reads {key}")
    check_named(options, held.keys(), topics)


def _check_objects(plan: ScanPlan, store: ObjectStore) -> None:
    def check(ref: ObjectRef) -> None:
        info = store.head(ref.key)
        if (info.size, info.version) != (ref.size, ref.version):
            raise ObjectChangedError(
                "the object is not what it was when the plan was made", uri=store.uri(ref.key)
            )

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="kts-plan") as pool:
        for _ in pool.map(check, objects_read(plan)):
            pass


def _check_bounds(
    part: PartitionPlan, place: Place, options: ScanOptions, side_files: SideFiles
) -> None:
    """Resolves the bounds that were given as planning does, in the log that the plan knows."""
    log = part.surviving

    def lookup(timestamp_ms: int) -> tuple[PartitionLog, int | None]:
        if part.brokers is not None:
            raise InvalidOptionError(
                f"{place}: the plan of option 'planFile' reads from brokers too, so a bound by"
                " timestamp cannot be compared with it: leave it out, or plan anew"
            )
        offset = first_offset_at_or_after(log, timestamp_ms, side_files)
        ranges = log.ranges
        if ranges and ranges[0].start > log.log_start and offset in (None, ranges[0].start):
            raise InvalidOptionError(
                f"{place}: the plan of option 'planFile' knows the log from offset"
                f" {ranges[0].start} only; a bound by timestamp cannot be compared with that:"
                " leave it out, or plan anew"
            )
        return log, offset

    start, stop = requested_bounds(options, place, log, lookup)
    starting, ending = _given(options, "starting"), _given(options, "ending")
    if starting and start != part.start:
        raise _contradiction(starting, f"offset {start} of {place}", f"begins at {part.start}")
    if ending and stop != part.wanted_stop:
        raise _contradiction(ending, f"offset {stop} of {place}", f"ends at {part.wanted_stop}")
    check_decided(options.ending, place, stop, part.stop, part.end_reason)


def _given(options: ScanOptions, side: str) -> str:
    """The option that bounds this side; empty where none was given."""
    names = (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets")
    return next((name for name in names if name in options.given), "")
