"""Compares the topics on the brokers with the restored log directory, and reports the finished
steps of a restore.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from kts_source.broker.cluster import EARLIEST, LATEST, Cluster
from kts_source.errors import InvalidOptionError
from kts_source.restore.digests import row_digests
from kts_source.restore.journal import Journal
from kts_source.restore.restore_plan import read_plan
from kts_source.restore.target import target_settings
from kts_source.restore.writing import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.restore.restore_plan import RestorePlan


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
    if not journal.has("checked"):
        raise InvalidOptionError(f"the restore is not complete: {status_restore(plan_path)[-1]}")
    differences = list(_offset_differences(plan, journal, target))
    for level in LEVELS:
        topics = ",".join(sorted(plan.target_ids))
        found = row_digests({**target, "subscribe": topics, "isolationLevel": level})
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
        topics = cluster.topics(plan.target_ids)
        for name, topic_id in plan.target_ids.items():
            if name not in topics or topics[name].topic_id != topic_id:
                raise InvalidOptionError(
                    f"topic {name} of the new cluster does not have the planned topic id"
                    f" {topic_id}: it was deleted or created again"
                )
        pairs = [(each.target_topic, each.partition) for each in plan.partitions]
        starts = cluster.offsets(pairs, EARLIEST, read_committed=False)
        ends = cluster.offsets(pairs, LATEST, read_committed=False)
        stable = cluster.offsets(pairs, LATEST, read_committed=True)
        for each, pair in zip(plan.partitions, pairs, strict=True):
            staged = journal.staged(each.name)
            assert staged is not None
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
        return ["planned", "next: stop the broker, then kts restore write"]
    lines = [f"log directory: {journal.log_dir}"]
    placed = [each.name for each in plan.partitions if journal.is_placed(each.name)]
    lines.append(f"written: {len(placed)} of {len(plan.partitions)} partitions")
    if not journal.has("checked"):
        return [
            *lines,
            "next: run kts restore write again; do not start the broker before it is complete",
        ]
    lines.append("the log directory has the rows of the tier")
    if not journal.has("verified"):
        return [*lines, "next: start the broker, then kts restore verify"]
    lines.append("verified: the brokers have the same rows, log starts and ends")
    if not journal.has("committed"):
        return [*lines, "next: move the partitions to their brokers, then kts restore commit"]
    return [*lines, "committed", "next: nothing; producers and consumers may start"]
