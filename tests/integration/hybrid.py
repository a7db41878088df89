"""Scans of tier and brokers beside what a consumer is given."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pyarrow as pa
from confluent_kafka import KafkaException

from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_task import run_task
from tests.integration.admin import wait_until
from tests.integration.oracle import Row, consumed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.read.task_metrics import TaskMetrics
    from tests.integration.nodes import Node

Rows = dict[tuple[str, int], list[Row]]

_COLUMNS = "topic,partition,offset,timestamp,timestampType,key,value,headers"


def hybrid_options(bootstrap: str, tier: object = None, **more: str) -> dict[str, str]:
    """Options that read topics from brokers, and from a tier if one is given."""
    options = {"kafka.bootstrap.servers": bootstrap, "columns": _COLUMNS, **more}
    if tier is not None:
        options |= {"path": str(tier), "layout": "local-tiered-storage"}
    return {name.replace("__", "."): text for name, text in options.items()}


def planned(options: Mapping[str, str]) -> ScanPlan:
    """The plan of these options."""
    return plan_scan(parse_options(options))


def rows_of(
    plan: ScanPlan, options: Mapping[str, str], ended: list[TaskMetrics] | None = None
) -> Rows:
    """What the tasks of a plan return, by partition, in the order of tasks."""
    parsed = parse_options(options)
    take = (ended if ended is not None else []).append
    batches = [batch for task in plan.tasks for batch in run_task(task, parsed, on_end=take)]
    return by_partition(batches)


def consumed_rows(bootstrap: str, plan: ScanPlan, isolation: str) -> Rows:
    """What a consumer is given of the offsets that a plan covers."""
    return {
        (part.topic, part.partition): consumed(
            bootstrap, part.topic, part.partition, part.start, part.stop, isolation=isolation
        )
        for part in plan.partitions
    }


def consumed_after_start(bootstrap: str, plan: ScanPlan, isolation: str) -> Rows:
    """The same of brokers that have just started, once they know their tier."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return consumed_rows(bootstrap, plan, isolation)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def wait_written_down(node: Node, ends: Mapping[tuple[str, int], int]) -> None:
    """Waits until the high watermarks on a node's disk are these: brokers write them down every now
    and then, and what is behind them was not there for whoever reads the disk alone.
    """

    def lacking() -> dict[tuple[str, int], int]:
        found = node.checkpoint("replication-offset-checkpoint")
        return {place: end for place, end in ends.items() if found.get(place, 0) < end}

    wait_until(lambda: not lacking(), lambda: f"node {node.number} lacks {lacking()}")


def assert_as_consumed(found: Rows, expected: Rows) -> None:
    """The same rows in the same order, and no partition more or less."""
    for place in sorted(found.keys() | expected.keys()):
        mine, theirs = found.get(place, []), expected.get(place, [])
        if mine != theirs:
            offsets = [row.offset for row in mine], [row.offset for row in theirs]
            missing = sorted(set(offsets[1]) - set(offsets[0]))[:10]
            extra = sorted(set(offsets[0]) - set(offsets[1]))[:10]
            raise AssertionError(
                f"{place}: {len(mine)} rows, a consumer has {len(theirs)}; missing {missing}, not"
                f" a consumer's {extra}"
            )


def by_partition(batches: Iterable[pa.RecordBatch]) -> Rows:
    """The rows of batches, by partition, in their order."""
    found: Rows = defaultdict(list)
    for batch in batches:
        times = batch.column("timestamp").cast(pa.int64())
        for at, row in enumerate(batch.drop_columns("timestamp").to_pylist()):
            headers = tuple((one["key"], one["value"]) for one in row["headers"])
            place = row["topic"], row["partition"]
            milliseconds = times[at].as_py() // 1000
            found[place].append(
                Row(
                    *(row["offset"], milliseconds, row["timestampType"]),
                    *(row["key"], row["value"], headers),
                )
            )
    return dict(found)
