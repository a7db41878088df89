"""Where a table ends, for streams and batches that go on behind it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from kts_source.errors import ExportError
from kts_source.export.continuation import Continuation, check_logs, check_rollback
from kts_source.export.ranges import held_range
from kts_source.export.settings import ExportArguments, export_settings
from kts_source.export.tables.open_table import open_table
from kts_source.options import parse_options
from kts_source.options.selection import EARLIEST_OFFSET, EarliestBound, LatestBound
from kts_source.planning.planner import plan_scan

if TYPE_CHECKING:
    from collections.abc import Mapping


def end_offsets(
    *,
    source: Mapping[str, str],
    target: str,
    partitions: Mapping[str, int] | None = None,
    **arguments: Unpack[ExportArguments],
) -> str:
    """The ends of what a table of `backfill` holds, as `startingOffsets` for `format("kafka")` or
    for a stream or batch of this source.

    End the export first: what it commits later is not in the answer.

    Args:
        source: The options of the export; the tier, or the cluster, tells which ids its topics
            have.
        target: See `backfill`.
        partitions: How many partitions topics have. Those that the table lacks are named too, with
            −2 (earliest): Spark's Kafka source wants all of them. With `kafka.bootstrap.servers`
            in `source` that is not needed. Without either, partitions above the highest of the
            tier are not named.
        arguments: Those of `backfill` that tell which table and which export in it:
            `table_format`, `export_id`, `target_options`, `catalog`.

    Returns:
        JSON, `{"<topic>":{"<partition>":<next offset>}}`.

    Raises:
        ExportError: The table holds nothing of a topic, by the id that it has now.
        DataLossError: The log or the table is not the one of the last export run, and the source's
            `failOnDataLoss` does not allow it; see `backfill`.
        TieredKafkaError: The source or the table cannot be looked at.
    """
    settings = export_settings(target, source=source, **arguments)
    asked = parse_options(source)
    options = replace(
        asked,
        starting=EarliestBound(),
        ending=LatestBound(),
        fail_on_data_loss=False,
        plan_file=None,
    )
    with closing(open_table(settings)) as table:
        state = table.load()
        committed = state.committed
        check_rollback(asked, state)
        # Behind the table: what it holds is not looked at, and may have gone.
        plan = plan_scan(options, progress=Continuation(options, committed, resume=True))
        held_parts = [
            part
            for part in plan.partitions
            if held_range(committed, part.topic, part.topic_id, part.partition) is not None
        ]
        strict = replace(options, fail_on_data_loss=asked.fail_on_data_loss)
        check_logs(strict, held_parts, state)
        numbers: dict[tuple[str, str], set[int]] = {}
        for part in plan.partitions:
            numbers.setdefault((part.topic, part.topic_id), set()).add(part.partition)
        found: dict[str, dict[str, int]] = {}
        for (topic, topic_id), known in sorted(numbers.items()):
            ends: dict[int, int] = {}
            # Those that have left the tier are in the table still.
            for number in range(max(max(known) + 1, (partitions or {}).get(topic, 0))):
                held = held_range(committed, topic, topic_id, number)
                ends[number] = EARLIEST_OFFSET if held is None else held.stop
            if all(end == EARLIEST_OFFSET for end in ends.values()):
                raise ExportError(
                    f"the table holds no offsets of topic id {topic_id} for the export"
                    f" {settings.export_id!r}: give the target, format and export_id of the export"
                    " that wrote it. If the topic was created again since, export its new id first,"
                    " or begin at earliest",
                    topic=topic,
                    uri=settings.target,
                )
            found[topic] = {str(number): end for number, end in ends.items()}
    return json.dumps(found)
