"""Reads one task: first its slices from the tier, then its ranges from brokers."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kts_source.errors import (
    CorruptSegmentError,
    DataLossError,
    InvalidOptionError,
    ObjectNotFoundError,
    StoreNotFoundError,
    TieredKafkaError,
)
from kts_source.predicate.model import split_by_fields
from kts_source.read.read_settings import FOR_ENGINES, FOR_SPARK, BatchLimits, ReadSettings
from kts_source.read.segment_source import SegmentSource
from kts_source.read.slice_boundaries import SliceSpan, slice_spans
from kts_source.read.task_metrics import (
    CLOSED,
    DONE,
    LostRange,
    TaskMeter,
    TaskMetrics,
    TaskPlace,
    write_metrics,
)
from kts_source.store.joined_store import has_objects, is_in_additional_store, mirror_of
from kts_source.store.request_policy import CancelledFetchError
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    import pyarrow as pa

    from kts_source.broker.settings import BrokerSettings
    from kts_source.options import ScanOptions
    from kts_source.read.broker_rows import BrokerFallback
    from kts_source.read.slice_decoder import SliceDecoder
    from kts_source.read.task import ScanTask, SegmentSlice
    from kts_source.read.typed_rows import SetAside
    from kts_source.tier import Tier

log = logging.getLogger(__name__)

_UNKNOWN_PLACE = TaskPlace()


def run_task(
    task: ScanTask,
    options: ScanOptions,
    location: TaskPlace = _UNKNOWN_PLACE,
    *,
    batches: BatchLimits = FOR_SPARK,
    whole: bool = False,
    on_end: Callable[[TaskMetrics], object] = lambda _metrics: None,
    opened: Tier | None = None,
    set_aside: SetAside | None = None,
) -> Generator[pa.RecordBatch]:
    """Opens the tier, yields the rows of a task, and logs the metrics of the task.

    Close the generator to cancel pending requests.

    Args:
        task: Task to read.
        options: Options of the scan.
        location: Id of the scan and number of the task, for the metrics.
        batches: Size limits of a batch.
        whole: True if the consumer reads all rows. Then all tasks send several requests at once. If
            False, the first task of a scan sends its first request alone, because a query with a
            LIMIT may need no further one.
        on_end: Called with the metrics when the task has ended or failed.
        opened: An open tier, for threads that read many tasks. The task does not close it. By
            default, the task opens its own tier.
        set_aside: Called with rows whose key or value cannot be decoded; see `TypedRows`.

    Raises:
        TieredKafkaError: See `read_task`.
    """
    tier = open_tier(options) if opened is None else opened
    meter = TaskMeter(task, tier, location)
    outcome = CLOSED
    try:
        source = SegmentSource(tier, options.key_ring)
        settings = replace(ReadSettings.of(options), batches=batches)
        if whole or location.partition:
            # A LIMIT usually reads only the first task. Later tasks are probably read completely,
            # so they need no slow start.
            ahead = replace(settings.read_ahead, slow_start=False)
            settings = replace(settings, read_ahead=ahead)
        for batch in read_task(task, source, settings, meter=meter, set_aside=set_aside):
            meter.rows += batch.num_rows
            yield batch
        outcome = DONE
    except CancelledFetchError:  # closed by the thread that consumes the rows
        raise
    except Exception as error:
        outcome = type(error).__name__
        raise
    finally:
        metrics = meter.finished(outcome)
        if opened is None:
            tier.close()
        log.info("%s", metrics)
        if options.fetch.metrics_path is not None:
            write_metrics(metrics, options.fetch.metrics_path, options.storage.reveal())
        on_end(metrics)


def read_task(
    task: ScanTask,
    source: SegmentSource,
    settings: ReadSettings,
    *,
    meter: TaskMeter | None = None,
    set_aside: SetAside | None = None,
    warns: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task: first the rows of its slices, then the rows of its broker ranges.
    Offsets ascend within each slice and each range.

    Close the generator to cancel pending requests.

    Raises:
        InvalidOptionError: The task reads from brokers, but the settings have no brokers.
        TieredKafkaError: See `read_slices`, `read_range`, `BrokerFallback.rest` and
            `TypedRows.decoded`.
    """
    if not settings.formats:
        yield from _read_parts(task, source, settings, meter)
        return
    # Import value decoders on demand, because most scans return bytes.
    from kts_source.read.typed_rows import TypedRows

    where, where_fields = split_by_fields(settings.where)
    typed = TypedRows(settings.columns, settings.formats, where_fields, set_aside, warns=warns)
    # Decode larger batches if there is a condition on fields, because it may keep only few rows.
    limits = settings.batches if where_fields is None else FOR_ENGINES
    binary = replace(settings, columns=typed.read_columns, where=where, formats=(), batches=limits)
    with closing(_read_parts(task, source, binary, meter)) as batches:
        decoded = typed.decoded(batches, meter)
        yield from decoded if where_fields is None else _split_batches(decoded, settings.batches)


def _split_batches(
    batches: Iterable[pa.RecordBatch], limits: BatchLimits
) -> Iterator[pa.RecordBatch]:
    """Splits each batch that exceeds `limits`. The number of rows per part depends on the average
    size of a row, so a part may slightly exceed the limit of bytes.
    """
    for batch in batches:
        rows = limits.rows
        if batch.nbytes > limits.size:
            rows = max(1, min(rows, batch.num_rows * limits.size // batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _read_parts(
    task: ScanTask, source: SegmentSource, settings: ReadSettings, meter: TaskMeter | None
) -> Generator[pa.RecordBatch]:
    """Yields the rows of a task with keys and values as bytes."""
    brokers = settings.brokers
    if brokers is not None and (task.ranges or settings.broker_fallback):
        return _read_with_brokers(task, source, settings, brokers, meter)
    if task.ranges:
        raise InvalidOptionError("the plan reads from brokers; set option kafka.bootstrap.servers")
    if mirror_of(source.store) is None:
        return read_slices(task.slices, source, settings, meter=meter)
    followed = _with_offset(settings)
    rows = read_slices(task.slices, source, followed, meter=meter)
    return _select(rows, settings.columns)


def _with_offset(settings: ReadSettings) -> ReadSettings:
    """Returns settings with column `offset`. The last offset of each batch shows which rows were
    returned before a failure.
    """
    if "offset" in settings.columns:
        return settings
    return replace(settings, columns=(*settings.columns, "offset"))


def _select(
    batches: Generator[pa.RecordBatch], columns: Sequence[str]
) -> Generator[pa.RecordBatch]:
    with closing(batches):
        for batch in batches:
            yield batch if batch.num_columns == len(columns) else batch.select(columns)


def _read_with_brokers(
    task: ScanTask,
    source: SegmentSource,
    settings: ReadSettings,
    brokers: BrokerSettings,
    meter: TaskMeter | None,
) -> Generator[pa.RecordBatch]:
    # Import broker code on demand, because most scans read only the tier.
    from kts_source.broker.cluster import borrowed_cluster
    from kts_source.read.broker_rows import BrokerFallback, read_range

    with borrowed_cluster(brokers) as cluster:
        if not settings.broker_fallback:
            yield from _read_parts(
                replace(task, ranges=()), source, replace(settings, brokers=None), meter
            )
        elif task.slices:
            followed = _with_offset(settings)
            fallback = BrokerFallback(cluster, followed, meter)
            rows = read_slices(task.slices, source, followed, meter=meter, fallback=fallback)
            yield from _select(rows, settings.columns)
        for broker_range in task.ranges:
            yield from read_range(broker_range, cluster, settings, meter=meter)


@dataclass(slots=True)
class _Position:
    """Records how far the slices of a task have been read.

    Attributes:
        task_slice: The slice that is being read, or that failed.
        decoder: Decoder of this slice; `None` if no byte of the slice was read.
        next_offset: All rows of the slice below this offset were returned. Updated only if the
            rows have a column `offset`.
        is_object_gone: True if the slice failed because its object does not exist.
    """

    task_slice: SegmentSlice
    decoder: SliceDecoder | None = None
    next_offset: int = 0
    is_object_gone: bool = False

    def move(self, task_slice: SegmentSlice, decoder: SliceDecoder | None = None) -> None:
        """Sets the slice that is read next and the decoder of this slice, and resets
        `next_offset`.
        """
        self.task_slice, self.decoder, self.next_offset = task_slice, decoder, 0


def read_slices(
    slices: tuple[SegmentSlice, ...],
    source: SegmentSource,
    settings: ReadSettings,
    *,
    meter: TaskMeter | None = None,
    fallback: BrokerFallback | None = None,
) -> Generator[pa.RecordBatch]:
    """Yields the rows of slices in order; offsets ascend within a slice.

    If the bytes of a slice are invalid, the rest of the slice is read from the mirror, if there is
    one. If this fails, too, or the slice cannot be read, a `fallback` reads the rest from brokers.
    With a mirror or a `fallback`, the columns of `settings` must include `offset`.

    Raises:
        DataLossError: An object was deleted after planning. With `fail_on_data_loss=False`, the
            rest of the slice is skipped with a warning instead.
        ObjectChangedError: An object is not the version that was planned.
        TieredKafkaError: The store failed, or the bytes do not match the plan. The error names
            topic, partition, offset, object and position.
    """
    if meter is not None:
        source.stopwatch = meter.stopwatch
    follows = "offset" in settings.columns and (
        fallback is not None or mirror_of(source.store) is not None
    )
    while slices:
        position = _Position(slices[0])
        try:
            for batch in _read_tier(slices, source, settings, meter, position):
                yield batch
                if follows:
                    position.next_offset = batch.column("offset")[-1].as_py() + 1
        except TieredKafkaError as error:
            failure = error
        else:
            if fallback is not None:
                fallback.forget_failures()
            return
        failed = position.task_slice
        is_mirrored = False
        try:
            # Damage may also move the border to a neighboring slice, which has no error of its own.
            if follows and failed.is_whole and isinstance(failure, CorruptSegmentError):
                is_mirrored = yield from _reread(position, failure, source, settings, meter)
            if is_mirrored:
                pass
            elif fallback is not None:
                fallback.check(failed, failure)
                yield from fallback.read_rest(failed, position.next_offset, source, failure)
            elif not position.is_object_gone:
                raise failure
            else:
                _skip_rest(position, failure, source, settings, meter)
        finally:
            del failure  # its traceback has this frame: a cycle would keep files and batches open
        if fallback is None and position.decoder is not None and not is_mirrored:
            yield from position.decoder.finish(meter, rest_is_lost=True)
        number = next(index for index, task_slice in enumerate(slices) if task_slice is failed)
        slices = slices[number + 1 :]


def _reread(
    position: _Position,
    failure: TieredKafkaError,
    source: SegmentSource,
    settings: ReadSettings,
    meter: TaskMeter | None,
) -> Generator[pa.RecordBatch, None, bool]:
    """Reads the failed slice again, from the mirror, and yields the rows that were not returned
    before. Updates `position.next_offset`. Returns False if the mirror cannot serve the slice.

    The invalid bytes may have led to another start or end of the slice. So the last row that was
    returned before must be in the slice of the mirror, too; otherwise `failure` is raised.
    """
    task_slice = _mirrored(position.task_slice, failure, source)
    if task_slice is None:
        return False
    last_returned = position.next_offset - 1
    is_reached = last_returned < 0
    try:
        for batch in _read_tier((task_slice,), source, settings, meter, _Position(task_slice)):
            offsets = batch.column("offset").to_numpy()
            start = int(offsets.searchsorted(last_returned, side="right"))
            is_reached = is_reached or (start > 0 and int(offsets[start - 1]) == last_returned)
            if start == len(offsets):
                continue
            if not is_reached:
                raise failure
            yield batch.slice(start)
            position.next_offset = int(offsets[-1]) + 1
    except TieredKafkaError as error:
        if error is failure:
            raise
        log.warning("%s-%s: %s", task_slice.topic, task_slice.partition, error)
        return False
    if not is_reached:
        raise failure
    return True


def _mirrored(
    task_slice: SegmentSlice, failure: TieredKafkaError, source: SegmentSource
) -> SegmentSlice | None:
    """Returns the slice with the logs of the mirror; `None` if the mirror lacks them.

    Keeps the indexes: slices of one segment end and begin where its offset index says, so all of
    them must use the same index.
    """
    objects = source.mirrored(task_slice.objects, failure, with_indexes=False)
    around = task_slice.surroundings
    if around is not None and around.before is not None:
        before = source.mirrored(around.before, failure, with_indexes=False)
        if before is not None:
            around = replace(around, before=before)
    if objects is None and around is task_slice.surroundings:
        return None
    return replace(task_slice, objects=objects or task_slice.objects, surroundings=around)


def _read_tier(
    slices: tuple[SegmentSlice, ...],
    source: SegmentSource,
    settings: ReadSettings,
    meter: TaskMeter | None,
    position: _Position,
) -> Generator[pa.RecordBatch]:
    """Yields the rows of slices from the tier. Updates `position`. When an error is raised,
    `position.task_slice` is the slice that failed.
    """
    ahead = settings.read_ahead
    early = ahead.slow_start or (ahead.prefetch_bytes > 0 and not source.store.is_near)
    spans = slice_spans(slices, source, early=early)
    windows = source.windows(
        spans, read_ahead=ahead, while_waiting=partial(_preload_decoder, meter)
    )
    decoder: SliceDecoder | None = None
    with closing(windows):
        while True:
            try:
                span, window = next(windows)
            except StopIteration:
                break
            except TieredKafkaError as error:
                if not isinstance(error.span, SliceSpan):
                    raise
                failed = error.span.task_slice
                if failed is not position.task_slice or decoder is None:
                    if decoder is not None:  # all bytes of its slice were read
                        yield from decoder.finish(meter)
                    position.move(failed)
                position.is_object_gone = isinstance(error, ObjectNotFoundError)
                raise
            if decoder is None or decoder.task_slice is not span.task_slice:
                if decoder is not None:
                    yield from decoder.finish(meter)
                else:
                    _preload_decoder(meter)
                from kts_source.read.slice_decoder import SliceDecoder  # see `_preload_decoder`

                decoder = SliceDecoder(span, source, settings)
                position.move(span.task_slice, decoder)
            yield from decoder.feed(span, window)
            del window  # the next read may reuse this memory, which is still in the CPU cache
            if decoder.done and span.task_slice is slices[-1]:
                break
        if decoder is not None:
            yield from decoder.finish(meter)


def _preload_decoder(meter: TaskMeter | None) -> None:
    """Imports the decoder and links its kernel while the thread waits for the first response,
    because both are slow in a new process.
    """
    began = time.perf_counter()
    import kts_source.read.slice_decoder  # noqa: F401
    from segment_format.kernels.native import load_kernel

    load_kernel("decode_window")
    if meter is not None:
        meter.stopwatch.compile += time.perf_counter() - began


def _check_tier_exists(
    task_slice: SegmentSlice, failure: TieredKafkaError, source: SegmentSource
) -> None:
    """Raises `StoreNotFoundError` if the folder of the topic is empty, in the mirror if the plan
    reads the object there. Then the store is missing, for example because it is not mounted, and
    its records are not lost.
    """
    ref = task_slice.objects.log
    if is_in_additional_store(ref.key):
        return
    parent = ref.key.rpartition("/")[0].rpartition("/")[0]
    if not has_objects(source.store, f"{parent}/" if parent else "", ref.version):
        raise StoreNotFoundError(
            f"the tier has no object of topic {task_slice.topic} any more: its folder is not"
            " mounted, or was emptied. Mount it and run again",
            topic=task_slice.topic,
            partition=task_slice.partition,
            offset=task_slice.start_offset,
            uri=failure.uri,
        ) from failure


def _skip_rest(
    position: _Position,
    error: TieredKafkaError,
    source: SegmentSource,
    settings: ReadSettings,
    meter: TaskMeter | None,
) -> None:
    """Skips the rest of a slice whose object was deleted after planning: logs a warning, and adds
    the skipped offsets to the lost ranges of `meter`.

    Raises:
        DataLossError: `settings.fail_on_data_loss` is true.
        StoreNotFoundError: See `_check_tier_exists`.
    """
    _check_tier_exists(position.task_slice, error, source)
    task_slice, is_started = position.task_slice, position.decoder is not None
    topic, partition = task_slice.topic, task_slice.partition
    offsets = task_slice.start_offset, task_slice.stop_offset
    what = "offsets" if task_slice.is_whole else "a slice of offsets"
    rest = " (some of their rows may have been returned)" if is_started else ""
    text = (
        f"{what} [{offsets[0]}, {offsets[1]}) cannot be read{rest}: the object was deleted"
        f" after the plan was made: {error.uri}"
    )
    if settings.fail_on_data_loss:
        raise DataLossError(
            f"{text}. Plan again, or set failOnDataLoss=false to skip these offsets",
            topic=topic,
            partition=partition,
            offset=task_slice.start_offset,
            uri=error.uri,
        ) from error
    log.warning("%s-%s: %s; not read", topic, partition, text)
    if meter is not None:
        in_part = is_started or not task_slice.is_whole
        lost = LostRange(topic, partition, *offsets, in_part)
        meter.add_lost(lost, f"{topic}-{partition} {text}")
