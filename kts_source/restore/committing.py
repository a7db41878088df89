"""Compares restored topics on the brokers with the restored log directory, and hands them over to
producers and consumers: producer ids, offsets of groups, and configurations.

The new cluster assigns producer ids from 0 on, but the restored log has ids of the old cluster. A
replica that has seen such an id rejects the new producer that gets it. So ids up to the highest old
id are used up on every broker.

The old configurations are in the metadata log on the disk of an old controller. This log is the
folder `__cluster_metadata-0`: the newest snapshot (`.checkpoint`), and the segments after it.
"""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kts_source.broker.cluster import EARLIEST, LATEST, Cluster, topic_configs
from kts_source.broker.connection import PASSING, LostConnectionError, refusal
from kts_source.errors import (
    BrokerError,
    BrokerUnavailableError,
    CorruptSegmentError,
    InvalidOptionError,
)
from kts_source.planning.metadata_topic import REMOTE_LOG_METADATA
from kts_source.restore.digests import row_digests
from kts_source.restore.journal import LEVELS, MAX_PRODUCER_ID, Journal
from kts_source.restore.permissions import check_commit
from kts_source.restore.restore_plan import (
    plan_unchanged_tier,
    read_plan,
    select_partitions,
)
from kts_source.restore.target import REQUIRED_CONFIGS, ZERO_COPY_CONFIGS, target_settings
from kts_source.texts import some
from segment_format.errors import SegmentFormatError
from segment_format.kafka_uuid import uuid_from_text
from segment_format.metadata.topic_configs import topic_configs as recorded_configs
from segment_format.record.records import iter_batches
from segment_format.record.recovery import WholeBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kts_source.broker.cluster import ClusterTopic
    from kts_source.restore.restore_plan import RestorePlan
    from segment_format.record.records import DecodedBatch


def verify_restore(plan_path: str, target: Mapping[str, str]) -> list[str]:
    """Reads the restored topics from the brokers that lead them now, and compares every row, log
    start, end and leader epoch. Changes only the journal.

    Args:
        plan_path: Path of the plan file.
        target: Options `kafka.*` of the new cluster.

    Returns:
        The differences. If there are none, the journal records the step `verified`.

    Raises:
        InvalidOptionError: The restore is not written.
        TieredKafkaError: The brokers cannot be read.
    """
    plan = read_plan(plan_path)
    journal = Journal(plan_path, plan)
    if not journal.is_complete:
        raise InvalidOptionError(f"the restore is not complete: {status_restore(plan_path)[-1]}")
    differences = list(_offset_differences(plan, journal, target))
    for level in LEVELS:
        pairs = [(each.target_topic, each.partition) for each in plan.partitions]
        brokers = select_partitions(target, pairs)
        found = row_digests({**brokers, "isolationLevel": level})
        for each in plan.partitions:
            expected = journal.digests[level].get(each.name, "no rows")
            if found.get(each.name, "no rows") != expected:
                differences.append(
                    f"{each.name} ({level}): the brokers have"
                    f" {found.get(each.name, 'no rows')}, but the restore wrote {expected}"
                )
    if not differences:
        journal.add("verified")
    return differences


def _offset_differences(
    plan: RestorePlan, journal: Journal, target: Mapping[str, str]
) -> Iterator[str]:
    with closing(Cluster(target_settings(target))) as cluster:
        topics = _planned_topics(cluster, plan)
        pairs = [(each.target_topic, each.partition) for each in plan.partitions]
        starts = cluster.offsets(pairs, EARLIEST, read_committed=False)
        ends = cluster.offsets(pairs, LATEST, read_committed=False)
        stable = cluster.offsets(pairs, LATEST, read_committed=True)
        for each, pair in zip(plan.partitions, pairs, strict=True):
            staged = journal.staged_step(each.name)
            expected = {
                "log start": (starts[pair], each.log_start),
                "end": (ends[pair], staged["end"]),
                "last stable offset": (stable[pair], staged["end"]),
            }
            for what, (found, wanted) in expected.items():
                if found != wanted:
                    yield f"{each.name}: {what} is {found}, but the restore wrote {wanted}"
            leader = topics[each.target_topic].leaders[each.partition]
            if leader.epoch <= each.max_epoch:
                yield (
                    f"{each.name}: leader epoch {leader.epoch} is not above leader epoch"
                    f" {each.max_epoch} of the old cluster"
                )


def _planned_topics(cluster: Cluster, plan: RestorePlan) -> dict[str, ClusterTopic]:
    """Returns the topics of the new cluster by name, and checks that they have the planned ids."""
    topics = cluster.topics(plan.target_ids)
    for name, topic_id in plan.target_ids.items():
        if name not in topics or topics[name].topic_id != topic_id:
            raise InvalidOptionError(
                f"topic {name} of the new cluster does not have the planned topic id {topic_id}: it"
                " was deleted or created again. Restore it with a new plan"
            )
    return topics


def status_restore(plan_path: str) -> list[str]:
    """Returns the finished steps of a restore, and the next step as the last line.

    Raises:
        InvalidOptionError: The plan or the journal cannot be read.
    """
    plan = read_plan(plan_path)
    journal = Journal(plan_path, plan)
    if plan.refusals:
        return [f"refused: {text}" for text in plan.refusals] + ["next: plan again"]
    if not journal.steps:
        return [
            "planned: nothing is written",
            f"next: stop broker {plan.node_id}, then kts restore write",
        ]
    lines = [f"log directory: {journal.log_dir}"]
    placed = [each.name for each in plan.partitions if journal.is_placed(each.name)]
    lines.append(f"written: {len(placed)} of {len(plan.partitions)} partitions")
    if journal.has("checked"):
        lines.append("the log directory has the rows of the tier")
    elif journal.has("written"):
        lines.append("the rows of the log directory are not compared with the tier")
    if journal.refused_topic:
        return [*lines, *_refused_write(plan, journal.refused_topic, has_placed=bool(placed))]
    if not journal.is_complete:
        if journal.has("checked"):
            lines.append(f"the segments are not announced in {REMOTE_LOG_METADATA}")
        return [
            *lines,
            "next: run kts restore write again with the same arguments; do not start broker"
            f" {plan.node_id} before it is complete",
        ]
    if not journal.has("verified"):
        return [*lines, f"next: start broker {plan.node_id}, then kts restore verify"]
    lines.append("verified: the brokers have the same rows, log starts and ends")
    if journal.has("committed"):
        return [*lines, "committed", "next: nothing; producers and consumers may start"]
    if journal.has("committing"):
        return [
            *lines,
            "commit is not complete: it may have committed offsets and set configurations",
            "next: run kts restore commit again with the same arguments; do not start producers and"
            " consumers before it is complete",
        ]
    return [*lines, "next: move the partitions to their brokers, then kts restore commit"]


def _refused_write(plan: RestorePlan, topic: str, *, has_placed: bool) -> list[str]:
    anew = (
        f"start broker {plan.node_id}, delete the topics of the plan and create them again, then "
        if has_placed
        else ""
    )
    return [
        f"refused: {topic} has a producer id above {MAX_PRODUCER_ID:,}",
        f"next: {anew}plan again without topic {topic}",
    ]


_TOPIC: Final = 2
_SET: Final = 0
_GROUP: Final = 0
_PIPELINED: Final = 100
_PATIENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.2
_UNKNOWN_MEMBER: Final = 25
_COORDINATOR_MOVES: Final = frozenset({14, 15, 16})


def commit_restore(
    plan_path: str,
    target: Mapping[str, str],
    *,
    configs: Mapping[str, str],
    groups: Mapping[str, Mapping[str, Mapping[int, int]]],
    metadata_log: str | None = None,
    source: Mapping[str, str] | None = None,
) -> list[str]:
    """Verifies the restored topics again, and then prepares them for producers and consumers. Call
    it when the partitions are on their final brokers, and before producers and consumers start. It
    may be repeated.

    Args:
        plan_path: Path of the plan file.
        target: Options `kafka.*` of the new cluster.
        configs: Configurations that the restored topics get, by name.
        groups: Committed offsets: by group, topic in the tier, and partition.
        metadata_log: Log directory of an old controller. If given, the topics also get the
            configurations that they had in the old cluster, except those in `configs`.
        source: Options of the tier. If given, the commit is refused if the tier changed after the
            plan.

    Returns:
        The changes, as texts for the operator.

    Raises:
        InvalidOptionError: The restore is not written, the brokers have other rows, a group or
            configuration is invalid, or the metadata log does not have the topics.
        CorruptSegmentError: The metadata log is invalid.
        BrokerAccessError: Permissions are missing. This call changed nothing.
        ObjectChangedError: The tier changed after the plan. Nothing was changed.
        BrokerError: The cluster refuses a request.
    """
    plan = read_plan(plan_path)
    journal = Journal(plan_path, plan)
    offsets, report = clamped_offsets(plan, journal, groups)
    old = {} if metadata_log is None else old_configs(plan, metadata_log)
    highest = journal.max_producer_id
    with closing(Cluster(target_settings(target))) as cluster:
        check_commit(
            cluster,
            plan.target_ids,
            offsets,
            sets_configs=bool(configs or old),
            needs_producer_ids=highest >= 0,
        )
    if journal.has("committing"):
        # Retention and compaction may already remove rows, if the commit before has set them.
        report.append("the rows were compared before the commit began, and are not compared again")
        if source is not None:
            report.append("the tier is not checked, because a commit began before")
    else:
        _check_verified(plan_path, target)
        report += _tier_report(plan, source)
        journal = Journal(plan_path, plan)
        journal.add("committing")
    report += _hand_over(plan, target, highest, offsets, old, configs)
    journal.add("committed")
    return report


def _check_verified(plan_path: str, target: Mapping[str, str]) -> None:
    if differences := verify_restore(plan_path, target):
        raise InvalidOptionError(
            f"the restore is not verified: {some(differences)}. Nothing was committed; restore into"
            " new topics"
        )


def _hand_over(
    plan: RestorePlan,
    target: Mapping[str, str],
    max_producer_id: int,
    offsets: Mapping[str, Mapping[tuple[str, int], int]],
    old: Mapping[str, Mapping[str, str]],
    configs: Mapping[str, str],
) -> list[str]:
    """Changes the new cluster. Returns the changes."""
    with closing(Cluster(target_settings(target))) as cluster:
        _planned_topics(cluster, plan)
        for node in cluster.nodes:
            raise_producer_ids(cluster, node, max_producer_id)
        report = [f"producer ids up to {max_producer_id} are not assigned again"]
        for group, committed in sorted(offsets.items()):
            commit_offsets(cluster, group, committed)
            report.append(f"group {group}: {len(committed)} offsets committed")
        known, lines = known_configs(cluster, plan, old, configs)
        wanted = {topic: {**known.get(topic, {}), **configs} for topic in sorted(plan.target_ids)}
        set_configs(cluster, wanted)
    return [
        *report,
        *lines,
        *(
            f"{topic}: configurations set: {', '.join(sorted(values))}"
            for topic, values in wanted.items()
            if values
        ),
    ]


def _tier_report(plan: RestorePlan, source: Mapping[str, str] | None) -> list[str]:
    """Checks that the tier is unchanged. Returns a line if it cannot be checked."""
    if source is None:
        return ["the tier was not checked for new segments of the old cluster: PATH is missing"]
    plan_unchanged_tier(plan, source)
    return []


def clamped_offsets(
    plan: RestorePlan,
    journal: Journal,
    groups: Mapping[str, Mapping[str, Mapping[int, int]]],
) -> tuple[dict[str, dict[tuple[str, int], int]], list[str]]:
    """Moves committed offsets outside a restored log to its start or end. Returns the offsets to
    commit, by group and target partition, and a line for each offset that is moved or not
    committed.
    """
    restored = {(each.topic, each.partition): each for each in plan.partitions}
    offsets: dict[str, dict[tuple[str, int], int]] = {}
    report = []
    for group, topics in groups.items():
        for topic, numbers in topics.items():
            for number, offset in numbers.items():
                each = restored.get((topic, number))
                if each is None:
                    report.append(
                        f"group {group}, {topic}-{number}: offset {offset} is not committed,"
                        " because the plan does not restore this partition"
                    )
                    continue
                end = journal.staged_step(each.name)["end"]
                inside = min(max(offset, each.log_start), end)
                if inside != offset:
                    report.append(
                        f"group {group}, {each.name}: offset {offset} is outside the restored log"
                        f" [{each.log_start}, {end}), so {inside} is committed"
                    )
                offsets.setdefault(group, {})[each.target_topic, number] = inside
    return offsets, report


def raise_producer_ids(cluster: Cluster, node: int, highest: int) -> None:
    """Uses up the producer ids that a broker would assign, until they are above `highest`. Needs
    the permission IdempotentWrite on the cluster, or Write on a topic.

    Raises:
        BrokerError: The broker refuses the request.
        BrokerUnavailableError: The broker does not answer.
    """
    from kafka.protocol.producer.transaction import InitProducerIdRequest

    def request() -> Any:  # noqa: ANN401  # kafka-python's message
        return InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
            version=4,
        )

    assigned = -1
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while assigned < highest:
        try:
            connection = cluster.connection(node)
            pending = [
                connection.send(request()) for _ in range(min(_PIPELINED, highest - assigned))
            ]
            answers = [connection.receive(each) for each in pending]
        except LostConnectionError as error:
            raise BrokerUnavailableError(
                f"broker {node} does not answer while its producer ids are raised: {error}. Start"
                " it, and run kts restore commit again"
            ) from None
        codes = {answer.error_code for answer in answers} - {0}
        assigned = max([assigned, *(a.producer_id for a in answers if not a.error_code)])
        if not codes:
            deadline = time.monotonic() + _PATIENCE_SECONDS
        elif not codes <= PASSING | _COORDINATOR_MOVES or time.monotonic() > deadline:
            raise refusal(min(codes)).extended(f" (broker {node}, InitProducerId)")
        else:
            time.sleep(_PAUSE_SECONDS)


def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Commits offsets of a group without members. Needs the permission Read on the group and its
    topics.

    Raises:
        InvalidOptionError: The group has members.
        BrokerError: A broker refuses the request.
    """
    from kafka.protocol.consumer.group import OffsetCommitRequest
    from kafka.protocol.metadata import FindCoordinatorRequest

    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    topics: dict[str, list[Any]] = {}
    for (topic, number), offset in offsets.items():
        topics.setdefault(topic, []).append(
            topic_type.OffsetCommitRequestPartition(
                partition_index=number,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
        )

    def attempt() -> Iterable[int]:
        found = cluster.ask_any(FindCoordinatorRequest(key=group, key_type=_GROUP, version=3))
        if found.error_code:
            return [found.error_code]
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[topic_type(name=name, partitions=parts) for name, parts in topics.items()],
            version=8,
        )
        try:
            answer = cluster.ask(found.node_id, request)
        except LostConnectionError as error:
            raise BrokerUnavailableError(
                f"the coordinator does not answer: {error}; run kts restore commit again"
            ) from None
        codes = [part.error_code for topic in answer.topics for part in topic.partitions]
        if _UNKNOWN_MEMBER in codes:
            raise InvalidOptionError(f"group {group} has members: stop its consumers")
        return codes

    try:
        _retry(attempt)
    except BrokerError as error:
        raise error.extended(f" (group {group})") from None


def set_configs(cluster: Cluster, configs: Mapping[str, Mapping[str, str]]) -> None:
    """Sets configurations of topics, and checks that they have the new values. Needs the
    permissions AlterConfigs and DescribeConfigs on the topics.

    Args:
        cluster: Connections to the new cluster.
        configs: Values by topic and name. A topic may have none.

    Raises:
        BrokerError: A broker refuses a configuration.
    """
    from kafka.protocol.admin.configs import IncrementalAlterConfigsRequest

    names = sorted({name for values in configs.values() for name in values})
    if not names:
        return

    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    request = IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=_TOPIC,
                resource_name=topic,
                configs=[
                    resource.AlterableConfig(name=name, config_operation=_SET, value=value)
                    for name, value in values.items()
                ],
            )
            for topic, values in configs.items()
            if values
        ],
        validate_only=False,
        version=1,
    )
    for result in cluster.ask_any(request).responses:
        if result.error_code:
            raise refusal(result.error_code, topic=result.resource_name).extended(
                f": {result.error_message}"
            )
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        found = topic_configs(cluster, configs, names)
        wrong = [
            f"{topic} {name}"
            for topic, values in configs.items()
            for name, value in values.items()
            if not _is_same(found[topic].values.get(name, ""), value)
        ]
        if not wrong:
            return
        if time.monotonic() > deadline:
            raise BrokerError(
                f"brokers do not report the configurations that were set: {some(wrong)}. Check the"
                " topics, and run kts restore commit again"
            )
        time.sleep(_PAUSE_SECONDS)


def _is_same(reported: str, value: str) -> bool:
    """Returns whether a broker reports a value that was set. It prints numbers and lists anew."""
    try:
        return float(reported) == float(value)
    except ValueError:
        return reported.replace(" ", "").lower() == value.replace(" ", "").lower()


def _retry(attempt: Callable[[], Iterable[int]]) -> None:
    """Calls `attempt` until it returns no error code. Raises the first error that a retry cannot
    resolve.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        codes = {code for code in attempt() if code}
        if not codes:
            return
        if not codes <= PASSING | _COORDINATOR_MOVES or time.monotonic() > deadline:
            raise refusal(min(codes - PASSING or codes))
        time.sleep(_PAUSE_SECONDS)


METADATA_LOG: Final = "__cluster_metadata-0"
_SNAPSHOT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_SEGMENT: Final = re.compile(r"(\d{20})\.log")
_ELSE: Final = ". Use the disk of another controller, or set the configurations with --config"
_OF_OLD_BROKERS: Final = frozenset(
    {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)


def old_configs(plan: RestorePlan, log_dir: str) -> dict[str, dict[str, str]]:
    """Returns the configurations that were set for the planned topics in the old cluster, by name
    of the target topic. Lists of throttled replicas are not included, because they contain ids of
    old brokers.

    Args:
        plan: The executed plan.
        log_dir: A log directory of an old controller (`metadata.log.dir`), or its metadata log.

    Raises:
        InvalidOptionError: The folder has no metadata log, or the log does not contain a topic of
            the plan.
        CorruptSegmentError: The metadata log is invalid.
    """
    folder = Path(log_dir)
    if folder.name != METADATA_LOG:
        folder /= METADATA_LOG
    try:
        found = recorded_configs(_metadata_batches(folder))
    except OSError as error:
        raise InvalidOptionError(f"metadata log {folder} cannot be read: {error}") from None
    except SegmentFormatError as error:
        raise CorruptSegmentError(f"metadata log {folder} is invalid: {error}{_ELSE}") from error
    configs = {}
    for each in plan.partitions:
        topic_id = uuid_from_text(each.topic_id)
        if topic_id not in found:
            raise InvalidOptionError(
                f"metadata log {folder} has no topic {each.topic} with id {each.topic_id}: use the"
                " disk of a controller of the old cluster, or --config"
            )
        configs[each.target_topic] = {
            name: value for name, value in found[topic_id].items() if name not in _OF_OLD_BROKERS
        }
    return configs


def known_configs(
    cluster: Cluster,
    plan: RestorePlan,
    old: Mapping[str, Mapping[str, str]],
    overrides: Mapping[str, str],
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Returns the configurations that the new brokers know, by topic, and a line for each topic
    with others. Another line names settings of the restore that the old topic did not have: they
    keep their values, because the default of a new broker could delete records.

    Args:
        cluster: Connections to the new cluster.
        plan: The executed plan.
        old: Configurations of the old topics, by name of the target topic.
        overrides: Configurations that the operator sets.

    Raises:
        BrokerError: The brokers refuse to describe a topic.
    """
    required = ZERO_COPY_CONFIGS if plan.zero_copy else REQUIRED_CONFIGS
    names = sorted({name for values in old.values() for name in values})
    known, report = {}, []
    for topic, found in topic_configs(cluster, old, names).items():
        if found.refusal:
            raise BrokerError(f"{topic}: its configurations cannot be read: {found.refusal}")
        values = old[topic]
        known[topic] = {name: text for name, text in values.items() if name in found.values}
        if unknown := sorted(values.keys() - known[topic].keys()):
            report.append(f"{topic}: the new brokers do not know: {', '.join(unknown)}")
        if kept := sorted(required.keys() - values.keys() - overrides.keys()):
            report.append(
                f"{topic}: not changed, because the old topic used the defaults of its brokers:"
                f" {', '.join(kept)}. Set them with --config"
            )
    return known, report


def _metadata_batches(folder: Path) -> Iterator[DecodedBatch]:
    """Yields the batches of the newest snapshot, and of the log after it."""
    names = sorted(path.name for path in folder.iterdir())
    snapshots = [match for name in names if (match := _SNAPSHOT.fullmatch(name))]
    segments = [match for name in names if (match := _SEGMENT.fullmatch(name))]
    if not segments:
        raise InvalidOptionError(f"{folder} has no segments: use the disk of an old controller")
    end = 0
    if snapshots:
        end = int(snapshots[-1][1])
        yield from iter_batches((folder / snapshots[-1][0]).read_bytes())
    bases = [int(match[1]) for match in segments]
    for match, base, next_base in zip(segments, bases, [*bases[1:], None], strict=True):
        if next_base is not None and next_base <= end:
            continue
        if base > end:
            raise CorruptSegmentError(f"metadata log {folder} lacks offsets [{end}, {base}){_ELSE}")
        path = folder / match[0]
        data = path.read_bytes()
        whole = _whole_bytes(data, base)
        if whole < len(data) and next_base is not None:
            raise CorruptSegmentError(f"{path} is invalid from byte {whole} on{_ELSE}")
        for batch in iter_batches(memoryview(data)[:whole], check_crcs=False):
            if batch.base_offset >= end:
                yield batch
                end = batch.last_offset + 1


def _whole_bytes(data: bytes, base_offset: int) -> int:
    """Returns the size of the intact batches at the start of a segment. After a crash, the last
    segment may end with an incomplete batch.
    """
    batches = WholeBatches(
        lambda start, stop: data[start:stop], len(data), base_offset, check_crcs=True
    )
    for _ in batches:
        pass
    return batches.position
