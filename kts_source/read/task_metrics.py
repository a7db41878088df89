"""What a task did: requests, bytes, seconds, records. One line of JSON a task attempt."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from segment_format.manifest.transform import RestoreTimes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.read.task import ScanTask
    from kts_source.tier import Tier
    from segment_format.arrow import DecodeCounters

T = TypeVar("T")

DONE: Final = "done"
CLOSED: Final = "closed"  # the consumer wanted no more, as LIMIT does


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Which task of which scan, as the engine that runs it knows.

    Attributes:
        scan: One text for all tasks of a DataFrame.
        stage: The engine's number of the run; a DataFrame that is read twice has two.
        partition: Number of the task within the run.
        attempt: 0 for the first.
    """

    scan: str = ""
    stage: int | None = None
    partition: int | None = None
    attempt: int = 0


class LostRange(NamedTuple):
    """Offsets [start, stop) whose object has gone since the plan was made.

    Attributes:
        in_part: Whether some of them may have been returned.
    """

    topic: str
    partition: int
    start: int
    stop: int
    in_part: bool


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """One attempt of one task.

    Attributes:
        scan: See `TaskPlace`, as for `stage`, `partition` and `attempt`.
        outcome: `done`, `closed` (the consumer wanted no more), or the name of the error.
        topic_partitions: What was read, such as `orders-0`.
        slices: Segments, or slices of them.
        rows: Rows handed on.
        seconds: From the task's begin to its end, the consumer's time included.
        requests: Reads and look-ups sent, each attempt counted.
        list_requests: Listing pages asked for.
        bytes: Stored bytes received.
        retries: Attempts made again.
        hedges: Second requests, sent because the first was late.
        mirrored: Reads and listings that the mirror answered.
        cache_hits: Ranges found on local disk.
        cache_misses: Ranges asked of the store although there is a cache.
        cache_bytes: Bytes found on local disk.
        fetch_seconds: Time of requests, of all threads together.
        wait_seconds: Time for which the task waited for bytes.
        decrypt_seconds: Time to decrypt chunks.
        decompress_seconds: Time to decompress chunks; codecs of record batches count as decoding.
        decode_seconds: Time from record batches to Arrow.
        batches: Record batches met.
        records: Records that became rows (before option `where`).
        decoded_bytes: Bytes of those batches as stored in the segment.
        batches_skipped_control: Batches that mark the end of a transaction.
        batches_skipped_aborted: Batches of aborted transactions.
        batches_skipped_offset: Batches outside the offsets wanted.
        records_skipped_offset: Records outside the offsets wanted, in batches that were decoded.
        batches_skipped_timestamp: Batches dated, by their headers, outside what `where` wants.
        records_skipped_key: Records that `find` left out for their key.
        broker_ranges: Ranges of offsets that were planned to come from brokers.
        broker_requests: Fetches sent to brokers.
        broker_bytes: Bytes of record batches that brokers sent.
        broker_fallbacks: Slices that brokers finished because the tier did not give them.
        lost: Ranges of offsets that were left out because their objects had gone, as text.
        lost_ranges: The same, as values.
        malformed: Rows left out because their key or value could not be decoded.
        pinned_by: How reads were held to the planned version of each object.
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

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> TaskMetrics:
        """What `to_json` wrote, also of a version that knew more or fewer attributes.

        Raises:
            ValueError: Not a JSON object.
        """
        document = json.loads(line)
        if not isinstance(document, dict):
            raise ValueError("a line of metrics is a JSON object")
        names = {one.name for one in dataclasses.fields(cls)}
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in document.items()
            if name in names
        }
        known["lost_ranges"] = tuple(LostRange(*lost) for lost in known.get("lost_ranges", ()))
        return cls(**known)

    def __str__(self) -> str:
        """One line for people."""
        skipped = self.batches_skipped_control + self.batches_skipped_aborted
        parts = [
            f"task {self.outcome}: {self.rows} rows of {', '.join(self.topic_partitions)}",
            f"{self.seconds:.3f} s (waited {self.wait_seconds:.3f}, decrypted"
            f" {self.decrypt_seconds:.3f}, decompressed {self.decompress_seconds:.3f}, decoded"
            f" {self.decode_seconds:.3f})",
            f"{self.requests} requests, {self.bytes} bytes, {self.retries} retries",
        ]
        if self.hedges or self.mirrored:
            parts.append(f"{self.hedges} asked twice, {self.mirrored} from the mirror")
        if self.cache_hits or self.cache_misses:
            parts.append(f"{self.cache_hits} of {self.cache_hits + self.cache_misses} from cache")
        parts.append(
            f"{self.batches} batches, {skipped} of them control or aborted,"
            f" {self.batches_skipped_offset} outside the offsets,"
            f" {self.batches_skipped_timestamp} outside the timestamps"
        )
        if self.broker_requests:
            parts.append(
                f"{self.broker_bytes} bytes in {self.broker_requests} fetches from brokers,"
                f" {self.broker_fallbacks} of them in place of the tier"
            )
        if self.malformed:
            parts.append(f"{self.malformed} rows left out that cannot be decoded")
        if self.lost:
            parts.append(f"lost: {'; '.join(self.lost)}")
        return ", ".join(parts)


@dataclass(slots=True)
class Stopwatch:
    """Seconds by what they were spent on.

    Attributes:
        fetch: Requests, of all threads together; a multiple of the task's own time is good.
        wait: Waiting for bytes, in the task's own thread.
        restore: Decrypting and decompressing chunks.
        decode: From batches of records to Arrow, their codecs included.
    """

    fetch: float = 0.0
    wait: float = 0.0
    decode: float = 0.0
    restore: RestoreTimes = field(default_factory=RestoreTimes)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fetched(self, seconds: float) -> None:
        """Adds a request; from any thread."""
        with self._lock:
            self.fetch += seconds

    def restored(self, times: RestoreTimes) -> None:
        """Adds a chunk; from any thread."""
        with self._lock:
            self.restore.decrypt += times.decrypt
            self.restore.decompress += times.decompress

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Adds the time of the block to `wait`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.wait += time.perf_counter() - began

    def decoding(self, items: Iterator[T]) -> Iterator[T]:
        """The same items; the time to make them, not to use them, is added to `decode`."""
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
    """What brokers did for a task; see `TaskMetrics`."""

    requests: int = 0
    bytes: int = 0
    fallbacks: int = 0


class TaskMeter:
    """Adds up one attempt of a task while it runs.

    Args:
        task: What is read.
        tier: From where; its counters at this moment are the zero.
        place: Which task of which scan.
    """

    def __init__(self, task: ScanTask, tier: Tier, place: TaskPlace) -> None:
        self._task = task
        self._tier = tier
        self._place = place
        self._began = time.monotonic()
        self._work = tier.store.counters
        self._cached = tier.caches.counters
        # A DataFrame that is read twice has two.
        self.run = f"{place.scan} {place.stage}" if place.scan else ""
        self.stopwatch = Stopwatch()
        self.brokers = BrokerWork()
        self.rows = 0
        self.malformed = 0
        self._lost: list[tuple[LostRange, str]] = []
        self._decoded = Counter[str]()

    def add_decoded(self, counters: DecodeCounters) -> None:
        """Adds what the decoder of one slice has met."""
        self._decoded.update(dataclasses.asdict(counters))

    def add_lost(self, lost: LostRange, text: str) -> None:
        """Adds a range of offsets whose object has gone, and what to say of it."""
        self._lost.append((lost, text))

    def finished(self, outcome: str) -> TaskMetrics:
        """The sum, to be taken before the store is closed."""
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
        )
