"""Writes the log of every planned partition into the log directory of a stopped broker, and
compares the result with the tier.

`partition_writer.py` writes the files of a partition. This module checks the log directory, renames
the files, and updates two checkpoints of the log directory: the log starts and the recovery points.

Files are written under temporary names, synced and renamed. Only empty files of a new topic are
replaced. Kafka ignores the temporary names.

With zero copy, it also links or copies the files that the new topic needs to serve old segments,
and publishes their events as the last step; see `serving.py`.
"""

from __future__ import annotations

import shutil
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.errors import (
    CorruptSegmentError,
    InvalidOptionError,
    TieredKafkaError,
)
from kts_source.export.tables.target_store import open_target
from kts_source.layout.aiven import AivenLayout
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from kts_source.restore.digests import row_digests
from kts_source.restore.journal import LEVELS, MAX_PRODUCER_ID, Journal
from kts_source.restore.partition_writer import (
    EPOCHS,
    TEMPORARY,
    PartitionWriter,
    give_to_owner,
    sync,
    write_synced,
)
from kts_source.restore.restore_plan import (
    ABORT,
    plan_unchanged_tier,
    read_plan,
    select_partitions,
    source_options,
)
from kts_source.restore.serving import (
    copy_manifests,
    link_objects,
    max_producer_id,
    publish_events,
    served_segments,
)
from kts_source.restore.target import target_settings
from kts_source.store.local_store import local_root
from kts_source.texts import format_bytes, some
from kts_source.tier import open_uncached_tier
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import parse_offset_checkpoint, parse_partition_metadata
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kts_source.options import ScanOptions
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.restore.restore_plan import PartitionRestore, RestorePlan
    from kts_source.restore.serving import ServedSegment

LOG_STARTS: Final = "log-start-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
_OWN: Final = "partition.metadata"
_REPLACED: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


class LogDir:
    """A log directory (`log.dirs`) of a stopped broker.

    Args:
        cluster_id: Id of the cluster that the broker must belong to.

    Raises:
        InvalidOptionError: The folder is not a log directory of this broker.
    """

    def __init__(self, path: str, cluster_id: str, node_id: int) -> None:
        self.path = Path(path)
        properties = self.path / "meta.properties"
        try:
            lines = properties.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOptionError(
                f"{path} is not a formatted log directory: {properties} cannot be read: {error}"
            ) from None
        facts = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
        if (found := facts.get("cluster.id", "")) != cluster_id:
            raise InvalidOptionError(
                f"log directory {path} belongs to cluster {found!r}, but the plan restores into"
                f" cluster {cluster_id!r}: use the log directory of a broker of that cluster"
            )

        if (number := facts.get("node.id", "")) != str(node_id):
            raise InvalidOptionError(
                f"log directory {path} belongs to broker {number}, but the topics of the plan are"
                f" assigned to broker {node_id}: use the log directory of that broker"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock of the log directory, so that no broker can start on it.

        Raises:
            InvalidOptionError: A broker runs on the log directory.
        """
        try:
            import fcntl
        except ImportError:
            raise InvalidOptionError(
                f"log directory {self.path} cannot be locked on this system: use Linux or macOS"
            ) from None
        with (self.path / ".lock").open("ab") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InvalidOptionError(
                    f"log directory {self.path} is in use: stop its broker first"
                ) from None
            give_to_owner(self.path / ".lock")
            yield  # closing the file releases the lock

    def partition(self, name: str, topic_id: str) -> Path:
        """Returns the folder of a partition.

        Raises:
            InvalidOptionError: The folder does not exist, is a symbolic link, or belongs to another
                topic id.
        """
        folder = self.path / name
        if folder.is_symlink():
            raise InvalidOptionError(
                f"{folder} is a symbolic link: move the folder itself into the log directory"
            )
        try:
            found = uuid_to_text(parse_partition_metadata((folder / _OWN).read_bytes()))
        except (OSError, SegmentFormatError) as error:
            raise InvalidOptionError(
                f"{folder} is not a partition of the new cluster: {error}. Assign {name} to this"
                " broker while it runs, and stop the broker. If it has several log.dirs, plan the"
                " partitions of each one separately (option assign). Nothing was written"
            ) from None
        if found != topic_id:
            raise InvalidOptionError(
                f"{folder} belongs to topic id {found}, but the plan restores topic id {topic_id}:"
                " plan again"
            )
        return folder

    def merge_offsets(self, name: str, offsets: Mapping[tuple[str, int], int | None]) -> None:
        """Sets offsets in an offset checkpoint. `None` removes an entry."""
        path = self.path / name
        try:
            merged: dict[tuple[str, int], int | None] = {
                **(parse_offset_checkpoint(path.read_bytes()) if path.exists() else {}),
                **offsets,
            }
        except SegmentFormatError as error:
            raise InvalidOptionError(
                f"offset checkpoint {path} cannot be parsed: {error}"
            ) from None
        kept = {pair: offset for pair, offset in sorted(merged.items()) if offset is not None}
        lines = ["0", str(len(kept)), *(f"{t} {n} {at}" for (t, n), at in kept.items())]
        temporary = path.with_name(name + TEMPORARY)
        write_synced(temporary, "".join(f"{line}\n" for line in lines).encode())
        give_to_owner(temporary)
        temporary.replace(path)
        sync(self.path)


def check_empty(folder: Path) -> None:
    """Checks that a partition's folder has no records and no unknown files. Files with temporary
    names are from an earlier attempt.

    Raises:
        InvalidOptionError: The folder has records or unknown files.
    """
    for path in sorted(folder.iterdir()):
        if path.name in (_OWN, EPOCHS) or path.name.endswith(TEMPORARY):
            continue
        if path.suffix not in _REPLACED or (path.suffix == ".log" and path.lstat().st_size):
            raise InvalidOptionError(
                f"{folder} is not empty: it has {path.name}. Restore into a new topic; nothing was"
                " changed"
            )


def place_files(folder: Path, files: Mapping[str, int]) -> None:
    """Replaces the empty files of a partition by the complete temporary files. Continues after a
    crash of an earlier call.

    Args:
        folder: Folder of the partition.
        files: Size of each file to place, by name.

    Raises:
        InvalidOptionError: A file is missing or has another size, or a log has other records.
    """
    pending = [name for name in files if (folder / (name + TEMPORARY)).exists()]
    for name, size in files.items():
        path = folder / (name + TEMPORARY if name in pending else name)
        found = path.stat().st_size if path.exists() else None
        if found != size:
            raise InvalidOptionError(
                f"{path} has {found} bytes, but the journal records {size}: it was changed after"
                " it was written. Restore into a new topic"
            )
    for path in folder.glob("*.log"):
        if path.stat().st_size and (path.name not in files or path.name in pending):
            raise InvalidOptionError(
                f"{path} has records that the restore did not write: a broker ran before the write"
                " was complete. Restore into a new topic"
            )
    for path in folder.iterdir():
        if path.suffix in _REPLACED and path.name not in files:
            path.unlink()
    for name in pending:
        temporary = folder / (name + TEMPORARY)
        give_to_owner(temporary)
        temporary.replace(folder / name)
    sync(folder)


def write_restore(
    plan_path: str,
    options: Mapping[str, str],
    log_dir: str,
    *,
    target: Mapping[str, str] | None = None,
    on_partition: Callable[[str], object] = lambda name: None,
) -> RestorePlan:
    """Writes the planned partitions. The broker of the log directory must be stopped. Call it again
    with the same arguments to continue after an error or a crash.

    Args:
        plan_path: Path of the plan file. The journal is written next to it.
        options: Options of the tier, as passed to `plan_restore`.
        log_dir: A log directory of the broker that has the only replicas of the target topics.
        target: Options `kafka.*` of the other brokers of the new cluster. Needed if the plan is
            with zero copy.
        on_partition: Called with the name of each partition after it is written.

    Raises:
        InvalidOptionError: The plan was refused, the log directory is not the planned one, a
            partition is not empty, or a broker runs on the log directory.
        ObjectChangedError: The tier changed after the plan.
        CorruptSegmentError: A segment is invalid, or the written rows differ from the tier.
        BrokerError: With zero copy, a broker refuses the events of the served segments.
        TieredKafkaError: The tier cannot be read.
    """
    plan = read_plan(plan_path)
    if plan.refusals:
        raise InvalidOptionError(
            f"the plan is refused: {some(plan.refusals)}. Remove the reasons and plan again"
        )
    settings = target_settings(target or {}) if plan.zero_copy else None
    disk = LogDir(log_dir, plan.cluster_id, plan.node_id)
    # With zero copy, the tier has folders of the same topic under the old and the new id.
    tier = select_partitions(options, plan.sources, plan.source_ids if plan.zero_copy else None)
    parsed = source_options(tier)
    with disk.locked():
        journal = Journal(plan_path, plan)
        folders = _partition_folders(plan, journal, disk)
        sources = plan_unchanged_tier(plan, options)
        if journal.is_complete:
            return plan
        journal.begin(str(disk.path.resolve()))
        _check_space(plan, journal, disk.path, folders)
        with closing(open_uncached_tier(parsed)) as opened:
            source = SegmentSource(opened, parsed.key_ring.loaded())
            for each in plan.partitions:
                _write_partition(source, each, sources, folders[each.name], plan, journal)
                on_partition(each.name)
            served = _served_segments(plan, sources, parsed)
            side_files = SideFiles(source, max_batch_bytes=parsed.max_batch_bytes)
            highest = _max_served_id(side_files, served, journal)
        _check_written(plan, journal, disk, tier, has_served=bool(served))
        if settings is not None:
            _check_placed(plan, journal)
            publish_events(settings, plan, served, max_batch_bytes=parsed.max_batch_bytes)
            journal.add("published", maxProducerId=highest)
    return plan


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turns errors of the disk into errors with advice."""
    try:
        yield
    except TieredKafkaError:  # some errors of the store are also OSErrors
        raise
    except OSError as error:
        raise InvalidOptionError(
            f"{folder} cannot be written: {error}. Remove the cause, such as a full disk, and run"
            " kts restore write again"
        ) from error


def _partition_folders(plan: RestorePlan, journal: Journal, disk: LogDir) -> dict[str, Path]:
    """Returns the folder of each partition. Checks that it is empty, or has what an earlier attempt
    wrote.
    """
    folders = {
        each.name: disk.partition(each.name, plan.target_ids[each.target_topic])
        for each in plan.partitions
    }
    for name, folder in folders.items():
        staged = journal.staged(name)
        if staged is None:
            check_empty(folder)
        elif journal.is_placed(name) and not journal.has("committed"):
            _check_logs(folder, staged["files"])
    return folders


def _check_logs(folder: Path, files: Mapping[str, int]) -> None:
    """Checks that a folder still has the logs that an earlier attempt placed."""
    for name, size in files.items():
        path = folder / name
        found = path.stat().st_size if path.exists() else 0
        if path.suffix == ".log" and found < size:
            raise InvalidOptionError(
                f"{path} has {found} bytes, but the journal records {size}: it was changed after"
                " it was written. Restore into a new topic"
            )


def _check_written(
    plan: RestorePlan, journal: Journal, disk: LogDir, tier: Mapping[str, str], *, has_served: bool
) -> None:
    """Updates the checkpoints of the log directory, and compares the rows with the tier."""
    if not journal.has("written"):
        with _disk_errors(disk.path):
            _merge_checkpoints(plan, journal, disk)
        journal.add("written")
    if not journal.has("checked"):
        written = _written_log(plan, tier, disk.path, has_served=has_served)
        staged = [journal.staged_step(each.name) for each in plan.partitions]
        # The writer has seen all batches, except those that brokers serve from the tier.
        is_plain = not has_served and not any(each["hasTransactions"] for each in staged)
        digests = _checked_digests(
            plan, tier, written, disk.path, LEVELS[:1] if is_plain else LEVELS
        )
        journal.add("checked", digests={**dict.fromkeys(LEVELS, digests[LEVELS[0]]), **digests})


def _check_placed(plan: RestorePlan, journal: Journal) -> None:
    """Raises an error if a broker has written to the restored logs since they were placed."""
    for each in plan.partitions:
        place_files(Path(journal.log_dir) / each.name, journal.staged_step(each.name)["files"])


def _served_segments(
    plan: RestorePlan, sources: Mapping[tuple[str, int], PartitionPlan], options: ScanOptions
) -> list[ServedSegment]:
    """Links or copies the files that the storage plugin needs to serve old segments to the new
    topics. Returns these segments.
    """
    if not plan.zero_copy:
        return []
    served: list[ServedSegment] = []
    for each in plan.partitions:
        topic_id = plan.target_ids[each.target_topic]
        segments = served_segments(each, topic_id, sources[each.topic, each.partition])
        if options.layout == AivenLayout.name:
            with closing(open_target(options.path, options.storage)) as store:
                served += copy_manifests(store, segments, options.key_prefix)
        else:
            link_objects(local_root(options.path), segments, f"{each.name}-{topic_id}")
            served += segments
    return served


def _written_log(
    plan: RestorePlan, tier: Mapping[str, str], folder: Path, *, has_served: bool
) -> dict[str, str]:
    """Returns the options that read the restored topics: the log directory, and with zero copy also
    the new topic ids in the tier.
    """
    pairs = [(each.target_topic, each.partition) for each in plan.partitions]
    if not has_served:
        disk = {"path": str(folder), "layout": "kafka-logs", "endOfLog": "true"}
        return select_partitions(disk, pairs)
    log = {**tier, "endOfLog": "true", "tailPath": str(folder)}
    return select_partitions(log, pairs, plan.target_ids)


def _check_space(
    plan: RestorePlan, journal: Journal, folder: Path, folders: Mapping[str, Path]
) -> None:
    missing = [each for each in plan.partitions if journal.staged(each.name) is None]
    needed = sum(each.bytes for each in missing)
    free = shutil.disk_usage(folder).free
    # The writer replaces the temporary files of a killed attempt.
    leftovers = [file for each in missing for file in folders[each.name].glob(f"*{TEMPORARY}")]
    if needed > free + sum(file.stat().st_size for file in leftovers):
        raise InvalidOptionError(
            f"{folder} has {format_bytes(free)} free, but the restore needs {format_bytes(needed)}:"
            " delete files there, or restore fewer topics per plan"
        )


def _write_partition(
    source: SegmentSource,
    restore: PartitionRestore,
    sources: Mapping[tuple[str, int], PartitionPlan],
    folder: Path,
    plan: RestorePlan,
    journal: Journal,
) -> None:
    if journal.is_placed(restore.name):
        return
    staged = journal.staged(restore.name)
    if staged is None:
        partition = sources[restore.topic, restore.partition]
        with _disk_errors(folder):
            writer = PartitionWriter(folder, restore, partition, plan.undecided)
            try:
                writer.write(source)
            except CorruptSegmentError:
                if writer.max_producer_id > MAX_PRODUCER_ID:
                    journal.add("refused", topic=restore.topic)
                raise
        staged = journal.add(
            "staged",
            partition=restore.name,
            end=writer.end,
            maxProducerId=writer.max_producer_id,
            hasTransactions=writer.has_transactions,
            files=writer.files,
        )
    with _disk_errors(folder):
        place_files(folder, staged["files"])
    journal.add("placed", partition=restore.name)


def _max_served_id(side_files: SideFiles, served: Sequence[ServedSegment], journal: Journal) -> int:
    try:
        return max_producer_id(side_files, served)
    except CorruptSegmentError as error:
        journal.add("refused", topic=error.topic)
        raise


def _merge_checkpoints(plan: RestorePlan, journal: Journal, target: LogDir) -> None:
    starts: dict[tuple[str, int], int | None] = {}
    ends: dict[tuple[str, int], int | None] = {}
    for each in plan.partitions:
        staged = journal.staged_step(each.name)
        pair = each.target_topic, each.partition
        first = min(int(name[:20]) for name in staged["files"] if name.endswith(".log"))
        # A broker with tiered storage does not begin at the first local segment by default.
        is_needed = plan.zero_copy or each.log_start > first
        starts[pair] = each.log_start if is_needed else None
        ends[pair] = staged["end"]
    target.merge_offsets(LOG_STARTS, starts)
    target.merge_offsets(RECOVERY_POINTS, ends)


def _checked_digests(
    plan: RestorePlan,
    tier: Mapping[str, str],
    written_log: Mapping[str, str],
    folder: Path,
    levels: Sequence[str],
) -> dict[str, dict[str, str]]:
    """Compares the restored rows with the rows of the tier, and returns the digests of the restored
    rows by isolation level. Without transactions, one level is enough.

    In `read_committed`, rows from the first transaction without a known end on are not compared,
    because a read of the tier ends before them.
    """
    digests = {}
    for level in levels:
        disk = {**written_log, "isolationLevel": level}
        digests[level] = row_digests(disk)
        is_partial = plan.undecided == ABORT and level == "read_committed"
        stops = {
            each.name: each.stable_stop if is_partial else each.stop for each in plan.partitions
        }
        written = row_digests(disk, stops=stops) if is_partial else digests[level]
        names = {f"{e.topic}-{e.partition}": e.name for e in plan.partitions}
        source = row_digests(
            {**tier, "isolationLevel": level},
            stops={old: stops[new] for old, new in names.items()},
        )
        for old, new in names.items():
            if source.get(old) != written.get(new):
                raise CorruptSegmentError(
                    f"{folder / new}: rows on the disk ({level}) differ from rows in the tier:"
                    f" {written.get(new, '0 rows')}, but the tier has {source.get(old, '0 rows')}."
                    " Do not start the broker on this log directory; report this error"
                )
    return digests
