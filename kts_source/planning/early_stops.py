"""Checks the outcome of open transactions where a reader stops before the end of its plan.

Planning compares the transactions that are open at the end of the plan with the log. A reader that
commits its rows in steps relies on the outcome of the transactions that are open at the end of each
step, too. This module compares these transactions.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kts_source.errors import ObjectNotFoundError, TieredKafkaError
from kts_source.planning.isolation import UnknownStartError, check_ends, decide
from kts_source.planning.lineage import runs
from kts_source.planning.segment_catalog import PLANNING_THREADS
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.options import ScanOptions
    from kts_source.planning.partition_plan import PartitionPlan

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """An offset at which a reader stops in a partition before the planned end.

    Attributes:
        start: First offset of the step.
        stop: One past the last offset of the step, below the end of the plan.
    """

    plan: PartitionPlan
    start: int
    stop: int


def check_early_stops(options: ScanOptions, stops: Sequence[EarlyStop]) -> None:
    """Compares the outcomes of the transactions that are open at each stop with the log. `stops`
    may have any order.

    Reads the producer snapshot at each stop. If transactions are open there, reads the batch
    headers after the stop up to the markers of these transactions.

    Raises:
        CorruptSegmentError: The markers in the log contradict the transaction indexes.
        ObjectNotFoundError: A segment was deleted after planning, and loss is not allowed.
    """
    if not stops or not options.read_committed:
        return
    key_ring = options.key_ring.loaded()
    with (
        closing(open_tier(options)) as tier,
        ThreadPoolExecutor(PLANNING_THREADS, "kts-stops") as pool,
    ):

        def check(stop: EarlyStop) -> None:
            source = SegmentSource(tier, key_ring)
            side_files = SideFiles(source, max_batch_bytes=options.max_batch_bytes)
            try:
                _check(stop, side_files)
            except ObjectNotFoundError as error:
                if options.fail_on_data_loss:
                    raise
                _warn_not_compared(stop, str(error))
            except TieredKafkaError as error:
                plan = stop.plan
                raise error.located(topic=plan.topic, partition=plan.partition) from error.__cause__

        for _ in pool.map(check, stops):
            pass


def _check(stop: EarlyStop, side_files: SideFiles) -> None:
    surviving = stop.plan.surviving
    logs = [surviving]
    if stop.plan.brokers is not None:
        # Check each run of adjacent segments separately. Brokers serve the offsets between two
        # runs, and report the aborted transactions there.
        logs = [
            replace(surviving, ranges=run, holes=(), unverifiable=())
            for run in runs(surviving.ranges)
        ]
    for log_of_run in logs:
        spans = [span for span in log_of_run.ranges if span.start < stop.stop <= span.stop]
        if not spans:
            continue
        start = max(stop.start, log_of_run.ranges[0].start)
        side_files.bounds = start, stop.stop
        try:
            decisions = decide(log_of_run, start, stop.stop, side_files)
        except UnknownStartError:
            _warn_not_compared(stop, "no usable producer snapshot records when they began")
            continue
        check_ends(log_of_run, decisions, [(start, stop.stop)], side_files)


def _warn_not_compared(stop: EarlyStop, reason: str) -> None:
    log.warning(
        "%s: transactions open at offset %d are not compared with the log: %s",
        stop.plan.topic_partition,
        stop.stop,
        reason,
    )
