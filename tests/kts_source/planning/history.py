"""Generates, replays and shortens random histories of a tiered topic.

A history is a list of steps. A step that is not possible in the current state does nothing. A
history therefore remains valid if some of its steps are removed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from segment_format.testing import AivenTierWriter, LocalTierWriter
from tests.kts_source.planning.cluster import PartitionLife
from tests.kts_source.planning.replica import divergence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.kts_source.planning.cluster import EpochShape
    from tests.kts_source.planning.replica import EntryKind, Replica

TOPIC: Final = "t"

# Relative frequency of each kind of step.
WEIGHTS: Final = {
    "append": 7,
    "send": 8,
    "commit": 5,
    "abort": 6,
    "settle": 2.5,
    "roll": 10,
    "upload": 15,
    "lag": 1,
    "catch_up": 2,
    "elect": 2,
    "elect_unclean": 3,
    "delete_records": 0.7,
    "retain": 2,
    "clean_up": 1,
    "lose": 1.5,
    "spoil": 1.5,
    "recreate": 0.3,
}
KINDS: Final = tuple(WEIGHTS)

_DATA: Final = ("append", "send", "send")
_END: Final = ("commit", "abort", "settle", "append")
# Sequences that random steps rarely produce. Each position lists kinds, of which one is drawn.
MOTIFS: Final[tuple[tuple[tuple[str, ...], ...], ...]] = (
    (_DATA, _DATA, _END, ("roll",), ("upload",)),
    (("send",), ("roll",), _DATA, ("settle",), ("roll",), ("upload",), ("upload",)),
    # Segments of a dead branch are copied. The live branch has another outcome of a transaction.
    (
        *(("send",), ("send", "roll"), _DATA, _END, ("settle", "roll"), ("roll",)),
        *(("upload",), ("upload",), ("elect_unclean",)),
        *(_END, _DATA, ("settle",), ("roll",), ("upload",), ("upload",)),
    ),
    (("upload",), ("elect", "upload"), ("upload", "clean_up"), ("upload",)),
    (("retain", "delete_records"), ("append", "settle"), ("roll",), ("upload",), ("upload",)),
)


@dataclass(frozen=True, slots=True)
class Step:
    """An event of a partition.

    Attributes:
        kind: One of `KINDS`.
        a: First parameter, from 0 to 15. The kind defines its meaning.
        b: Second parameter, from 0 to 15.
        c: Third parameter, from 0 to 15.
        partition: Number of the partition. A number above the last partition wraps around.
    """

    kind: str
    a: int = 0
    b: int = 0
    c: int = 0
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """Settings that do not change during a history.

    Attributes:
        partitions: Number of partitions of the topic before it is first recreated.
        chunk_size: Chunk size of the tiered storage plugin in bytes.
        interval: Kafka's `index.interval.bytes`.
        compression: Whether the plugin compresses chunks.
        codec: Compression codec of about half of the batches.
        only_stable: Whether brokers copy only offsets below the last stable offset.
        local: True for the tier layout of `LocalTieredStorage`, false for that of the Aiven plugin.
        epochs: Which leader epochs a manifest contains (see `EpochShape`).
    """

    partitions: int = 1
    chunk_size: int = 1 << 20
    interval: int = 4096
    compression: bool = False
    codec: str = "none"
    only_stable: bool = True
    local: bool = False
    epochs: EpochShape = "in the segment"


@dataclass(frozen=True, slots=True)
class History:
    """Settings and steps from which a tier can be reproduced."""

    shape: Shape
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"    {step}," for step in self.steps]
        return "\n".join([f"History({self.shape}, (", *lines, "))"])


def random_history(source: random.Random) -> History:
    """Returns a random history, in most cases of 15 to 100 steps. Some histories end with steps
    that lose or damage objects.
    """
    if source.random() < 0.1:
        return _make_long_open_history(source)
    shape = Shape(
        partitions=source.choice((1, 1, 1, 2)),
        chunk_size=source.choice((40, 200, 1 << 20)),
        interval=source.choice((0, 100, 4096)),
        compression=source.random() < 0.1,
        codec=source.choice(("none", "none", "lz4", "zstd")),
        only_stable=source.random() < 0.6,
        local=source.random() < 0.3,
        epochs=source.choice(("in the segment", "in the segment", "true starts", "full lineage")),
    )
    # The frequency of each kind varies between histories.
    weights = [weight * source.choice((0.4, 1, 1, 2.5)) for weight in WEIGHTS.values()]
    motifs = source.random()
    step_count = source.randint(15, 100)
    steps: list[Step] = []
    while len(steps) < step_count:
        motif = source.choice(MOTIFS) if source.random() < motifs else ()
        partition = source.randrange(2)
        for kinds in motif or ((*source.choices(KINDS, weights),),):
            a, b, c = (source.randrange(16) for _ in range(3))
            steps.append(Step(source.choice(kinds), a, b, c, partition))
    # Most objects that are lost early are below the log start at the end of the history.
    for _ in range(source.choice((0, 0, 0, 1, 2, 4))):
        a, b, c = (source.randrange(16) for _ in range(3))
        kind = source.choice(("lose", "spoil"))
        steps.append(Step(kind, a, b, c, source.randrange(2)))
    if source.random() < 0.2:  # a tool damages all side files of one kind
        which, damage = source.choice((0, 0, 1, 2, 3)), source.randrange(4)
        steps += [
            Step("spoil", a, which, damage, partition) for a in range(16) for partition in range(2)
        ]
    return History(shape, tuple(steps))


def _make_long_open_history(source: random.Random) -> History:
    """Returns a history in which a transaction stays open while later segments contain only records
    without a transaction. The producer snapshots of a random segment and of all later segments
    are damaged. In half of the histories, one segment is also lost.
    """
    steps = [Step("send", 1, 1)]
    count = source.randint(8, 14)
    for _ in range(count):
        steps += [Step("append", 0, source.randrange(3)), Step("roll", 7), Step("upload", 15)]
    damage = source.randrange(4)
    steps += [Step("spoil", a, 0, damage) for a in range(source.randrange(count), count)]
    if source.random() < 0.5:
        steps.append(Step("lose", source.randint(1, count - 2)))
    local = source.random() < 0.3
    return History(Shape(only_stable=False, local=local), tuple(steps))


class World:
    """The simulated cluster and its tier after the steps of a history.

    Attributes:
        store: Objects of the tier by key.
        incarnations: Partitions by topic id. Each incarnation of the topic has one entry, oldest
            incarnation first.
        lives: Partitions of the newest incarnation.
    """

    def __init__(self, history: History) -> None:
        self.shape = history.shape
        self.store: dict[str, bytes] = {}
        self.incarnations: dict[str, tuple[PartitionLife, ...]] = {}
        self._random = random.Random(0)
        self.lives = self._create(history.shape.partitions, clock=0)
        for step in history.steps:
            self.take(step)

    def take(self, step: Step) -> None:
        """Applies a step to its partition, or recreates the topic."""
        if step.kind == "recreate":
            clock = max(life.clock for life in self.lives)
            self.lives = self._create(step.a % len(self.lives) + 1, clock=clock)
        else:
            _apply(step, self.lives[step.partition % len(self.lives)], self.shape)

    def has_lost(self, before: Sequence[Replica]) -> bool:
        """Returns whether the current leaders lack records of the leaders in `before`, who led the
        partitions before the last step.
        """
        return any(
            divergence(old.entries, life.leader.entries) < old.end
            for old, life in zip(before, self.lives, strict=False)
        )

    def _create(self, partitions: int, *, clock: int) -> tuple[PartitionLife, ...]:
        topic_id = None
        lives = []
        for number in range(partitions):
            writer: AivenTierWriter | LocalTierWriter
            if self.shape.local:
                writer = LocalTierWriter(
                    self.store,
                    topic=TOPIC,
                    partition=number,
                    topic_id=topic_id,
                    random_bytes=self._random.randbytes,
                )
            else:
                writer = AivenTierWriter(
                    self.store,
                    topic=TOPIC,
                    partition=number,
                    topic_id=topic_id,
                    chunk_size=self.shape.chunk_size,
                    compression=self.shape.compression,
                    random_bytes=self._random.randbytes,
                )
            topic_id = writer.topic_id
            lives.append(
                PartitionLife(
                    self.store,
                    writer,
                    interval=self.shape.interval,
                    only_stable=self.shape.only_stable,
                    epochs=self.shape.epochs,
                    clock=clock,
                )
            )
        assert topic_id is not None
        self.incarnations[topic_id] = tuple(lives)
        return self.incarnations[topic_id]


def _apply(step: Step, life: PartitionLife, shape: Shape) -> None:
    a, b, c = step.a, step.b, step.c
    producer_id = a % 3
    match step.kind:
        case "append" | "send":
            kind: EntryKind = "plain" if step.kind == "append" else "send"
            codec = shape.codec if c % 2 else "none"
            life.append(kind, -1 if kind == "plain" else producer_id, b % 3 + 1, codec)
            if c > 10:
                life.roll(a)
        case "commit":
            life.append("commit", producer_id, 1, "none")
        case "abort":
            life.append("abort", producer_id, 1, "none")
        case "settle":
            for number in range(3):
                life.append("abort" if b >> number & 1 else "commit", number, 1, "none")
        case "roll":
            life.roll(a)
        case "upload":
            life.upload(a, b > 12, c % 8)
        case "lag":
            life.lag(a)
        case "catch_up":
            life.catch_up(a)
        case "elect":
            life.elect(a, b)
        case "elect_unclean":
            life.elect_unclean(a, b % 10 + 1)
        case "delete_records":
            life.delete_records(a)
        case "retain":
            life.retain(a % 2 + 1, b % 8 if c % 2 else 0)
        case "clean_up":
            life.clean_up(a, b % 8)
        case "spoil":
            life.spoil(a, b, c)
        case "lose":
            life.lose(a, b % 7)
        case _:
            raise ValueError(step.kind)


def shortened(history: History, fails: Callable[[History], bool]) -> History:
    """Removes steps from a history while `fails` returns true for the shorter history. Returns the
    shortest history for which it returned true.
    """
    steps: Sequence[Step] = history.steps
    size = max(1, len(steps) // 2)
    while True:
        has_dropped = False
        for start in reversed(range(0, len(steps), size)):
            candidate = (*steps[:start], *steps[start + size :])
            if fails(History(history.shape, candidate)):
                steps, has_dropped = candidate, True
        if size == 1 and not has_dropped:
            return History(history.shape, tuple(steps))
        size = max(1, size // 2)


def count_kinds(histories: Iterable[History]) -> dict[str, int]:
    """Returns the number of steps of each kind."""
    counts = dict.fromkeys(KINDS, 0)
    for history in histories:
        for step in history.steps:
            counts[step.kind] += 1
    return counts
