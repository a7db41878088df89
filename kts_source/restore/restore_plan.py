"""Plans a restore: compares the tier with the new cluster, and lists every reason to refuse. The
plan is stored as a JSON file without credentials.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import InvalidOptionError, ObjectChangedError, TieredKafkaError
from kts_source.layout.aiven import AivenLayout
from kts_source.layout.find_layout import find_layout
from kts_source.options import parse_options
from kts_source.options.selection import Assign
from kts_source.planning.isolation import EndStates
from kts_source.planning.planner import plan_scan
from kts_source.planning.segment_catalog import wanted_topic_id
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from kts_source.restore.journal import MAX_PRODUCER_ID, high_producer_id
from kts_source.restore.target import describe_target, target_settings
from kts_source.store.open_store import scheme_of
from kts_source.texts import some
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kts_source.options import ScanOptions
    from kts_source.planning.lineage import PartitionLog, SegmentRange
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.planning.scan_plan import ScanPlan


PLAN_VERSION: Final = 5
REFUSE, ABORT, CUT = "refuse", "abort", "cut"
UNDECIDED_POLICIES: Final = (REFUSE, ABORT, CUT)
_SERVED_SCHEMES: Final = {"local-tiered-storage": ("file",), AivenLayout.name: ("file", "s3")}
"""Schemes of the stores whose segments a new topic can serve, by layout."""
_OFFSETS_STOP: Final = 1 << 63
_SNAPSHOT_THREADS: Final = 16
_EXPERIMENTAL: Final = (
    "zero copy with Aiven's plugin is experimental: practice with another topic first. The new"
    " cluster needs the same bucket, key.prefix and encryption keys, and it never deletes the logs"
    " and indexes of the old topic ids"
)


@dataclass(frozen=True, slots=True)
class PartitionRestore:
    """The part of a restore that concerns one partition.

    Attributes:
        topic_id: Topic id in the tier.
        target_topic: Topic in the new cluster.
        partition: Partition number in the tier and in the new cluster.
        log_start: First offset that consumers may see.
        stop: One past the last offset to restore.
        tier_stop: One past the last offset of the tier. It is above `stop` if the log is cut.
        resume_at: Minimum offset of the next record. If it is above the end of the restored log, an
            empty batch spans the offsets between them.
        stable_stop: One past the last offset whose transactions are all decided.
        max_epoch: Highest leader epoch in the tier; −1 if the tier records none.
        local_start: First offset to write into the log directory. Brokers serve the offsets below
            it from the segments of the old cluster. Without zero copy, it is `log_start`.
        served: Number of segments below `local_start`.
        segments: Number of segments to copy.
        bytes: Size of the segments to copy in bytes.
        fingerprint: Digest of the names, versions and offset ranges of the segments.
        undecided: Producer id and first offset of each open transaction, oldest first.
    """

    topic: str
    topic_id: str
    target_topic: str
    partition: int
    log_start: int
    stop: int
    tier_stop: int
    resume_at: int
    stable_stop: int
    max_epoch: int
    local_start: int
    served: int
    segments: int
    bytes: int
    fingerprint: str
    undecided: tuple[tuple[int, int], ...]

    @property
    def name(self) -> str:
        """Target topic and partition, as in the name of the partition's folder."""
        return f"{self.target_topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A plan of a restore.

    Attributes:
        plan_id: Random id of the plan.
        source: Paths of the tier.
        node_id: Id of the broker that gets the files; −1 if the replicas are on several brokers.
        target_ids: Topic id of each target topic in the new cluster.
        undecided: Handling of transactions without a known end: one of `UNDECIDED_POLICIES`.
        zero_copy: True if the new cluster serves segments of the old cluster in place.
        partitions: The partitions, ascending by topic and number.
        assigned: Selected partition numbers by topic in the tier. Includes partitions without data.
            Empty if all partitions of the topics are selected.
        refusals: Reasons why the plan must not be executed. Empty if it may be executed.
        notes: Facts that the operator should know.
    """

    plan_id: str
    source: str
    cluster_id: str
    node_id: int
    target_ids: dict[str, str]
    undecided: str
    zero_copy: bool
    partitions: tuple[PartitionRestore, ...]
    assigned: dict[str, list[int]]
    refusals: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def sources(self) -> list[tuple[str, int]]:
        """Topic and number of each partition in the tier."""
        return [(each.topic, each.partition) for each in self.partitions]

    @property
    def source_ids(self) -> dict[str, str]:
        """Topic id of each topic in the tier."""
        return {each.topic: each.topic_id for each in self.partitions}

    def to_json(self) -> str:
        """Returns the content of the plan file. It has a digest, which detects changes by hand."""
        facts = asdict(self)
        head = {"version": PLAN_VERSION, "digest": _digest(facts)}
        return json.dumps({**head, **facts}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> RestorePlan:
        """Parses a plan file.

        Raises:
            InvalidOptionError: The text is not a plan, or it has another version or was changed.
        """
        try:
            facts: dict[str, Any] = json.loads(text)
            version = facts.pop("version")
            if version != PLAN_VERSION:
                raise InvalidOptionError(
                    f"the restore plan has version {version}, but this release reads version"
                    f" {PLAN_VERSION}: create it again with kts restore plan"
                )
            if facts.pop("digest") != _digest(facts):
                raise InvalidOptionError(
                    "the restore plan was changed after it was created: create it again with kts"
                    " restore plan"
                )
            partitions = [
                PartitionRestore(
                    **{**each, "undecided": tuple((pid, at) for pid, at in each["undecided"])}
                )
                for each in facts.pop("partitions")
            ]
            facts |= {name: tuple(facts[name]) for name in ("refusals", "notes")}
            return cls(**facts | {"partitions": tuple(partitions)})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, InvalidOptionError):
                raise
            raise InvalidOptionError(
                f"the file is not a restore plan ({error}): create it with kts restore plan"
            ) from None

    def explain(self) -> str:
        """Returns a description for the operator."""
        lines = [f"restore from {self.source} to broker {self.node_id} of {self.cluster_id}"]
        for each in self.partitions:
            origin = "" if each.topic == each.target_topic else f" from {each.topic}"
            lines.append(
                f"{each.name}{origin}: offsets [{each.log_start}, {each.stop}), next offset at"
                f" least {each.resume_at}, {each.segments} segments, {each.bytes:,} bytes, leader"
                f" epoch {each.max_epoch}, {len(each.undecided)} undecided transactions"
            )
            if each.served:
                lines.append(
                    f"  in place: offsets [{each.log_start}, {each.local_start}) of"
                    f" {each.served} segments that are not copied"
                )
            if each.stop < each.tier_stop:
                lines.append(
                    f"  cut: records at offsets [{each.stop}, {each.tier_stop}) are not restored"
                )
        lines.append(f"total: {sum(each.bytes for each in self.partitions):,} bytes")
        lines += [f"note: {text}" for text in self.notes]
        lines += [f"REFUSED: {text}" for text in self.refusals]
        return "\n".join(lines)


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def read_plan(path: str) -> RestorePlan:
    """Reads a plan file.

    Raises:
        InvalidOptionError: The file cannot be read, or is not a plan of this version.
    """
    try:
        return RestorePlan.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"restore plan {path} cannot be read: {error}") from None


_NOT_ALLOWED: Final = (
    "starting",
    "ending",
    "where",
    "timestamprange",
    "planfile",
    "isolationlevel",
)


def source_options(options: Mapping[str, str]) -> ScanOptions:
    """Returns the checked options of the tier, with the offsets and the isolation level of a
    restore.

    Raises:
        InvalidOptionError: An option is invalid, or limits the offsets, or names brokers.
    """
    for name in options:
        if name.lower().startswith((*_NOT_ALLOWED, "kafka.")):
            raise InvalidOptionError(
                f"option {name!r} is not allowed: a restore reads all offsets of the tier, and no"
                " brokers of the old cluster"
            )
    parsed = parse_options({**options, "isolationLevel": "read_committed"})
    if not parsed.fail_on_data_loss:
        raise InvalidOptionError("option 'failOnDataLoss' must be true for a restore: remove it")
    return parsed


def plan_restore(
    options: Mapping[str, str],
    target: Mapping[str, str],
    *,
    undecided: str = REFUSE,
    rename: Mapping[str, str] | None = None,
    resume_at: Mapping[str, Mapping[int, int]] | None = None,
    zero_copy: bool = False,
) -> RestorePlan:
    """Plans a restore. Changes nothing. Reads batch headers only if `undecided` is `cut`, or if a
    producer snapshot is not usable.

    Args:
        options: Options of the tier.
        target: Options `kafka.*` of the new cluster.
        undecided: Handling of transactions without a known end. `refuse`: the plan refuses to
            restore. `abort`: the transactions are aborted. `cut`: the log ends before the first of
            them, at an offset where no other transaction is open.
        rename: Name in the new cluster, by name in the tier.
        resume_at: Minimum offset of the next record, by topic in the tier and partition.
        zero_copy: If True, the new cluster serves the old segments in place. It must use the same
            folder of `LocalTieredStorage`, or the same bucket and key prefix of Aiven's plugin.

    Raises:
        InvalidOptionError: An option is invalid.
        TieredKafkaError: The tier or the new cluster cannot be read.
    """
    if undecided not in UNDECIDED_POLICIES:
        raise InvalidOptionError(f"undecided is {undecided!r}: use {some(UNDECIDED_POLICIES)}")
    parsed, settings = source_options(options), target_settings(target)
    experimental = _check_can_be_served(parsed) if zero_copy else ()
    scan, errors = plan_source(parsed)
    refusals = sorted(map(str, errors))
    names, resume = rename or {}, resume_at or {}
    _check_arguments([*scan.partitions, *errors], names, resume)
    refusals += _ambiguous_ids({each.topic for each in scan.partitions}, parsed)
    refusals += _high_producer_ids(scan.partitions, parsed)
    cuts = _ends_without_open_transactions(scan.partitions, parsed) if undecided == CUT else {}
    starts = _local_starts(scan.partitions, parsed, cuts) if zero_copy else {}
    partitions = []
    for each in scan.partitions:
        pair, name = (each.topic, each.partition), names.get(each.topic, each.topic)
        at_least = resume.get(each.topic, {}).get(each.partition, 0)
        partitions.append(_partition(each, name, at_least, cuts.get(pair), starts.get(pair)))
        refusals += _refusals(partitions[-1], undecided)
    found = describe_target(settings, partitions, _assigned(parsed), zero_copy=zero_copy)
    plan = RestorePlan(
        plan_id=secrets.token_hex(8),
        source=",".join((parsed.path, *parsed.disk_paths)),
        cluster_id=found.cluster_id,
        node_id=found.node_id,
        target_ids=found.topic_ids,
        undecided=undecided,
        zero_copy=zero_copy,
        partitions=tuple(partitions),
        assigned=_assigned(parsed),
        refusals=(*refusals, *found.refusals),
        notes=(*scan.notes, *found.notes, *experimental),
    )
    return plan if plan.refusals else replace(plan, refusals=_changes(plan, options))


def _assigned(options: ScanOptions) -> dict[str, list[int]]:
    """Returns the partition numbers by topic that option `assign` selects."""
    selection = options.selection
    if not isinstance(selection, Assign):
        return {}
    return {topic: list(numbers) for topic, numbers in selection.partitions.items()}


def _changes(plan: RestorePlan, options: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a refusal if the tier changed since it was planned."""
    try:
        plan_unchanged_tier(plan, options)
    except ObjectChangedError as error:
        return (str(error),)
    return ()


def _unchosen_ids(topics: Iterable[str], options: ScanOptions) -> dict[str, list[str]]:
    """Returns the topic ids with partitions in the tier, for each topic of which the options choose
    none.
    """
    layout = find_layout(options.layout)
    ids = {}
    with closing(open_tier(options)) as tier:
        for topic in sorted(topics):
            if wanted_topic_id(options, topic) is None:
                folders = layout.topic_folders(tier.store, options.key_prefix, topic)
                ids[topic] = [f.topic_id for f in folders if layout.partitions(tier.store, f)]
    return ids


def _ambiguous_ids(topics: set[str], options: ScanOptions) -> list[str]:
    """Returns a refusal for each topic with several topic ids, of which the options choose none."""
    return [
        f"{topic}: the tier has topic ids {', '.join(ids)}, because the topic was created again."
        " Choose the id to restore with --topic-id"
        for topic, ids in _unchosen_ids(topics, options).items()
        if len(ids) > 1
    ]


def _check_arguments(
    planned: Sequence[PartitionPlan | TieredKafkaError],
    names: Mapping[str, str],
    resume: Mapping[str, Mapping[int, int]],
) -> None:
    """Checks that the tier has the named topics and partitions. Partitions with errors count, too,
    because their errors are refusals.
    """
    _check_offsets({(each.topic, each.partition) for each in planned}, resume)
    _check_names({str(each.topic) for each in planned}, names)


def _check_names(topics: set[str], names: Mapping[str, str]) -> None:
    if unknown := sorted(names.keys() - topics):
        raise InvalidOptionError(f"rename names topic {unknown[0]!r}, which the tier does not have")
    if len({names.get(topic, topic) for topic in topics}) < len(topics):
        raise InvalidOptionError("rename gives the same name to two topics: use different names")


def _check_offsets(
    planned: set[tuple[str | None, int | None]], resume: Mapping[str, Mapping[int, int]]
) -> None:
    for topic, numbers in resume.items():
        for number, offset in numbers.items():
            name = f"{topic}-{number}"
            if (topic, number) not in planned:
                raise InvalidOptionError(
                    f"resume-at names {name}, of which the tier has no segment: remove it, and"
                    " create the partition in the new cluster"
                )
            if isinstance(offset, bool) or not 0 <= offset < _OFFSETS_STOP:
                raise InvalidOptionError(f"resume-at of {name} is not an offset: {offset}")


def _check_can_be_served(options: ScanOptions) -> tuple[str, ...]:
    """Raises an error if new topics cannot serve the segments. Returns notes for the operator."""
    if scheme_of(options.path) not in _SERVED_SCHEMES.get(options.layout, ()):
        raise InvalidOptionError(
            "zero copy supports only layout local-tiered-storage in a local folder, and layout"
            f" {AivenLayout.name} in a local folder or S3: restore without zero copy"
        )
    if options.tail_paths or options.fetch.fallback_path:
        raise InvalidOptionError(
            "options 'tailPath' and 'fallbackPath' are not allowed with zero copy, because brokers"
            " cannot serve these segments: restore without zero copy"
        )
    return (_EXPERIMENTAL,) if options.layout == AivenLayout.name else ()


def plan_source(options: ScanOptions) -> tuple[ScanPlan, list[TieredKafkaError]]:
    """Plans the segments to restore. Returns the plan, and the errors of partitions."""
    errors: list[TieredKafkaError] = []
    plan = plan_scan(replace(options, where=None), tasks=False, on_partition_error=errors.append)
    return plan, errors


def fingerprint(plan: PartitionPlan) -> str:
    """Returns a digest of the segments of a partition. It changes if a segment is added, removed or
    replaced.
    """
    facts = [
        [span.segment.segment_id, span.start, span.stop, ref.key, ref.size, ref.version]
        for span in plan.surviving.ranges
        for ref in (span.segment.objects.log,)
    ]
    text = json.dumps([plan.topic_id, plan.surviving.log_start, plan.surviving.stop, facts])
    return hashlib.sha256(text.encode()).hexdigest()


def select_partitions(
    options: Mapping[str, str],
    partitions: Iterable[tuple[str, int]],
    topic_ids: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Returns options of the tier that select only these partitions, because others may have holes.

    Args:
        options: Options of the tier, with any selection.
        partitions: Topics and numbers of the partitions.
        topic_ids: Topic ids to read, because the tier may have a topic under several ids. By
            default, those of `options`.
    """
    replaced = {"subscribe", "subscribepattern", "assign"}
    if topic_ids is not None:
        replaced.add("topicid")
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    return {
        **{name: text for name, text in options.items() if name.lower() not in replaced},
        "assign": json.dumps(numbers),
        **({} if topic_ids is None else {"topicId": json.dumps(dict(topic_ids))}),
    }


def plan_unchanged_tier(
    plan: RestorePlan, options: Mapping[str, str]
) -> dict[tuple[str, int], PartitionPlan]:
    """Plans the selection of a restore again, and checks that the tier has the planned segments and
    no others. Returns the new plan of each partition.

    Args:
        plan: The plan of the restore.
        options: Options of the tier, with any selection.

    Raises:
        ObjectChangedError: The tier has other segments than at the time of the plan, or a topic was
            created again.
    """
    _check_topic_ids(plan, source_options(select_partitions(options, plan.sources)))
    scan, errors = plan_source(source_options(_planned_selection(plan, options)))
    causes = f"; {some(sorted(map(str, errors)))}" if errors else ""
    found = {(each.topic, each.partition): each for each in scan.partitions}
    planned = {(each.topic, each.partition): each.fingerprint for each in plan.partitions}
    for topic, number in sorted(planned.keys() | found.keys()):
        source = found.get((topic, number))
        if source is None or fingerprint(source) != planned.get((topic, number)) or errors:
            raise ObjectChangedError(
                "the tier changed after the restore was planned, perhaps because the old cluster"
                f" still runs: stop it and plan again{causes}",
                topic=topic,
                partition=number,
            )
    return found


def _planned_selection(plan: RestorePlan, options: Mapping[str, str]) -> dict[str, str]:
    """Returns options of the tier with the selection and the topic ids of a plan. Topics that were
    selected as a whole may have got data in more partitions.
    """
    selected = select_partitions(options, plan.sources, plan.source_ids)
    if plan.assigned:
        return {**selected, "assign": json.dumps(plan.assigned)}
    del selected["assign"]
    return {**selected, "subscribe": ",".join(plan.source_ids)}


def _check_topic_ids(plan: RestorePlan, options: ScanOptions) -> None:
    """Checks that no planned topic has another topic id in the tier, except those that the options
    choose. Ids of the new cluster do not count, because it may use the same tier.
    """
    for topic, planned in plan.source_ids.items():
        if (chosen := wanted_topic_id(options, topic)) not in (None, planned):
            raise InvalidOptionError(
                f"{topic}: --topic-id chooses {chosen}, but the plan restores topic id {planned}"
            )
    known = {*plan.source_ids.values(), *plan.target_ids.values()}
    for topic, ids in _unchosen_ids(plan.source_ids, options).items():
        if others := [each for each in ids if each not in known]:
            raise ObjectChangedError(
                "the tier changed after the restore was planned, perhaps because the old cluster"
                f" still runs: the topic was created again with id {', '.join(others)}. Stop the"
                " old cluster and plan again. If the plan was made with --topic-id"
                f" {plan.source_ids[topic]}, use the same option here",
                topic=topic,
            )


def _partition(
    plan: PartitionPlan,
    target_topic: str,
    resume_at: int,
    cut: int | None,
    local_start: int | None,
) -> PartitionRestore:
    surviving = plan.surviving
    stop = surviving.stop if cut is None else cut
    local_start = surviving.log_start if local_start is None else local_start
    copied = [span for span in surviving.ranges if local_start < span.stop and span.start < stop]
    epochs = [entry.epoch for entry in surviving.lineage]
    epochs += [e.epoch for span in surviving.ranges for e in span.segment.leader_epochs]
    return PartitionRestore(
        topic=plan.topic,
        topic_id=plan.topic_id,
        target_topic=target_topic,
        partition=plan.partition,
        log_start=surviving.log_start,
        stop=stop,
        tier_stop=surviving.stop,
        resume_at=max(resume_at, surviving.stop),
        stable_stop=plan.stop,
        max_epoch=max(epochs, default=-1),
        local_start=local_start,
        served=sum(span.stop <= local_start for span in surviving.ranges),
        segments=len(copied),
        bytes=sum(span.segment.objects.size_in_bytes for span in copied),
        fingerprint=fingerprint(plan),
        undecided=tuple((each.producer_id, each.first_offset) for each in plan.undecided),
    )


def _refusals(partition: PartitionRestore, undecided: str) -> list[str]:
    texts = []
    if partition.undecided and undecided == REFUSE:
        first = partition.undecided[0]
        texts.append(
            f"{partition.topic}-{partition.partition}: {len(partition.undecided)} transactions have"
            f" no known end; the first is of producer {first[0]} at offset {first[1]}. Set"
            " --undecided abort to abort them, or cut to end the log before the first of them"
        )
    if partition.max_epoch < 0:
        texts.append(
            f"{partition.topic}-{partition.partition}: the tier records no leader epochs, so the"
            " log has messages of format 0 or 1, which cannot be restored"
        )
    return texts


def _high_producer_ids(plans: Iterable[PartitionPlan], options: ScanOptions) -> list[str]:
    """Returns a refusal for each partition whose last producer snapshot has an id above
    `MAX_PRODUCER_ID`. It has only producers of the last day; `write` checks the ids of all batches.
    """

    def check(plan: PartitionPlan) -> str:
        if not plan.surviving.ranges:
            return ""
        side_files = SideFiles(source, max_batch_bytes=options.max_batch_bytes)
        entries = side_files.snapshot(plan.surviving.ranges[-1].segment) or ()
        for entry in entries:
            if entry.producer_id > MAX_PRODUCER_ID:
                where = f"{plan.topic}-{plan.partition}, offset {entry.last_offset}"
                return f"{where}: {high_producer_id(entry.producer_id)}"
        return ""

    with (
        closing(open_tier(options)) as tier,
        ThreadPoolExecutor(_SNAPSHOT_THREADS, "kts-snapshot") as pool,
    ):
        source = SegmentSource(tier, options.key_ring.loaded())
        return [text for text in pool.map(check, plans) if text]


# -- offsets at which no transaction is open


def _ends_without_open_transactions(
    plans: Iterable[PartitionPlan], options: ScanOptions
) -> dict[tuple[str, int], int]:
    """Returns where to cut each log with undecided transactions, by topic and partition: the
    highest end offset at which no transaction is open.

    Raises:
        TieredKafkaError: A segment or side file cannot be read.
    """
    undecided = [plan for plan in plans if plan.undecided]
    if not undecided:
        return {}
    with _side_files(options) as side_files:
        return {
            (plan.topic, plan.partition): _end_without_open(plan, side_files) for plan in undecided
        }


def _local_starts(
    plans: Iterable[PartitionPlan], options: ScanOptions, ends: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """Returns the offset at which each local log begins if brokers serve the segments below it from
    the tier, by topic and partition: the highest offset between two segments at which no
    transaction is open. It is the log start if there is no such offset.

    A replica that begins at another offset loses the transactions that are open there. Then
    consumers with `read_committed` receive records that were aborted later.

    Args:
        plans: The partitions.
        options: Options of the tier.
        ends: One past the last offset to restore, if this is not the end of the tier.

    Raises:
        TieredKafkaError: A segment or side file cannot be read.
    """
    starts = {}
    with _side_files(options) as side_files:
        for plan in plans:
            log = plan.surviving
            pair = plan.topic, plan.partition
            starts[pair] = _local_start(log, ends.get(pair, log.stop), side_files)
    return starts


@contextmanager
def _side_files(options: ScanOptions) -> Iterator[SideFiles]:
    with closing(open_tier(options)) as tier:
        source = SegmentSource(tier, options.key_ring.loaded())
        yield SideFiles(source, max_batch_bytes=options.max_batch_bytes)


def _local_start(log: PartitionLog, end: int, side_files: SideFiles) -> int:
    count = 0
    while count < len(log.ranges) and _is_served_whole(log.ranges[count], count == 0, end):
        count += 1
    states = EndStates(log, side_files)
    while count and (
        # A new replica begins with this snapshot.
        side_files.snapshot(log.ranges[count - 1].segment) is None or states.open_after(count - 1)
    ):
        count -= 1
    if not count:
        return log.log_start
    # Segments can end before the next one begins, because offsets without records do not count.
    return min(log.ranges[count].start, end) if count < len(log.ranges) else end


def _is_served_whole(span: SegmentRange, is_first: bool, end: int) -> bool:
    """Returns whether a broker can serve a segment: all its offsets up to `end` belong to the log,
    and its largest timestamp, which lookups by time and retention need, is known.
    """
    segment = span.segment
    return (
        span.stop == segment.stop_offset <= end
        and (is_first or span.start == segment.start_offset)
        and segment.objects.size_in_bytes > 0
        and segment.max_timestamp_ms >= 0
    )


def _end_without_open(plan: PartitionPlan, side_files: SideFiles) -> int:
    surviving = plan.surviving
    end = plan.stop
    while end > surviving.log_start:
        ranges = tuple(
            replace(span, stop=min(span.stop, end)) for span in surviving.ranges if span.start < end
        )
        states = EndStates(replace(surviving, ranges=ranges, stop=end), side_files)
        # A transaction that is open at `end` would lose its marker, so the log must end before its
        # first record. Repeat, because another transaction may be open at the new end.
        first = min(states.open_after(len(ranges) - 1).values(), default=end)
        if first >= end:
            return end
        end = first
    return surviving.log_start
