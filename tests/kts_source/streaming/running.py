"""Runs a stream without Spark, with checkpoint, batches and restarts, over a changing tier."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from kts_source.options import check_for_stream, parse_any_options
from kts_source.read.read_task import run_task
from kts_source.streaming.offsets import INITIAL, position_from_json, position_to_json
from kts_source.streaming.tier_stream import TierStream
from tests.golden_data import KEY_PREFIX, SPARK_SCHEMA, TIER, tier_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import Any


class Clock:
    """Clock that only tests advance."""

    def __init__(self) -> None:
        self.seconds = 4_000_000_000.0

    def __call__(self) -> float:
        return self.seconds


def new_seeds(seconds: float) -> Iterator[str]:
    """Yields new random seeds until `seconds` have passed."""
    seed = random.SystemRandom().randrange(1 << 32)
    deadline = time.monotonic() + seconds
    number = 0
    while time.monotonic() < deadline:
        yield f"{seed}-{number}"
        number += 1


class Checkpointed:
    """Runs a stream as Spark does: logs the end of a batch, reads the batch, and commits it.

    Args:
        options: Options of the stream.

    Attributes:
        served: Counters: slices read from the tier (`tier`), ranges read from brokers (`brokers`),
            and batches with slices and ranges (`both`).
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self.served: Counter[str] = Counter()
        self.clock = Clock()
        self.offset_log: list[str] = []
        self.committed = 0
        self.batches: dict[int, pa.Table] = {}
        self.running: TierStream | None = None
        self.start()

    def start(self, **options: str) -> None:
        """Starts a new process after adding or replacing `options`. The process reads an
        uncommitted batch again.
        """
        self.options |= options
        parsed = parse_any_options(self.options)
        check_for_stream(parsed)
        self.close()
        self.stream = self.running = TierStream(parsed, self.clock)
        if self.committed < len(self.offset_log):
            self.read_last()
            self.committed += 1

    def close(self) -> None:
        """Ends the process."""
        if self.running is not None:
            self.running.close()

    def position(self, number: int) -> dict[str, Any]:
        """Returns the end position of batch `number`; −1 means the start of the first batch."""
        if number < 0:
            return position_to_json(INITIAL)
        logged: dict[str, Any] = json.loads(self.offset_log[number])
        return logged

    @property
    def last(self) -> dict[str, Any]:
        """Returns the end position of the last logged batch."""
        return self.position(len(self.offset_log) - 1)

    def last_offset(self, topic: str, partition: int = 0) -> int:
        """Returns the last logged offset of a partition, or 0."""
        topics = self.last.get("topics", {}) if self.offset_log else {}
        return int(topics.get(topic, {}).get("p", {}).get(str(partition), 0))

    def choose(self, *, limited: bool = True) -> bool:
        """Logs the end of the next batch; returns false if there is no new batch. The limits in the
        options apply only if `limited` is true.
        """
        start = self.position(len(self.offset_log) - 1)
        position = position_from_json(start)
        end = self.stream.next(position, limited=limited)
        text = json.dumps(start if end is position else position_to_json(end))
        if self.offset_log and text == self.offset_log[-1]:
            return False
        assert position_to_json(position_from_json(json.loads(text))) == json.loads(text)
        self.offset_log.append(text)
        return True

    def read_last(self) -> None:
        """Reads the last logged batch."""
        number = len(self.offset_log) - 1
        start, end = (position_from_json(self.position(batch)) for batch in (number - 1, number))
        plan = self.stream.plan(start, end)
        tasks = [] if plan is None else plan.tasks
        tiered, ranges = (
            sum(len(getattr(task, name)) for task in tasks) for name in ("slices", "ranges")
        )
        self.served.update(tier=tiered, brokers=ranges, both=min(tiered, ranges, 1))
        options = parse_any_options(self.options)
        batches = [batch for task in tasks for batch in run_task(task, options)]
        schema = batches[0].schema if batches else SPARK_SCHEMA
        self.batches[number] = pa.Table.from_batches(batches, schema)

    def batch(self, *, limited: bool = True) -> bool:
        """Logs, reads and commits the next batch; returns false if there is no new batch."""
        if not self.choose(limited=limited):
            return False
        self.read_last()
        self.committed += 1
        return True

    def all(self, *, at_most: int = 1000) -> int:
        """Runs batches until there is no new batch. Returns the number of batches."""
        for count in range(at_most):
            if not self.batch():
                return count
        raise AssertionError("the stream does not end")

    def write(self, checkpoint: Path) -> None:
        """Writes the stream's log as a checkpoint folder with the files of Spark's `OffsetSeqLog`
        and `CommitLog`.
        """
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True)
            for number, text in enumerate(self.offset_log):
                lines = ["v1", "{}", text] if name == "offsets" else ["v1", "{}"]
                (checkpoint / name / str(number)).write_text("\n".join(lines))


class Running(Checkpointed):
    """Runs a stream over golden topics, with all columns.

    Args:
        path: Path of the tier.
        topics: Subscribed topics, unless `options` selects topics differently.
        options: Options of the stream.
    """

    def __init__(self, path: Path, topics: str | Iterable[str], **options: str) -> None:
        defaults = {"includeHeaders": "true", "minListingIntervalMs": "0"}
        stream_options = {
            **tier_options(topics, **{**defaults, **options}),
            "path": path.as_uri(),
        }
        if not options.keys().isdisjoint(("subscribePattern", "assign")):
            del stream_options["subscribe"]
        super().__init__(stream_options)

    def rows(self) -> pa.Table:
        """Returns the rows of all batches."""
        return pa.concat_tables([SPARK_SCHEMA.empty_table(), *self.batches.values()])


class GrowingTier:
    """A tier into which tests copy segments of golden topics, and from which they delete segments.
    `path` is the folder to create.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / KEY_PREFIX).mkdir(parents=True)

    def folder(self, topic: str, partition: int = 0, *, topic_id: str | None = None) -> Path:
        """Returns the folder of a partition in the golden tier."""
        folders = [
            folder
            for folder in (TIER / KEY_PREFIX).iterdir()
            if folder.name[:-23] == topic and topic_id in (None, folder.name[-22:])
        ]
        (topic_folder,) = folders
        return topic_folder / str(partition)

    def stems(self, folder: Path) -> list[str]:
        """Returns the file name stems of the complete segments of a golden folder, in order."""
        return sorted(path.name.split(".")[0] for path in folder.glob("*.rsm-manifest"))

    def local_folder(self, folder: Path) -> Path:
        """Returns the folder of this tier that corresponds to the golden folder `folder`. Creates
        it if it is missing.
        """
        copy = self.path / folder.relative_to(TIER)
        copy.mkdir(parents=True, exist_ok=True)
        return copy

    def add(self, folder: Path, stems: Iterable[str]) -> None:
        """Copies segments into the tier. Each object appears atomically, as in an object store."""
        for stem in stems:
            for source in sorted(folder.glob(f"{stem}.*")):
                copy = self.path / source.name
                shutil.copy2(source, copy)
                copy.rename(self.local_folder(folder) / source.name)

    def remove(self, folder: Path, stems: Iterable[str]) -> None:
        """Deletes segments."""
        for stem in stems:
            for copy in self.local_folder(folder).glob(f"{stem}.*"):
                copy.unlink()
