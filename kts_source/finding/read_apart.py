"""Reads a task so that what cannot be read costs no more than itself, and is told."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kts_source.columns import PARTITION, TOPIC
from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.finding.certificate import UnreadRange
from kts_source.planning.estimate import ARCHIVE_CLASSES
from kts_source.read.read_task import read_task
from kts_source.read.task import ScanTask
from kts_source.texts import one_line

if TYPE_CHECKING:
    from collections.abc import Generator

    import pyarrow as pa

    from kts_source.finding.query import Query
    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.segment_source import SegmentSource
    from kts_source.read.task import SegmentSlice
    from kts_source.read.task_metrics import TaskMeter, TaskMetrics

PLACE: tuple[str, ...] = (TOPIC, PARTITION, "offset")
"""Columns that `TaskSearch` reads by."""


def archived_object(part: SegmentSlice) -> ObjectRef | None:
    """What a slice is read from and must be restored first; `None` for nothing."""
    needed = [part.objects.log, *([] if part.is_whole else [part.offset_index.source])]
    return next((ref for ref in needed if ref.storage_class in ARCHIVE_CLASSES), None)


def why_archived(ref: ObjectRef) -> str:
    """Why nobody can read an object, in words."""
    return f"archived in storage class {ref.storage_class}: restore it first"


@dataclass(slots=True)
class TaskSearch:
    """The search of one task.

    Attributes:
        task: Slices of one partition.
        query: Which rows are wanted.
        matches: How many there were.
        unread: What could not be read.
    """

    task: ScanTask
    query: Query
    matches: int = 0
    unread: list[UnreadRange] = field(default_factory=list)
    _next_offset: int | None = None

    def rows(
        self, reader: SegmentSource, settings: ReadSettings, meter: TaskMeter
    ) -> Generator[pa.RecordBatch]:
        """The matching rows, in order. Close the generator to stop what is under way.

        Args:
            reader: What reads the slices.
            settings: How; the columns hold those of `PLACE` and of the query.
            meter: Where to count.

        Raises:
            InvalidOptionError: The options cannot be followed at all.
        """
        readable = [part for part in self.task.slices if not self._is_archived(part, reader)]
        if not readable:
            return
        try:
            yield from self._rows(ScanTask(tuple(readable)), reader, settings, meter)
        except InvalidOptionError:
            raise
        except TieredKafkaError:
            # Once more, slice by slice: nobody knows for sure which one has failed.
            for part in self._rest(readable):
                yield from self._slice(part, reader, settings, meter)

    def _slice(
        self, part: SegmentSlice, reader: SegmentSource, settings: ReadSettings, meter: TaskMeter
    ) -> Generator[pa.RecordBatch]:
        try:
            yield from self._rows(ScanTask((part,)), reader, settings, meter)
        except InvalidOptionError:
            raise
        except TieredKafkaError as error:
            start, stop = part.start_offset, part.stop_offset
            uri = reader.store.uri(part.objects.log.key)
            self.unread.append(UnreadRange(start, stop, one_line(str(error)), uri))

    def _rows(
        self, task: ScanTask, reader: SegmentSource, settings: ReadSettings, meter: TaskMeter
    ) -> Generator[pa.RecordBatch]:
        batches = read_task(task, reader, settings, meter=meter)
        with closing(batches):  # type: ignore[type-var]
            for batch in batches:
                if not batch.num_rows:
                    continue
                self._next_offset = batch.column("offset")[-1].as_py() + 1
                mask = self.query.mask(batch)
                found = batch if mask is None else batch.filter(mask)
                self.matches += found.num_rows
                if found.num_rows:
                    yield found

    def _is_archived(self, part: SegmentSlice, reader: SegmentSource) -> bool:
        """Whether a slice must be restored before it can be read; it is told then."""
        ref = archived_object(part)
        if ref is None:
            return False
        place = part.start_offset, part.stop_offset
        self.unread.append(UnreadRange(*place, why_archived(ref), reader.store.uri(ref.key)))
        return True

    def _rest(self, slices: list[SegmentSlice]) -> list[SegmentSlice]:
        """The slices without what was read of them for certain: rows come in order, so nothing is
        left below the last one.
        """
        done = self._next_offset
        if done is None:
            return slices
        return [
            replace(part, start_offset=max(part.start_offset, done))
            for part in slices
            if part.stop_offset > done
        ]


@dataclass(frozen=True, slots=True)
class SearchedTask:
    """A task that was searched to its end."""

    search: TaskSearch
    metrics: TaskMetrics
