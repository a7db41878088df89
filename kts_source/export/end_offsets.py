"""Finds the end offsets of an exported table, so that a stream or batch can continue after the
table.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from kts_source.errors import ExportError
from kts_source.export.export_plan import Continuation, check_logs, check_rollback
from kts_source.export.ranges import held_range
from kts_source.export.settings import ExportArguments, export_settings
from kts_source.export.tables import open_table
from kts_source.options import parse_options
from kts_source.options.selection import EARLIEST_OFFSET, EarliestBound, LatestBound
from kts_source.planning.planner import plan_scan

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from kts_source.export.ranges import CommittedRanges
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.export_table import TableState
    from kts_source.options import Options


def end_offsets(
    *,
    source: Options,
    target: str | os.PathLike[str],
    partitions: Mapping[str, int] | None = None,
    **arguments: Unpack[ExportArguments],
) -> str:
    """Returns the end offset of each partition in a table that `backfill` writes. The result can be
    passed as option `startingOffsets` to `format("kafka")` and to this data source.

    Stop the export first, because the result does not include later commits.

    Args:
        source: Options of the export. The ids of the topics are read from the tier or the cluster.
        target: See `backfill`.
        partitions: Number of partitions by topic. Spark's Kafka source needs an offset for every
            partition, so partitions that the table lacks get −2 (earliest). By default, the brokers
            in `source` supply the number. Without brokers, the result ends with the highest
            partition in the tier.
        arguments: Arguments of `backfill` that identify the table and the export: `table_format`,
            `export_id`, `target_options`, `catalog`.

    Returns:
        JSON, `{"<topic>":{"<partition>":<next offset>}}`.

    Raises:
        ExportError: The table has no offsets of a topic with its current topic id.
        DataLossError: The log or the table was replaced since the last run, and `failOnDataLoss` is
            true; see `backfill`.
        TieredKafkaError: The source or the table cannot be read.
    """
    settings = export_settings(target, source=source, **arguments)
    requested = parse_options(source)
    all_offsets = replace(requested, starting=EarliestBound(), ending=LatestBound(), plan_file=None)
    options = replace(all_offsets, fail_on_data_loss=False)
    with closing(open_table(settings)) as table:
        state = table.load()
        committed = state.committed
        _check_exported(settings, state)
        check_rollback(requested, state)
        # The plan starts at the end offsets of the table, because the source may no longer have
        # earlier offsets.
        plan = plan_scan(options, progress=Continuation(options, committed, resume=True))
        held_partitions = [
            partition
            for partition in plan.partitions
            if held_range(committed, partition.topic, partition.topic_id, partition.partition)
            is not None
        ]
        check_logs(all_offsets, held_partitions, state)
        numbers: dict[tuple[str, str], set[int]] = {}
        for partition in plan.partitions:
            numbers.setdefault((partition.topic, partition.topic_id), set()).add(
                partition.partition
            )
    ends: dict[str, dict[int, int]] = {}
    for (topic, topic_id), in_source in sorted(numbers.items()):
        count = max(max(in_source) + 1, (partitions or {}).get(topic, 0))
        ends[topic] = _ends_of_topic(settings, committed, topic, topic_id, count)
    return json.dumps(ends)


def _check_exported(settings: ExportSettings, state: TableState) -> None:
    if not state.fingerprint:
        raise ExportError(
            f"there is no {settings.table_format} table of export {settings.export_id!r} at the"
            " target. Set the target, table_format and export_id of the export that wrote the"
            " table",
            uri=settings.target,
        )


def _ends_of_topic(
    settings: ExportSettings, committed: CommittedRanges, topic: str, topic_id: str, count: int
) -> dict[int, int]:
    """Returns the end offset of each partition from 0 to `count - 1`. This includes partitions that
    are no longer in the tier. A partition of which the table has no offsets gets −2 (earliest).
    """
    held = {number: held_range(committed, topic, topic_id, number) for number in range(count)}
    if all(offsets is None for offsets in held.values()):
        raise ExportError(
            f"export {settings.export_id!r} wrote no offsets of topic id {topic_id} into this"
            " table. Check target, table_format and export_id. If the topic was created again,"
            " export the new topic first, or read it with startingOffsets=earliest",
            topic=topic,
            uri=settings.target,
        )
    return {
        number: EARLIEST_OFFSET if offsets is None else offsets.stop
        for number, offsets in held.items()
    }
