"""Reads tiers with one damaged transaction index, with different options."""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kts_source.errors import CorruptSegmentError, OldBrokerError, TieredKafkaError
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.planning import written_logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from segment_format.testing import BuiltLog

PRODUCERS: Final = (1, 2, 3, 2**40)
_ENTRY_BYTES: Final = 34


def build_log(seed: int, *, undecided: bool = False) -> BuiltLog:
    """Builds a log with interleaved, long, empty and fenced transactions, and with plain records.
    If `undecided` is true, transactions stay open at the end of the log.
    """
    source = random.Random(seed)
    builder = LogBuilder(index_interval_bytes=source.choice((0, 150, 4096)))
    open_producers: set[int] = set()
    epoch = dict.fromkeys(PRODUCERS, 0)
    for _ in range(3):
        for _ in range(14):
            producer = source.choice(PRODUCERS)
            action = source.random()
            if producer in open_producers and action < 0.45:
                # The transaction of a fenced producer ends with a new epoch.
                if source.random() < 0.3:
                    epoch[producer] += 1
                end = builder.abort if source.random() < 0.6 else builder.commit
                end(producer, producer_epoch=epoch[producer])
                open_producers.discard(producer)
            elif action < 0.85:
                count = source.randint(1, 3)
                records = [SimpleRecord(b"v" * source.randint(1, 30)) for _ in range(count)]
                builder.send(producer, records, producer_epoch=epoch[producer])
                open_producers.add(producer)
            elif action < 0.92:
                builder.append([SimpleRecord(b"plain")])
            elif producer not in open_producers:
                builder.abort(producer, producer_epoch=epoch[producer])  # without data
        builder.roll()
    if not undecided:
        for producer in sorted(open_producers):
            builder.abort(producer, producer_epoch=epoch[producer])
    builder.append([SimpleRecord(b"last")])
    builder.roll()
    return builder.build()


def read(objects: dict[str, bytes], local: bool, options: dict[str, str]) -> list[int]:
    """Returns the offsets that a `read_committed` scan of topic `t` in the tier `objects` reads."""
    return written_logs.read(objects, local, **{"isolationLevel": "read_committed", **options})


def damage_index(index: bytes, source: random.Random, flips: int) -> Iterator[bytes]:
    """Yields damaged copies of a transaction index: copies without one entry, copies with one
    repeated entry, and `flips` copies with one flipped bit.
    """
    entries = [index[start : start + _ENTRY_BYTES] for start in range(0, len(index), _ENTRY_BYTES)]
    for number, entry in enumerate(entries):
        yield b"".join(entries[:number] + entries[number + 1 :])
        yield b"".join([*entries[: number + 1], entry, *entries[number + 1 :]])
    # A changed low byte of a producer id or an offset leaves the entry plausible.
    bits = [
        byte * 8 + bit
        for byte in range(len(index))
        for bit in range(8)
        if byte % _ENTRY_BYTES in (4, 9, 17, 25, 33)
    ]
    for position in source.sample(bits, min(flips, len(bits))):
        damaged = bytearray(index)
        damaged[position // 8] ^= 1 << position % 8
        yield bytes(damaged)


@dataclass(frozen=True, slots=True)
class Read:
    """Options of a scan, and the range of offsets that the scan reads.

    Attributes:
        name: Kind of scan, for messages.
        options: Options of the scan.
        start: First offset of the range.
        stop: One past the last offset of the range.
    """

    name: str
    options: dict[str, str]
    start: int
    stop: int


def make_reads(log: BuiltLog, source: random.Random) -> list[Read]:
    """Returns one scan of each kind, such as bounded or split scans, with random bounds."""
    end = log.end_offset()
    low = source.randint(0, end - 1)
    high = source.randint(low + 1, end)
    border = source.choice([files.base_offset for files in log.segments if files.base_offset])

    def bounds(start: int, stop: int) -> dict[str, str]:
        return {
            "startingOffsets": json.dumps({"t": {"0": start}}),
            "endingOffsets": json.dumps({"t": {"0": stop}}),
        }

    small_slices = {"targetPartitionBytes": "1"}
    few = {"maxRecordsPerPartition": str(source.randint(1, 9))}
    many = {"minPartitions": str(source.randint(2, 40))}
    condition = {"where": f"offset >= {low} and offset < {high}"}
    return [
        Read("unbounded", {}, 0, end),
        Read("cut by bytes", small_slices, 0, end),
        Read("cut by records", few, 0, end),
        Read("cut by partitions", many, 0, end),
        Read("bounded", bounds(low, high), low, high),
        Read("bounded and cut", {**bounds(low, high), **few}, low, high),
        Read("where", condition, low, high),
        Read("where and cut", {**condition, **small_slices}, low, high),
        Read("to a border", bounds(0, border), 0, border),
        Read("from a border", bounds(border, end), border, end),
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a read of a damaged tier.

    Attributes:
        read: Options and range of the scan.
        damage: Identifies the damage: 1000 times the segment number, plus the number of the damage
            among the damages of this segment.
        rows: Offsets of the rows; `None` if the read raised an error.
        expected: Offsets that a read of the undamaged tier returns.
    """

    read: Read
    damage: int
    rows: Sequence[int] | None
    expected: Sequence[int]

    @property
    def is_silently_wrong(self) -> bool:
        """Returns whether the read returned wrong rows without an error."""
        return self.rows is not None and self.rows != self.expected


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage of a tier in addition to a damaged transaction index.

    Attributes:
        lost_snapshots: Whether all producer snapshots are empty.
        undecided: Whether transactions stay open at the end of the log.
        lost_segment: Number of a missing segment, which scans skip with failOnDataLoss=false.
    """

    lost_snapshots: bool = False
    undecided: bool = False
    lost_segment: int | None = None


def _read_healthy_tier(
    log: BuiltLog, tier_reads: list[Read], damage: Damage, *, local: bool
) -> Iterator[tuple[Read, list[int]]]:
    """Reads the tier before its transaction index is damaged. Yields each successful read and its
    offsets.
    """
    if damage.lost_segment is not None:
        loss = {"failOnDataLoss": "false"}
        tier_reads = [
            replace(tier_read, options={**tier_read.options, **loss}) for tier_read in tier_reads
        ]
    undamaged = written_logs.write_log(log, local=local, lost_segment=damage.lost_segment)
    for tier_read in tier_reads:
        expected = [
            row.offset
            for row in log.rows("read_committed", start=tier_read.start, stop=tier_read.stop)
        ]
        try:
            offsets = read(undamaged, local, tier_read.options)
        except TieredKafkaError:
            if not (damage.undecided or damage.lost_segment is not None):
                raise
            continue  # the range ends after the last stable offset, or begins in the hole
        if damage.lost_segment is None:
            assert offsets == expected, tier_read
        assert set(offsets) <= set(expected), tier_read
        yield tier_read, offsets


def read_damaged_tiers(
    seed: int, *, local: bool, flips: int, damage: Damage, share: float = 1
) -> Iterator[Outcome]:
    """Damages each transaction index of a log in turn and reads the tier in different ways.

    The expected rows are the rows of the undamaged tier. If no segment is lost, these are the rows
    of the log.

    Args:
        seed: Seed of the log, the bounds and the flipped bits.
        local: Whether the tier has the layout of `LocalTieredStorage`.
        flips: Number of copies of each index that have a flipped bit.
        damage: Additional damage of the tier.
        share: Fraction of the possible reads to run, from 0 to 1.
    """
    source = random.Random(seed)
    log = build_log(seed, undecided=damage.undecided)
    segments = [
        replace(files, snapshot=b"") if damage.lost_snapshots else files for files in log.segments
    ]
    log = replace(log, segments=tuple(segments))
    healthy = list(_read_healthy_tier(log, make_reads(log, source), damage, local=local))
    for number, files in enumerate(segments):
        if number == damage.lost_segment:
            continue
        indexes = damage_index(files.txnindex or b"", source, flips)
        for variant, index in enumerate(indexes):
            damaged = [*segments]
            damaged[number] = replace(files, txnindex=index or None)
            changed = replace(log, segments=tuple(damaged))
            objects = written_logs.write_log(changed, local=local, lost_segment=damage.lost_segment)
            for tier_read, expected in healthy:
                if source.random() >= share:
                    continue
                offsets: list[int] | None
                try:
                    offsets = read(objects, local, tier_read.options)
                except TieredKafkaError:
                    offsets = None
                yield Outcome(tier_read, number * 1000 + variant, offsets, expected)


def read_damaged_hybrid_tiers(seed: int, *, flips: int, share: float = 1) -> Iterator[Outcome]:
    """Damages each transaction index in turn and reads tier and brokers in different ways.

    The last segments of the log are only on the brokers' disks. The arguments have the same
    meaning as in `read_damaged_tiers`.
    """
    source = random.Random(seed)
    log = build_log(seed)
    tier_reads = make_reads(log, source)
    tiered = 2 + seed % 2
    topic_id = uuid.UUID(int=seed % 2**64 + 1)
    with FakeCluster(versions={"ListOffsets": 9}) as brokers:
        partition = FakePartition(fake_log(log))
        partition.log.local_start = log.segments[tiered - 1].base_offset
        brokers.create("t", [partition], topic_id)
        cluster = {"kafka.bootstrap.servers": brokers.bootstrap, "brokerFallback": "false"}
        for number, files in enumerate(log.segments[:tiered]):
            for variant, index in enumerate(damage_index(files.txnindex or b"", source, flips)):
                segments = [*log.segments[:tiered]]
                segments[number] = replace(files, txnindex=index or None)
                objects: dict[str, bytes] = {}
                writer = LocalTierWriter(objects, topic="t", partition=0, topic_id=topic_id)
                for damaged in segments:
                    writer.write_segment(damaged)
                for tier_read in tier_reads:
                    if source.random() >= share:
                        continue
                    expected = [
                        row.offset
                        for row in log.rows(
                            "read_committed", start=tier_read.start, stop=tier_read.stop
                        )
                    ]
                    rows: list[int] | None
                    try:
                        rows = read(objects, True, {**tier_read.options, **cluster})
                    except (CorruptSegmentError, OldBrokerError):
                        rows = None
                    yield Outcome(tier_read, number * 1000 + variant, rows, expected)
