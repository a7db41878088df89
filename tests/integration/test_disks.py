"""A scan of a broker's disk gives the rows that a broker serves which is restarted on that disk.

Copies of the log directory are taken while transactions are under way. A crash is played on them:
killing a process tears nothing, as the page cache survives it, so bytes beyond the recovery point
are cut, zeroed or flipped at random, of logs and indexes. The restart itself writes markers, so
read_committed is compared up to the disk's own last stable offset.

`python -m tools.soak --only disks` plays more of them.
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
from tests.integration.broker import once_it_leads, running_broker
from tests.integration.served_rows import Row, served
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.broker import Broker

COPIES = int(os.environ.get("KTS_DISK_COPIES", "1"))
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300 + 20 * COPIES),  # the first test takes all copies
]

LOG_OVERHEAD = 12
_CRC_ENDS = 21  # what follows the checksum is covered by it
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
"""A machine may be so busy that a broker seems to be gone."""
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
    """Printed, so that a failing run can be done again."""
    number = int(os.environ.get("KTS_DISK_SEED", secrets.randbits(31)))
    print(f"KTS_DISK_SEED={number}")  # noqa: T201
    return number


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory, seed: int) -> list[Path]:
    """Folders with copies of a running broker's log directory; the last one is of a clean stop."""
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
    """Writes for ever: a step is some records, or the end of a transaction; open ones stay open
    over steps.
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
    for one in writers:
        one.init_transactions(30)
    plain = [producer(**{"compression.type": codec}) for codec in ("none", "zstd", "lz4")]
    _decide_one_of_each(writers[0])
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


def _decide_one_of_each(writer: Producer) -> None:
    """Every partition begins with a committed transaction and an aborted one: what is random may
    leave the first transaction open for ever, and read_committed would then give no rows at all.
    """
    for end in (writer.commit_transaction, writer.abort_transaction):
        writer.begin_transaction()
        for topic, count in TOPICS.items():
            for partition in range(count):
                writer.produce(topic, partition=partition, key=b"first", value=b"decided")
        assert writer.flush(30) == 0
        end(30)


def _copy(disk: Path, to: Path) -> None:
    """As a snapshot that was taken file by file: what vanishes meanwhile is left out."""
    for path in sorted(disk.rglob("*")):
        if path.is_dir():
            (to / path.relative_to(disk)).mkdir(parents=True, exist_ok=True)
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        target = to / path.relative_to(disk)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _crash(disk: Path, source: random.Random) -> Counter[str]:
    """Cuts, zeroes and flips bytes beyond the recovery point; counts what it did to which files."""
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
                done[f"{path.suffix} {_spoil(path, source, is_log=is_log)}"] += 1
    return done


def _spoil(path: Path, source: random.Random, *, is_log: bool) -> str:
    data = bytearray(path.read_bytes())
    if not data:
        return "empty"
    at = source.randrange(len(data))
    how = source.choice(("cut", "zeros", "hole", "flip") if is_log else ("cut", "zeros", "gone"))
    if how == "cut":
        del data[at:]
    elif how == "zeros":
        data[at:] = bytes(len(data) - at)
    elif how == "hole":
        stop = min(at + 512, len(data))
        data[at:stop] = bytes(stop - at)
    elif how == "flip":
        data[_covered(data, at)] ^= 1 << source.randrange(8)
    path.write_bytes(data)
    if how == "gone":
        path.unlink()
    return how


def _covered(data: bytes | bytearray, at: int) -> int:
    """A byte of the same batch that its checksum covers. Nobody can check those before, the base
    offset above all: a broker takes any, and then loses its way in the log.
    """
    start = 0
    while (stop := start + LOG_OVERHEAD + int.from_bytes(data[start + 8 : start + 12])) <= at:
        start = stop
    return min(max(at, start + _CRC_ENDS), len(data) - 1)


def _ours(
    disk: Path, level: str, **given: str
) -> tuple[list[Row], dict[tuple[str, int], tuple[int, int, int]]]:
    """The rows of a scan; log start, end and last stable offset of every partition."""
    options = {
        "path": str(disk),
        "layout": "kafka-logs",
        "subscribe": ",".join(TOPICS),
        "isolationLevel": level,
        **given,
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
    for one in describe({**options, "isolationLevel": "read_committed"}).partitions:
        # What is lost is a hole at the end.
        end = min([one.tier_end, *(start for start, _ in one.holes)])
        stable = min(one.last_stable_offset, end)
        marks[one.topic, one.partition] = (one.log_start, end, stable)
    return sorted(rows, key=lambda row: row[:3]), marks


def _watermarks(broker: Broker, pairs: list[tuple[str, int]]) -> tuple[Offsets, Offsets]:
    """Log starts and ends as the broker tells them."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "x",
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
    )
    try:

        def asked(pair: tuple[str, int]) -> tuple[int, int]:
            place = TopicPartition(*pair)
            return once_it_leads(lambda: consumer.get_watermark_offsets(place, timeout=30))

        found = {pair: asked(pair) for pair in pairs}
    finally:
        consumer.close()
    starts = {pair: low for pair, (low, _) in found.items()}
    return starts, {pair: high for pair, (_, high) in found.items()}


def _compare(disk: Path, broker_folder: Path, **given: str) -> int:
    """Compares both levels; returns how many rows."""
    found = {level: _ours(disk, level, **given) for level in LEVELS}
    with running_broker(broker_folder, settings=RESTARTED) as broker:
        pairs = [(topic, number) for topic, count in TOPICS.items() for number in range(count)]
        # A marker that the restart writes moves the end before it moves what is stable.
        stable = broker.last_stable_offsets(pairs)
        starts, ends = _watermarks(broker, pairs)
        for level in LEVELS:
            rows, marks = found[level]
            assert {pair: mark[0] for pair, mark in marks.items()} == {
                pair: starts[pair] for pair in marks
            }
            ends_of = {
                pair: mark[2] if level == "read_committed" else mark[1]
                for pair, mark in marks.items()
            }
            # DeleteRecords may pass the last stable offset; a consumer then hears nothing at all.
            limits = {pair: end for pair, end in ends_of.items() if end > starts[pair]}
            assert rows == served(broker, level, limits)
        for pair, (_, end, last_stable) in marks.items():
            # Only markers that the restart wrote may move them on.
            assert ends[pair] >= end and stable[pair] >= last_stable, pair  # noqa: PT018
            if ends[pair] == end:
                # Compaction may have taken an open transaction's first records.
                every = (row[2] for row in found["read_uncommitted"][0] if row[:2] == pair)
                assert not set(every) & set(range(last_stable, stable[pair])), pair
        assert 0 < len(rows) < len(found["read_uncommitted"][0])
    return sum(len(rows) for rows, _ in found.values())


@pytest.mark.parametrize("number", range(COPIES))
def test_crashed_disk_is_read_as_a_broker_serves_it(
    disks: list[Path], tmp_path: Path, seed: int, number: int
) -> None:
    disk = tmp_path / "logs"
    shutil.move(disks[number] / LOGS, disk)
    done = _crash(disk, random.Random(seed + number))
    spoiled = tmp_path / "broker"
    shutil.copytree(disk, spoiled / LOGS)
    rows = _compare(disk, spoiled, endOfLog="true", failOnDataLoss="false")
    spoilt = ", ".join(f"{count} {what}" for what, count in sorted(done.items()))
    print(f"copy {number}: {rows} rows; {spoilt}")  # noqa: T201
    shutil.rmtree(tmp_path)


def test_cleanly_stopped_disk_is_read_as_a_broker_serves_it(
    disks: list[Path], tmp_path: Path
) -> None:
    disk = disks[-1] / LOGS
    assert (disk / ".kafka_cleanshutdown").exists()
    again = tmp_path / "broker"
    shutil.copytree(disk, again / LOGS)
    _compare(disk, again)
