"""Tasks of an engine that runs all of them in threads of its own process, such as Sail.

Sail takes a task's batches through a channel with room for 16, and holds Python's lock while it
waits for room. Whoever should make room may need that lock, such as a Python function. So a task
never fills the channel: it hands over at most `MOST_BATCHES`, and is small enough for that. Then it
never waits for the engine, and who waits for a turn waits for no more than another task's decoding.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kts_source.errors import InvalidOptionError
from kts_source.read.read_settings import BatchLimits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from kts_source.options import ScanOptions
    from kts_source.read.task import ScanTask

MOST_BATCHES: Final = 15
"""Of a task: the channel has room for one more, which tells its end."""
TASK_BYTES: Final = 16 << 20
"""Original bytes of a task, unless `targetPartitionBytes` is given: all its rows may wait."""
_LIMITS: Final = BatchLimits(1 << 17, 4 << 20)
_MOST_COLUMN_BYTES: Final = (1 << 31) - 1
"""Arrow counts the bytes of a batch's column in 32 bits: what is longer becomes two batches."""
_SLEEP_SECONDS: Final = 0.001


def with_small_tasks(options: ScanOptions) -> ScanOptions:
    """The options, with tasks that such an engine can hold."""
    if "targetPartitionBytes" in options.given:
        return options
    return replace(options, target_partition_bytes=TASK_BYTES)


def few_batches(task: ScanTask, options: ScanOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a task in at most `MOST_BATCHES` batches.

    Raises:
        TieredKafkaError: Bytes that are not what was planned.
    """
    from kts_source.read.read_task import run_task

    # Whatever a query's limit, all tasks are read at once.
    with _turns.one(), closing(run_task(task, options, batches=_LIMITS, whole=True)) as rows:
        yield from joined_at_last(rows)


def joined_at_last(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows; what comes behind the first ones is one batch.

    Raises:
        InvalidOptionError: That is more than one batch can hold. A second one might fill the
            channel, and then nobody could ever go on.
    """
    import pyarrow as pa

    rest: list[pa.RecordBatch] = []
    sizes: Counter[int] = Counter()
    for number, batch in enumerate(batches, 1):
        if number < MOST_BATCHES:
            yield batch
            continue
        rest.append(batch)
        sizes.update({place: column.nbytes for place, column in enumerate(batch.columns)})
        if max(sizes.values(), default=0) > _MOST_COLUMN_BYTES:
            raise InvalidOptionError(
                "a task has too many rows for Sail, which takes all of them at once: make option"
                f" targetPartitionBytes smaller; {TASK_BYTES} is the default"
            )
    if rest:
        yield from pa.Table.from_batches(rest).combine_chunks().to_batches()


class _Turns:
    """How many tasks decode at a time: all of them at once would only hold memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._most = os.cpu_count() or 1
        self._now = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Waits for a turn without Python's lock, and gives it back."""
        while not self._taken():
            time.sleep(_SLEEP_SECONDS)
        try:
            yield
        finally:
            with self._lock:
                self._now -= 1

    def _taken(self) -> bool:
        with self._lock:
            if self._now >= self._most:
                return False
            self._now += 1
            return True


_turns: Final = _Turns()
