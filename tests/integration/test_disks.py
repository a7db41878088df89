"""Tests that scans of a broker's disk return the rows that a consumer receives after the broker
restarts.

The log directory is copied while transactions are open. Killing a broker would not lose writes,
because the page cache of the operating system survives. To simulate a crash of the machine, tests
truncate, zero or flip random bytes of logs and indexes after the recovery point. The restarted
broker writes transaction markers. Rows of read_committed scans are therefore compared only up to
the last stable offset that the disk had before the restart.

`python -m tools.soak --only disks` runs more crashes.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from kts_source import describe
from segment_format.index.checkpoints import parse_offset_checkpoint
from tests.integration.broker import retry_until_leader, running_broker
from tests.integration.served_rows import Row, consume_until
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.broker import Broker

COPIES = int(os.environ.get("KTS_DISK_COPIES", "1"))
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300 + 20 * COPIES),  # the first test creates all copies
]

LOG_OVERHEAD = 12
_CRC_ENDS = 21  # the checksum covers everything after it
LEVELS = ("read_uncommitted", "read_committed")
PARTITIONS = 8
TOPICS = {"orders": PARTITIONS, "latest": 2}
TOPIC_SETTINGS = {
    "internal.segment.bytes": "20000",
    "index.interval.bytes": "500",
    "segment.index.bytes": "4096",
    "retention.ms": "-1",
}
COMPACTED = {
    **TOPIC_SETTINGS,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
    "segment.ms": "3000",
}
LOGS = "node-1/logs"
BUSY = {"broker.session.timeout.ms": "30000"}
"""Settings with which a broker does not count as dead on a busy machine."""
FIRST_BROKER = {
    **BUSY,
    "replica.high.watermark.checkpoint.interval.ms": "300",
    "log.flush.offset.checkpoint.interval.ms": "300",
    "log.flush.start.offset.checkpoint.interval.ms": "300",
    "log.cleaner.backoff.ms": "300",
}
RESTARTED = {
    **BUSY,
    "log.cleaner.enable": "false",
}
Offsets = dict[tuple[str, int], int]


@pytest.fixture(scope="module")
def seed() -> int:
    """Returns the random seed and prints it, so that a failing run can be repeated."""
    number = int(os.environ.get("KTS_DISK_SEED", secrets.randbits(31)))
    print(f"KTS_DISK_SEED={number}")  # noqa: T201
    return number


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory, seed: int) -> list[Path]:
    """Returns copies of a running broker's folder. The last entry is the folder itself, after a
    clean stop of the broker.
    """
    folder = tmp_path_factory.mktemp("disks")
    copies = []
    with running_broker(folder / "first", settings=FIRST_BROKER) as broker:
        admin = broker.new_admin()
        for name, settings in (("orders", TOPIC_SETTINGS), ("latest", COMPACTED)):
            topics = [NewTopic(name, TOPICS[name], 1, config=settings)]
            for future in admin.create_topics(topics).values():
                future.result()
        source = random.Random(seed)
        load = _load(broker, source)
        for number in range(COPIES):
            for _ in range(source.randint(20, 60)):
                next(load)
            if number % 5 == 1:
                partition = source.randrange(PARTITIONS)
                end = broker.last_stable_offsets([("orders", partition)])["orders", partition]
                broker.delete_records({("orders", partition): source.randint(0, end)})
            copy = folder / f"copy-{number}"
            _copy(folder / "first" / LOGS, copy / LOGS)
            copies.append(copy)
    copies.append(folder / "first")
    return copies


def _load(broker: Broker, source: random.Random) -> Iterator[None]:
    """Writes random records or ends a transaction at each step of the endless iterator.
    Transactions stay open over several steps.
    """

    def producer(**settings: str | int) -> Producer:
        config: dict[str, str | int] = {
            "bootstrap.servers": broker.bootstrap,
            "log_level": 0,
            "linger.ms": 5,
            "batch.num.messages": 10,
            "transaction.timeout.ms": 900_000,
            **settings,
        }
        return Producer(config)

    writers = [producer(**{"transactional.id": f"txn {number}"}) for number in range(3)]
    for writer in writers:
        writer.init_transactions(30)
    plain = [producer(**{"compression.type": codec}) for codec in ("none", "zstd", "lz4")]
    _write_decided_transactions(writers[0])
    is_open = dict.fromkeys(range(len(writers)), False)
    while True:
        number = source.randrange(len(writers))
        if is_open[number] and source.random() < 0.25:
            end = source.choice(("commit_transaction", "abort_transaction"))
            getattr(writers[number], end)(30)
            is_open[number] = False
        else:
            writer = source.choice([writers[number], source.choice(plain)])
            if writer is writers[number] and not is_open[number]:
                writer.begin_transaction()
                is_open[number] = True
            for _ in range(source.randint(1, 60)):
                topic = "latest" if source.random() < 0.2 else "orders"
                writer.produce(
                    topic,
                    partition=source.randrange(TOPICS[topic]),
                    key=b"key %d" % source.randrange(30),
                    value=source.randbytes(source.randint(0, 150)) * source.randint(1, 3),
                )
            assert writer.flush(30) == 0
        yield


def _write_decided_transactions(writer: Producer) -> None:
    """Writes a committed and an aborted transaction to every partition.

    Without them, the first random transaction could stay open for the entire test. A read_committed
    read would then return no rows.
    """
    for end in (writer.commit_transaction, writer.abort_transaction):
        writer.begin_transaction()
        for topic, count in TOPICS.items():
            for partition in range(count):
                writer.produce(topic, partition=partition, key=b"first", value=b"decided")
        assert writer.flush(30) == 0
        end(30)


def _copy(disk: Path, target_folder: Path) -> None:
    """Copies the files of `disk` one after the other while the broker changes them.

    Skips files that the broker deletes in the meantime.
    """
    for path in sorted(disk.rglob("*")):
        if path.is_dir():
            (target_folder / path.relative_to(disk)).mkdir(parents=True, exist_ok=True)
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        target = target_folder / path.relative_to(disk)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _crash(disk: Path, source: random.Random) -> Counter[str]:
    """Damages random files of segments that begin at or after the recovery point.

    Returns the number of damaged files by file suffix and kind of damage.
    """
    done: Counter[str] = Counter()
    points = parse_offset_checkpoint((disk / "recovery-point-offset-checkpoint").read_bytes())
    for folder in sorted(disk.glob("*-[0-9]*")):
        topic, _, number = folder.name.rpartition("-")
        if topic not in TOPICS:
            continue
        point = points.get((topic, int(number)), 0)
        for path in sorted(folder.glob("*.*")):
            base = int(path.name[:20]) if path.name[:20].isdigit() else -1
            is_log = path.suffix == ".log"
            if base < point or path.suffix == ".snapshot":
                continue
            if source.random() < (0.5 if is_log else 0.3):
                done[f"{path.suffix} {_damage(path, source, is_log=is_log)}"] += 1
    return done


def _damage(path: Path, source: random.Random, *, is_log: bool) -> str:
    data = bytearray(path.read_bytes())
    if not data:
        return "empty"
    position = source.randrange(len(data))
    damage = source.choice(("cut", "zeros", "hole", "flip") if is_log else ("cut", "zeros", "gone"))
    if damage == "cut":
        del data[position:]
    elif damage == "zeros":
        data[position:] = bytes(len(data) - position)
    elif damage == "hole":
        stop = min(position + 512, len(data))
        data[position:stop] = bytes(stop - position)
    elif damage == "flip":
        data[_checksummed_position(data, position)] ^= 1 << source.randrange(8)
    path.write_bytes(data)
    if damage == "gone":
        path.unlink()
    return damage


def _checksummed_position(data: bytes | bytearray, position: int) -> int:
    """Returns a position in the batch at `position` that the CRC of the batch covers: `position`
    itself, if possible.

    The CRC does not cover the first header fields, such as the base offset. A broker accepts any
    value in these fields and then misreads the log.
    """
    start = 0
    while (stop := start + LOG_OVERHEAD + int.from_bytes(data[start + 8 : start + 12])) <= position:
        start = stop
    return min(max(position, start + _CRC_ENDS), len(data) - 1)


def _scan_disk(
    disk: Path, level: str, **more: str
) -> tuple[list[Row], dict[tuple[str, int], tuple[int, int, int]]]:
    """Scans `disk` and returns two values: the rows, and the bounds of each partition.

    The bounds are the log start, the end and the last stable offset.
    """
    options = {
        "path": str(disk),
        "layout": "kafka-logs",
        "subscribe": ",".join(TOPICS),
        "isolationLevel": level,
        **more,
    }
    table = scan(options)
    names = ("topic", "partition", "offset", "timestamp", "key", "value")
    columns = [
        (table[name].cast("int64") if name == "timestamp" else table[name]).to_pylist()
        for name in names
    ]
    rows = [
        (row[0], row[1], row[2], row[3] // 1000, *row[4:]) for row in zip(*columns, strict=True)
    ]
    marks = {}
    for partition in describe({**options, "isolationLevel": "read_committed"}).partitions:
        # Records lost in the crash appear as a hole before the end.
        end = min([partition.tier_end, *(start for start, _ in partition.holes)])
        stable = min(partition.last_stable_offset, end)
        marks[partition.topic, partition.partition] = (partition.log_start, end, stable)
    return sorted(rows, key=lambda row: row[:3]), marks


def _watermarks(broker: Broker, pairs: list[tuple[str, int]]) -> tuple[Offsets, Offsets]:
    """Returns two values: the log start and the log end of each partition in `pairs`."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "x",
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
    )
    try:

        def watermarks(pair: tuple[str, int]) -> tuple[int, int]:
            partition = TopicPartition(*pair)
            return retry_until_leader(lambda: consumer.get_watermark_offsets(partition, timeout=30))

        marks = {pair: watermarks(pair) for pair in pairs}
    finally:
        consumer.close()
    starts = {pair: low for pair, (low, _) in marks.items()}
    return starts, {pair: high for pair, (_, high) in marks.items()}


def _compare(disk: Path, broker_folder: Path, **more: str) -> int:
    """Asserts that scans of `disk` return the rows of a broker that starts on `broker_folder`.
    Compares both isolation levels and returns the number of compared rows.
    """
    scanned = {level: _scan_disk(disk, level, **more) for level in LEVELS}
    with running_broker(broker_folder, settings=RESTARTED) as broker:
        pairs = [(topic, number) for topic, count in TOPICS.items() for number in range(count)]
        # Read the last stable offset before the end, because the restart writes markers.
        stable = broker.last_stable_offsets(pairs)
        starts, ends = _watermarks(broker, pairs)
        for level in LEVELS:
            rows, marks = scanned[level]
            assert {pair: mark[0] for pair, mark in marks.items()} == {
                pair: starts[pair] for pair in marks
            }
            ends_of = {
                pair: mark[2] if level == "read_committed" else mark[1]
                for pair, mark in marks.items()
            }
            # DeleteRecords may move the log start past the last stable offset. A consumer then
            # receives nothing, not even an EOF.
            limits = {pair: end for pair, end in ends_of.items() if end > starts[pair]}
            assert rows == consume_until(broker, level, limits)
        for pair, (_, end, last_stable) in marks.items():
            # Markers that the restart writes may increase both offsets.
            assert ends[pair] >= end and stable[pair] >= last_stable, pair  # noqa: PT018
            if ends[pair] == end:
                # The offsets may differ only by records that compaction removed.
                offsets = (row[2] for row in scanned["read_uncommitted"][0] if row[:2] == pair)
                assert not set(offsets) & set(range(last_stable, stable[pair])), pair
        assert 0 < len(rows) < len(scanned["read_uncommitted"][0])
    return sum(len(rows) for rows, _ in scanned.values())


@pytest.mark.parametrize("number", range(COPIES))
def test_scan_of_disk_after_crash_returns_rows_of_restarted_broker(
    disks: list[Path], tmp_path: Path, seed: int, number: int
) -> None:
    disk = tmp_path / "logs"
    shutil.move(disks[number] / LOGS, disk)
    done = _crash(disk, random.Random(seed + number))
    damaged = tmp_path / "broker"
    shutil.copytree(disk, damaged / LOGS)
    rows = _compare(disk, damaged, endOfLog="true", failOnDataLoss="false")
    damage = ", ".join(f"{count} {kind}" for kind, count in sorted(done.items()))
    print(f"copy {number}: {rows} rows; {damage}")  # noqa: T201
    shutil.rmtree(tmp_path)


def test_scan_of_disk_after_clean_stop_returns_rows_of_restarted_broker(
    disks: list[Path], tmp_path: Path
) -> None:
    disk = disks[-1] / LOGS
    assert (disk / ".kafka_cleanshutdown").exists()
    copy = tmp_path / "broker"
    shutil.copytree(disk, copy / LOGS)
    _compare(disk, copy)
