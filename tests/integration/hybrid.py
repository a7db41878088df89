"""Scans tier and brokers together and compares the result with the rows of a consumer."""

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
from tests.integration.oracle import Row, consume_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.read.task_metrics import TaskMetrics
    from tests.integration.nodes import Node

Rows = dict[tuple[str, int], list[Row]]

_COLUMNS = "topic,partition,offset,timestamp,timestampType,key,value,headers"


def hybrid_options(bootstrap: str, tier: object = None, **more: str) -> dict[str, str]:
    """Returns options for a scan of brokers and, if `tier` is set, also of the tier at this path.

    Names in `more` contain `__` instead of `.`."""
    options = {"kafka.bootstrap.servers": bootstrap, "columns": _COLUMNS, **more}
    if tier is not None:
        options |= {"path": str(tier), "layout": "local-tiered-storage"}
    return {name.replace("__", "."): text for name, text in options.items()}


def make_plan(options: Mapping[str, str]) -> ScanPlan:
    """Plans a scan with these options."""
    return plan_scan(parse_options(options))


def read_rows(
    plan: ScanPlan, options: Mapping[str, str], ended: list[TaskMetrics] | None = None
) -> Rows:
    """Runs all tasks of a plan and returns their rows by partition, in the order of the tasks.

    If `ended` is set, appends the metrics of each task to it.
    """
    parsed = parse_options(options)
    take = (ended if ended is not None else []).append
    batches = [batch for task in plan.tasks for batch in run_task(task, parsed, on_end=take)]
    return group_by_partition(batches)


def consume_rows(bootstrap: str, plan: ScanPlan, isolation: str) -> Rows:
    """Uses a consumer to read all offsets in `plan`; returns the rows by partition."""
    return {
        (planned_partition.topic, planned_partition.partition): consume_range(
            bootstrap,
            planned_partition.topic,
            planned_partition.partition,
            planned_partition.start,
            planned_partition.stop,
            isolation=isolation,
        )
        for planned_partition in plan.partitions
    }


def consume_rows_after_start(bootstrap: str, plan: ScanPlan, isolation: str) -> Rows:
    """Calls `consume_rows` until it succeeds; brokers that have just started may return errors."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return consume_rows(bootstrap, plan, isolation)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def wait_checkpointed(node: Node, ends: Mapping[tuple[str, int], int]) -> None:
    """Waits until a node's checkpoint file contains high watermarks of at least `ends`.

    Brokers write this file periodically. Scans of the node's disk end at the high watermarks in the
    file.
    """

    def pending() -> dict[tuple[str, int], int]:
        written = node.checkpoint("replication-offset-checkpoint")
        return {key: end for key, end in ends.items() if written.get(key, 0) < end}

    wait_until(lambda: not pending(), lambda: f"node {node.number} lacks {pending()}")


def assert_as_consumed(actual: Rows, expected: Rows) -> None:
    """Asserts that `actual` has the same partitions, rows and order of rows as the consumed
    rows.
    """
    for key in sorted(actual.keys() | expected.keys()):
        actual_rows, expected_rows = actual.get(key, []), expected.get(key, [])
        if actual_rows != expected_rows:
            offsets = [row.offset for row in actual_rows], [row.offset for row in expected_rows]
            missing = sorted(set(offsets[1]) - set(offsets[0]))[:10]
            extra = sorted(set(offsets[0]) - set(offsets[1]))[:10]
            raise AssertionError(
                f"{key}: {len(actual_rows)} rows, but a consumer has {len(expected_rows)};"
                f" missing offsets {missing}, unexpected offsets {extra}"
            )


def group_by_partition(batches: Iterable[pa.RecordBatch]) -> Rows:
    """Returns the rows of each partition, in the order of the batches."""
    rows: Rows = defaultdict(list)
    for batch in batches:
        times = batch.column("timestamp").cast(pa.int64())
        for index, row in enumerate(batch.drop_columns("timestamp").to_pylist()):
            headers = tuple((header["key"], header["value"]) for header in row["headers"])
            key = row["topic"], row["partition"]
            milliseconds = times[index].as_py() // 1000
            rows[key].append(
                Row(
                    *(row["offset"], milliseconds, row["timestampType"]),
                    *(row["key"], row["value"], headers),
                )
            )
    return dict(rows)
