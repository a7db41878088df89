"""Plans a restore: compares the tier with the new cluster, and lists every reason to refuse."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.restore.restore_plan import (
    REFUSE,
    UNDECIDED_POLICIES,
    PartitionRestore,
    RestorePlan,
)
from kts_source.restore.target import describe_target, target_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.options import ScanOptions
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.planning.scan_plan import ScanPlan

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
        raise InvalidOptionError("option 'failOnDataLoss' must be true for a restore")
    return parsed


def plan_restore(
    options: Mapping[str, str],
    target: Mapping[str, str],
    *,
    undecided: str = REFUSE,
    rename: Mapping[str, str] | None = None,
    resume_at: Mapping[str, Mapping[int, int]] | None = None,
) -> RestorePlan:
    """Plans a restore. Reads no records and changes nothing.

    Args:
        options: Options of the tier.
        target: Options `kafka.*` of the new cluster.
        undecided: Handling of transactions without a known end. `refuse`: the plan is refused.
            `abort`: the transactions are aborted.
        rename: Name in the new cluster, by name in the tier.
        resume_at: Minimum offset of the next record, by topic in the tier and partition.

    Raises:
        InvalidOptionError: An option is invalid.
        TieredKafkaError: The tier or the new cluster cannot be read.
    """
    if undecided not in UNDECIDED_POLICIES:
        raise InvalidOptionError(f"undecided must be refuse or abort, but is {undecided!r}")
    parsed, settings = source_options(options), target_settings(target)
    refusals: list[str] = []
    scan = plan_source(parsed, refusals)
    names, resume = rename or {}, resume_at or {}
    topics = {each.topic for each in scan.partitions}
    if unknown := sorted((names.keys() | resume.keys()) - topics):
        raise InvalidOptionError(
            f"rename or resume-at names topic {unknown[0]!r}, which the tier does not have"
        )
    if len({names.get(topic, topic) for topic in topics}) < len(topics):
        raise InvalidOptionError("rename gives the same name to two topics: use different names")
    partitions = []
    for each in scan.partitions:
        wanted = resume.get(each.topic, {}).get(each.partition, 0)
        partition = _partition(each, names.get(each.topic, each.topic), wanted)
        partitions.append(partition)
        refusals += _refusals(partition, undecided)
    found = describe_target(settings, partitions)
    return RestorePlan(
        plan_id=secrets.token_hex(8),
        source=",".join((parsed.path, *parsed.disk_paths)),
        cluster_id=found.cluster_id,
        node_id=found.node_id,
        target_ids=found.topic_ids,
        undecided=undecided,
        partitions=tuple(partitions),
        refusals=(*refusals, *found.refusals),
        notes=(*scan.notes, *found.notes),
    )


def plan_source(options: ScanOptions, refusals: list[str]) -> ScanPlan:
    """Plans the segments to restore. Appends the errors of partitions to `refusals`."""
    errors: list[TieredKafkaError] = []
    plan = plan_scan(replace(options, where=None), tasks=False, on_partition_error=errors.append)
    refusals += sorted(str(error) for error in errors)
    return plan


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


def _partition(plan: PartitionPlan, target_topic: str, resume_at: int) -> PartitionRestore:
    surviving = plan.surviving
    epochs = [entry.epoch for entry in surviving.lineage]
    epochs += [e.epoch for span in surviving.ranges for e in span.segment.leader_epochs]
    return PartitionRestore(
        topic=plan.topic,
        topic_id=plan.topic_id,
        target_topic=target_topic,
        partition=plan.partition,
        log_start=surviving.log_start,
        stop=surviving.stop,
        resume_at=max(resume_at, surviving.stop),
        stable_stop=plan.stop,
        max_epoch=max(epochs, default=-1),
        segments=len(surviving.ranges),
        bytes=sum(span.segment.objects.size_in_bytes for span in surviving.ranges),
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
            " --undecided abort to abort them"
        )
    if partition.max_epoch < 0:
        texts.append(
            f"{partition.topic}-{partition.partition}: the tier records no leader epochs, so the"
            " log has messages of format 0 or 1, which cannot be restored"
        )
    return texts
