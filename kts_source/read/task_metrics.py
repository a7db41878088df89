"""Measures the requests, bytes, seconds and records of each attempt of a task. Writes the metrics
of an attempt as one line of JSON.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import socket
import threading
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from kts_source.errors import InvalidOptionError
from kts_source.secret import scrub
from kts_source.store.local_store import local_root
from kts_source.store.open_store import scheme_of
from kts_source.store.storage_options import filesystem_arguments, s3_arguments, secret_values
from segment_format.manifest.transform import RestoreTimes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.read.task import ScanTask
    from kts_source.tier import Tier
    from segment_format.arrow import DecodeCounters

T = TypeVar("T")

log = logging.getLogger(__name__)

DONE: Final = "done"
CLOSED: Final = "closed"  # the consumer stopped reading, as with LIMIT


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Identifies one attempt of a task: the scan, and the numbers that the engine assigned.

    Attributes:
        scan: Id of the scan, the same for all tasks of a DataFrame.
        stage: Number of the run. If a DataFrame is read twice, the two runs have different numbers.
        partition: Number of the task within the run.
        attempt: Number of the attempt; 0 is the first attempt.
        run_id: Id of the run of an export; empty for other scans.
    """

    scan: str = ""
    stage: int | None = None
    partition: int | None = None
    attempt: int = 0
    run_id: str = ""


class LostRange(NamedTuple):
    """Offsets [start, stop) that were skipped because data was deleted after planning.

    Attributes:
        in_part: True if records with some of these offsets may have been returned.
    """

    topic: str
    partition: int
    start: int
    stop: int
    in_part: bool


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """Metrics of one attempt of one task.

    Attributes:
        scan: See `TaskPlace`, also for `stage`, `partition`, `attempt` and `run_id`.
        outcome: `done`, `closed` (the consumer stopped reading early), or the class name of the
            error.
        topic_partitions: Partitions that were read, such as `orders-0`.
        slices: Number of slices of the task. A slice is a segment or a part of it.
        rows: Number of rows returned.
        seconds: Duration of the task, including the time that the consumer spent between batches.
        requests: Reads and look-ups sent to the store, including repeated attempts.
        list_requests: Requested pages of listings.
        bytes: Bytes received from the store, as stored.
        retries: Attempts that repeated a failed request.
        hedges: Second requests that were sent because the first response was late.
        mirrored: Reads and listings that the mirror of the store served.
        cache_hits: Byte ranges read from the cache on local disk.
        cache_misses: Byte ranges read from the store because the cache did not have them.
        cache_bytes: Bytes read from the cache on local disk.
        fetch_seconds: Seconds of requests, summed over all threads.
        wait_seconds: Seconds that the task waited for bytes.
        decrypt_seconds: Seconds of decrypting chunks.
        decompress_seconds: Seconds of decompressing chunks. Decompression of record batches counts
            as decoding.
        decode_seconds: Seconds of decoding record batches to Arrow.
        batches: Record batches read.
        records: Decoded records, including those that option `where` then excluded.
        decoded_bytes: Bytes of the batches that were read, as in the segment.
        batches_skipped_control: Skipped control batches; they mark the end of a transaction.
        batches_skipped_aborted: Skipped batches of aborted transactions.
        batches_skipped_offset: Skipped batches outside the wanted offsets.
        records_skipped_offset: Skipped records outside the wanted offsets, in batches that also
            contain wanted offsets.
        batches_skipped_timestamp: Batches that were skipped because `where` excludes the timestamps
            in their headers.
        records_skipped_key: Records that `find` skipped because of their key.
        broker_ranges: Ranges of offsets that the plan reads from brokers.
        broker_requests: Fetch requests sent to brokers.
        broker_bytes: Bytes of record batches that brokers sent.
        broker_fallbacks: Slices whose rest was read from brokers because the tier failed.
        lost: Descriptions of the ranges of offsets that were skipped because their data was
            deleted.
        lost_ranges: The same ranges as in `lost`, as `LostRange`.
        malformed: Number of rows skipped because their key or value could not be decoded.
        pinned_by: Method by which the store ensures that the planned version of each object is
            read.
        compile_seconds: Seconds of loading or compiling the decoder in this process.
        ended: End of the attempt in UTC, in ISO 8601.
        host: Name of the machine.
    """

    scan: str = ""
    stage: int | None = None
    partition: int | None = None
    attempt: int = 0
    outcome: str = DONE
    topic_partitions: tuple[str, ...] = ()
    slices: int = 0
    rows: int = 0
    seconds: float = 0.0
    requests: int = 0
    list_requests: int = 0
    bytes: int = 0
    retries: int = 0
    hedges: int = 0
    mirrored: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_bytes: int = 0
    fetch_seconds: float = 0.0
    wait_seconds: float = 0.0
    decrypt_seconds: float = 0.0
    decompress_seconds: float = 0.0
    decode_seconds: float = 0.0
    batches: int = 0
    records: int = 0
    decoded_bytes: int = 0
    batches_skipped_control: int = 0
    batches_skipped_aborted: int = 0
    batches_skipped_offset: int = 0
    records_skipped_offset: int = 0
    batches_skipped_timestamp: int = 0
    records_skipped_key: int = 0
    broker_ranges: int = 0
    broker_requests: int = 0
    broker_bytes: int = 0
    broker_fallbacks: int = 0
    lost: tuple[str, ...] = ()
    lost_ranges: tuple[LostRange, ...] = ()
    malformed: int = 0
    pinned_by: str = ""
    run_id: str = ""
    compile_seconds: float = 0.0
    ended: str = ""
    host: str = ""

    def to_json(self) -> str:
        """Returns the metrics as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> TaskMetrics:
        """Parses a line that `to_json` returned. Ignores unknown attributes, and uses defaults for
        missing ones.

        Raises:
            ValueError: The line is not a JSON object.
        """
        document = json.loads(line)
        if not isinstance(document, dict):
            raise ValueError("a line of metrics must be a JSON object")
        names = {field.name for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in document.items()
            if name in names
        }
        values["lost_ranges"] = tuple(LostRange(*lost) for lost in values.get("lost_ranges", ()))
        return cls(**values)

    @property
    def _ids(self) -> str:
        ids = {"scan": self.scan, "run": self.run_id}
        texts = [f"{name} {value}" for name, value in ids.items() if value]
        return f" ({', '.join(texts)})" if texts else ""

    def __str__(self) -> str:
        """Returns a one-line summary for logs."""
        skipped = self.batches_skipped_control + self.batches_skipped_aborted
        texts = [
            f"task {self.outcome}: {self.rows} rows of {', '.join(self.topic_partitions)}"
            + self._ids,
            f"{self.seconds:.3f} s (waited {self.wait_seconds:.3f}, decrypted"
            f" {self.decrypt_seconds:.3f}, decompressed {self.decompress_seconds:.3f}, decoded"
            f" {self.decode_seconds:.3f})",
            f"{self.requests} requests, {self.bytes} bytes, {self.retries} retries",
        ]
        if self.hedges or self.mirrored:
            texts.append(f"{self.hedges} hedged, {self.mirrored} from the mirror")
        if self.cache_hits or self.cache_misses:
            texts.append(f"{self.cache_hits} of {self.cache_hits + self.cache_misses} from cache")
        texts.append(
            f"{self.batches} batches, {skipped} of them control or aborted,"
            f" {self.batches_skipped_offset} outside the offsets,"
            f" {self.batches_skipped_timestamp} outside the timestamps"
        )
        if self.broker_requests:
            texts.append(
                f"{self.broker_bytes} bytes in {self.broker_requests} fetches from brokers,"
                f" {self.broker_fallbacks} of them in place of the tier"
            )
        if self.malformed:
            texts.append(f"{self.malformed} rows skipped that cannot be decoded")
        if self.lost:
            texts.append(f"lost: {'; '.join(self.lost)}")
        return ", ".join(texts)


@dataclass(slots=True)
class Stopwatch:
    """Adds up the seconds that a task spends on each kind of work.

    Attributes:
        fetch: Seconds of requests, summed over all threads. With good read-ahead, this is longer
            than the duration of the task.
        wait: Seconds of waiting for bytes in the task's thread.
        decode: Seconds of decoding record batches to Arrow, including their decompression.
        compile: Seconds of loading or compiling the decoder.
        restore: Seconds of decrypting and decompressing chunks.
    """

    fetch: float = 0.0
    wait: float = 0.0
    decode: float = 0.0
    compile: float = 0.0
    restore: RestoreTimes = field(default_factory=RestoreTimes)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fetched(self, seconds: float) -> None:
        """Adds the seconds of one request to `fetch`. Thread-safe."""
        with self._lock:
            self.fetch += seconds

    def restored(self, times: RestoreTimes) -> None:
        """Adds the seconds of decrypting and decompressing one chunk. Thread-safe."""
        with self._lock:
            self.restore.decrypt += times.decrypt
            self.restore.decompress += times.decompress

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Adds the duration of the `with` block to `wait`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.wait += time.perf_counter() - began

    def decoding(self, items: Iterator[T]) -> Iterator[T]:
        """Yields the items. Measures the seconds that the iterator needs to produce them, and adds
        them to `decode`.
        """
        while True:
            began = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.decode += time.perf_counter() - began
            yield item


@dataclass(slots=True)
class BrokerWork:
    """Counts a task's requests to brokers, the bytes from brokers, and the fallbacks to brokers;
    see `TaskMetrics`.
    """

    requests: int = 0
    bytes: int = 0
    fallbacks: int = 0


class TaskMeter:
    """Counts the work of one attempt of a task. The measurement starts when the object is
    created.
    """

    def __init__(self, task: ScanTask, tier: Tier, location: TaskPlace) -> None:
        self._task = task
        self._tier = tier
        self._place = location
        self._began = time.monotonic()
        self._work = tier.store.counters
        self._cached = tier.caches.counters
        self.run = f"{location.scan} {location.stage}" if location.scan else ""
        self.stopwatch = Stopwatch()
        self.brokers = BrokerWork()
        self.rows = 0
        self.malformed = 0
        self._lost: list[tuple[LostRange, str]] = []
        self._decoded = Counter[str]()

    def add_decoded(self, counters: DecodeCounters) -> None:
        """Adds the counters of a decoder after it has decoded a slice or a range."""
        self._decoded.update(dataclasses.asdict(counters))

    def add_lost(self, lost: LostRange, text: str) -> None:
        """Adds a range of skipped offsets, and a text that describes it."""
        self._lost.append((lost, text))

    def finished(self, outcome: str) -> TaskMetrics:
        """Returns the metrics of the attempt. Call it before the store is closed."""
        tier, times = self._tier, self.stopwatch
        decoded: dict[str, Any] = dict(self._decoded)
        cached = tier.caches.counters - self._cached
        return TaskMetrics(
            **dataclasses.asdict(self._place),
            outcome=outcome,
            topic_partitions=self._task.topic_partitions,
            slices=len(self._task.slices),
            rows=self.rows,
            seconds=round(time.monotonic() - self._began, 6),
            **dataclasses.asdict(tier.store.counters - self._work),
            cache_hits=cached.hits,
            cache_misses=cached.misses,
            cache_bytes=cached.bytes_served,
            fetch_seconds=round(times.fetch, 6),
            wait_seconds=round(times.wait, 6),
            decrypt_seconds=round(times.restore.decrypt, 6),
            decompress_seconds=round(times.restore.decompress, 6),
            decode_seconds=round(times.decode, 6),
            decoded_bytes=decoded.pop("bytes", 0),
            **decoded,
            broker_ranges=len(self._task.ranges),
            broker_requests=self.brokers.requests,
            broker_bytes=self.brokers.bytes,
            broker_fallbacks=self.brokers.fallbacks,
            lost=tuple(text for _, text in self._lost),
            lost_ranges=tuple(lost for lost, _ in self._lost),
            malformed=self.malformed,
            pinned_by=tier.store.pinning,
            compile_seconds=round(times.compile, 6),
            ended=datetime.now(UTC).isoformat(timespec="milliseconds"),
            host=socket.gethostname(),
        )


def write_metrics(metrics: TaskMetrics, path: str, storage: Mapping[str, Any]) -> None:
    """Writes the metrics as one line of JSON to a new file below folder or URL `path`, in a folder
    for the UTC day. If this fails, only logs a warning.
    """
    numbers = "-".join(
        "x" if number is None else str(number)
        for number in (metrics.stage, metrics.partition, metrics.attempt)
    )
    name = f"task-{numbers}-{uuid.uuid4().hex}.jsonl"
    day = metrics.ended[:10]
    line = f"{metrics.to_json()}\n".encode()
    try:
        if scheme_of(path) == "file":
            folder = local_root(path) / day
            folder.mkdir(parents=True, exist_ok=True)
            # Write another name first, because readers of `*.jsonl` must not see partial lines.
            hidden = folder / f".{name}.new"
            hidden.write_bytes(line)
            hidden.rename(folder / name)
        else:
            open_filesystem(path, storage).pipe_file(f"{path.rstrip('/')}/{day}/{name}", line)
    except Exception as error:  # noqa: BLE001  # metrics must not fail a task
        text = scrub(f"{type(error).__name__}: {error}", secret_values(storage))
        log.warning("metrics could not be written to %s: %s", scrub(path), text)


def read_metrics(path: str, storage: Mapping[str, Any]) -> list[TaskMetrics]:
    """Reads the metrics from all `*.jsonl` files in a folder or below a URL. Sorts them by scan,
    stage, partition and attempt.

    Raises:
        InvalidOptionError: The folder does not exist.
    """
    if scheme_of(path) == "file":
        folder = Path(local_root(path))
        exists = folder.is_dir()
        texts = [file.read_text("utf-8") for file in folder.rglob("*.jsonl")]
    else:
        filesystem = open_filesystem(path, storage)
        exists = filesystem.exists(path)
        names = [name for name in filesystem.find(path) if name.endswith(".jsonl")]
        texts = [filesystem.cat_file(name).decode() for name in names]
    if not exists:
        raise InvalidOptionError(
            f"there are no metrics at {scrub(path)}: the folder does not exist. Use the value that"
            " a scan had as option metricsPath"
        )
    tasks = [TaskMetrics.from_json(line) for text in texts for line in text.splitlines()]
    return sorted(
        tasks, key=lambda task: (task.scan, task.stage or 0, task.partition or 0, task.attempt)
    )


def open_filesystem(path: str, storage: Mapping[str, Any]) -> Any:  # noqa: ANN401  # fsspec ships no types
    """Opens the fsspec file system of a URL, for small files such as metrics."""
    import fsspec

    scheme = scheme_of(path)
    if scheme == "s3":
        return fsspec.filesystem("s3", **s3_arguments(storage))
    return fsspec.filesystem(scheme, **filesystem_arguments(path, storage))
