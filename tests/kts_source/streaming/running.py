"""A stream without Spark: its checkpoint, its batches, its crashes; and a tier that changes."""

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
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 4_000_000_000.0

    def __call__(self) -> float:
        return self.seconds


def new_seeds(seconds: float) -> Iterator[str]:
    """Seeds that nobody has seen, for so long."""
    seed = random.SystemRandom().randrange(1 << 32)
    stop = time.monotonic() + seconds
    number = 0
    while time.monotonic() < stop:
        yield f"{seed}-{number}"
        number += 1


class Checkpointed:
    """What Spark does around a stream: logs the end of a batch, reads it, commits it.

    Args:
        options: Of the stream.

    Attributes:
        served: How many pieces of its batches came from the tier, from brokers, and how many
            batches had some of both.
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
        """A new process, perhaps with other options; a batch that was not committed comes again."""
        self.options |= options
        parsed = parse_any_options(self.options)
        check_for_stream(parsed)
        self.close()
        self.stream = self.running = TierStream(parsed, self.clock)
        if self.committed < len(self.offset_log):
            self.read_last()
            self.committed += 1

    def close(self) -> None:
        """The process ends."""
        if self.running is not None:
            self.running.close()

    def position(self, number: int) -> dict[str, Any]:
        """Where batch `number` ends; −1 is where the first one begins."""
        if number < 0:
            return position_to_json(INITIAL)
        logged: dict[str, Any] = json.loads(self.offset_log[number])
        return logged

    @property
    def last(self) -> dict[str, Any]:
        """Where the batch logged last ends."""
        return self.position(len(self.offset_log) - 1)

    def last_offset(self, topic: str, partition: int = 0) -> int:
        """Where it is in a partition; 0 before it was there."""
        topics = self.last.get("topics", {}) if self.offset_log else {}
        return int(topics.get(topic, {}).get("p", {}).get(str(partition), 0))

    def choose(self, *, limited: bool = True) -> bool:
        """Logs the next batch; whether there is one."""
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
        """Reads the batch logged last."""
        number = len(self.offset_log) - 1
        positions = (position_from_json(self.position(at)) for at in (number - 1, number))
        plan = self.stream.plan(*positions)
        tasks = [] if plan is None else plan.tasks
        tiered, ranges = (
            sum(len(getattr(one, name)) for one in tasks) for name in ("slices", "ranges")
        )
        self.served.update(tier=tiered, brokers=ranges, both=min(tiered, ranges, 1))
        options = parse_any_options(self.options)
        batches = [batch for task in tasks for batch in run_task(task, options)]
        schema = batches[0].schema if batches else SPARK_SCHEMA
        self.batches[number] = pa.Table.from_batches(batches, schema)

    def batch(self, *, limited: bool = True) -> bool:
        """One batch; whether there was one."""
        if not self.choose(limited=limited):
            return False
        self.read_last()
        self.committed += 1
        return True

    def all(self, *, at_most: int = 1000) -> int:
        """Batches until nothing is new; how many."""
        for count in range(at_most):
            if not self.batch():
                return count
        raise AssertionError("it does not end")

    def write(self, checkpoint: Path) -> None:
        """A checkpoint location as Spark writes it (`OffsetSeqLog`, `CommitLog`)."""
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True)
            for number, text in enumerate(self.offset_log):
                lines = ["v1", "{}", text] if name == "offsets" else ["v1", "{}"]
                (checkpoint / name / str(number)).write_text("\n".join(lines))


class Running(Checkpointed):
    """The same over golden topics, with all columns.

    Args:
        path: The tier.
        topics: What is subscribed to, unless the options say otherwise.
        options: Of the stream.
    """

    def __init__(self, path: Path, topics: str | Iterable[str], **options: str) -> None:
        given = {"includeHeaders": "true", "minListingIntervalMs": "0", **options}
        wanted = {**tier_options(topics, **given), "path": path.as_uri()}
        if not options.keys().isdisjoint(("subscribePattern", "assign")):
            del wanted["subscribe"]
        super().__init__(wanted)

    def rows(self) -> pa.Table:
        """The rows of all batches."""
        return pa.concat_tables([SPARK_SCHEMA.empty_table(), *self.batches.values()])


class GrowingTier:
    """A copy of golden topics to which segments are added, oldest first, and which loses some.

    Args:
        path: Where to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / KEY_PREFIX).mkdir(parents=True)

    def folder(self, topic: str, partition: int = 0, *, topic_id: str | None = None) -> Path:
        """The golden folder of a partition."""
        names = [
            one
            for one in (TIER / KEY_PREFIX).iterdir()
            if one.name[:-23] == topic and topic_id in (None, one.name[-22:])
        ]
        (name,) = names
        return name / str(partition)

    def stems(self, folder: Path) -> list[str]:
        """The whole segments of a golden folder, in order."""
        return sorted(one.name.split(".")[0] for one in folder.glob("*.rsm-manifest"))

    def here(self, folder: Path) -> Path:
        """Its copy."""
        copy = self.path / folder.relative_to(TIER)
        copy.mkdir(parents=True, exist_ok=True)
        return copy

    def add(self, folder: Path, stems: Iterable[str]) -> None:
        """Uploads segments, each object at once, as stores do."""
        for stem in stems:
            for source in sorted(folder.glob(f"{stem}.*")):
                copy = self.path / source.name
                shutil.copy2(source, copy)
                copy.rename(self.here(folder) / source.name)

    def remove(self, folder: Path, stems: Iterable[str]) -> None:
        """Deletes segments."""
        for stem in stems:
            for copy in self.here(folder).glob(f"{stem}.*"):
                copy.unlink()
