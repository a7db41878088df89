"""Runs one task with its own store, and tells what it cost: a log line, and a line of JSON."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kts_source.read.read_settings import FOR_SPARK, BatchLimits, ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task_metrics import CLOSED, DONE, TaskMeter, TaskMetrics, TaskPlace
from kts_source.secret import scrub
from kts_source.store.local_store import local_root
from kts_source.store.open_store import scheme_of
from kts_source.store.request_policy import CancelledFetchError
from kts_source.store.storage_options import extra_arguments, s3_arguments, secret_values
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    import pyarrow as pa

    from kts_source.options import ScanOptions
    from kts_source.read.task import ScanTask
    from kts_source.read.typed_rows import SetAside
    from kts_source.tier import Tier

log = logging.getLogger(__name__)

_NOWHERE = TaskPlace()


def run_task(
    task: ScanTask,
    options: ScanOptions,
    place: TaskPlace = _NOWHERE,
    *,
    batches: BatchLimits = FOR_SPARK,
    whole: bool = False,
    on_end: Callable[[TaskMetrics], object] = lambda _metrics: None,
    opened: Tier | None = None,
    set_aside: SetAside | None = None,
) -> Generator[pa.RecordBatch]:
    """The rows of a task. Close the iterator to stop what is under way.

    Args:
        task: What to read.
        options: How, and from where.
        place: Which task of which scan.
        batches: How large batches grow.
        whole: Whether all rows are wanted for certain, so that the first request need not stand
            alone.
        on_end: Called with the sum when the task has ended, however it did.
        opened: The tier, where a thread reads task after task of it; it stays open.
        set_aside: Given rows whose key or value cannot be decoded; see `TypedRows`.

    Raises:
        TieredKafkaError: See `read_task`.
    """
    tier = open_tier(options) if opened is None else opened
    meter = TaskMeter(task, tier, place)
    outcome = CLOSED
    try:
        reader = SegmentSource(tier, options.key_ring)
        settings = replace(ReadSettings.of(options), batches=batches)
        if whole or place.partition:
            # LIMIT asks the first task alone; later ones are wanted whole and need not wait.
            ahead = replace(settings.read_ahead, slow_start=False)
            settings = replace(settings, read_ahead=ahead)
        for batch in read_task(task, reader, settings, meter=meter, set_aside=set_aside):
            meter.rows += batch.num_rows
            yield batch
        outcome = DONE
    except CancelledFetchError:  # closed by who runs it in a thread
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


def write_metrics(metrics: TaskMetrics, path: str, storage: Mapping[str, Any]) -> None:
    """Leaves one line of JSON in a file of its own. A failure is logged and ends nothing.

    Args:
        metrics: The line.
        path: Folder or URL; a folder is made if it is not there.
        storage: Storage options of the URL, credentials among them.
    """
    place = (metrics.stage, metrics.partition, metrics.attempt)
    numbers = "-".join("x" if number is None else str(number) for number in place)
    name = f"task-{numbers}-{uuid.uuid4().hex}.jsonl"
    line = f"{metrics.to_json()}\n".encode()
    try:
        if scheme_of(path) == "file":
            folder = local_root(path)
            folder.mkdir(parents=True, exist_ok=True)
            # Whoever reads the folder meanwhile must not see half a line, as `*.jsonl` would show.
            hidden = folder / f".{name}.new"
            hidden.write_bytes(line)
            hidden.rename(folder / name)
        else:
            open_filesystem(path, storage).pipe_file(f"{path.rstrip('/')}/{name}", line)
    except Exception as error:  # noqa: BLE001  # metrics are no reason to lose a task
        text = scrub(f"{type(error).__name__}: {error}", secret_values(storage))
        log.warning("metrics could not be written to %s: %s", scrub(path), text)


def read_metrics(path: str, storage: Mapping[str, Any]) -> list[TaskMetrics]:
    """All lines below a folder or URL, in order of scan, stage, partition and attempt."""
    if scheme_of(path) == "file":
        texts = [file.read_text("utf-8") for file in Path(local_root(path)).glob("*.jsonl")]
    else:
        filesystem = open_filesystem(path, storage)
        names = [name for name in filesystem.find(path) if name.endswith(".jsonl")]
        texts = [filesystem.cat_file(name).decode() for name in names]
    found = [TaskMetrics.from_json(line) for text in texts for line in text.splitlines()]
    return sorted(
        found, key=lambda one: (one.scan, one.stage or 0, one.partition or 0, one.attempt)
    )


def open_filesystem(path: str, storage: Mapping[str, Any]) -> Any:  # noqa: ANN401  # fsspec ships no types
    """The file system of a URL, for small files beside a tier."""
    import fsspec

    scheme = scheme_of(path)
    if scheme == "s3":
        return fsspec.filesystem("s3", **s3_arguments(storage))
    return fsspec.filesystem(scheme, **extra_arguments(storage))
