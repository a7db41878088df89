"""A task that may need brokers: its slices with brokers behind the tier, then its ranges."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.broker.cluster import borrowed_cluster
from kts_source.read.fallback import BrokerFallback
from kts_source.read.read_ranges import read_range
from kts_source.read.read_slices import read_slices

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kts_source.broker.settings import BrokerSettings
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.segment_source import SegmentSource
    from kts_source.read.task import ScanTask
    from kts_source.read.task_metrics import TaskMeter

log = logging.getLogger(__name__)


def rows_with_brokers(
    task: ScanTask,
    reader: SegmentSource,
    settings: ReadSettings,
    brokers: BrokerSettings,
    meter: TaskMeter | None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a task whose settings name brokers.

    Raises:
        TieredKafkaError: See `read_slices` and `read_range`.
    """
    with borrowed_cluster(brokers) as cluster:
        if task.slices and settings.broker_fallback:
            # What was returned is known by its last offset.
            columns = settings.columns
            followed = settings
            if "offset" not in columns:
                followed = replace(settings, columns=(*columns, "offset"))
            fallback = BrokerFallback(cluster, followed, meter)
            for batch in read_slices(task.slices, reader, followed, meter=meter, fallback=fallback):
                yield batch if followed is settings else batch.select(list(columns))
        elif task.slices:
            yield from read_slices(task.slices, reader, settings, meter=meter)
        for part in task.ranges:
            yield from read_range(part, cluster, settings, meter=meter)
