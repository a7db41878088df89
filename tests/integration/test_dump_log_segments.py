"""Tests with Kafka's tool `DumpLogSegments` that `segment_format.testing` writes valid segments."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from segment_format.testing import (
    COMMIT,
    CONTROL_TYPES,
    BuiltLog,
    ExpectedRow,
    LogBuilder,
    SimpleRecord,
    write_batch,
)
from tests.foreign_compressors import foreign_compressors
from tests.integration.dump_log_segments import Dump, DumpedBatch, Fields, dump_log_segments
from tests.integration.kafka_jars import KAFKA_VERSION, NEWEST_KAFKA
from tests.log_strategies import logs, records
from tests.uniform_batches import uniform_segment, write_uniform_batches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from segment_format.testing import SegmentFiles

pytestmark = [pytest.mark.integration, pytest.mark.slow]

Drawn = TypeVar("Drawn")

LOG_COUNT = 150
TIMESTAMP_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
# The tool reports the offset gaps that compaction leaves, and batches without records. The tool of
# Kafka 4.4 also reports the first batch of every file, because it expects offset 0 there.
OF_COMPACTION = re.compile(
    r"Non-consecutive offsets in .*|  -?\d+ is followed by \d+"
    r"|Found timestamp mismatch in :.*|  Index timestamp: \d+, log timestamp: -1"
)
LETTERS = st.text(string.ascii_letters + string.digits, max_size=5)
PRINTABLE = records(contents=LETTERS.map(str.encode), header_names=LETTERS)


def draw_many(strategy: st.SearchStrategy[Drawn], count: int) -> list[Drawn]:
    """Returns `count` examples of a strategy; every call returns the same examples."""
    drawn: list[Drawn] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def keep(example: Drawn) -> None:
        drawn.append(example)

    keep()
    return drawn


def store(folder: Path, segments: Sequence[SegmentFiles]) -> dict[str, list[str]]:
    """Writes the files of `segments` to the new folder `folder`, with the names that brokers use.

    Returns the names of the written files by suffix. Each name begins with the name of `folder`.
    """
    names: dict[str, list[str]] = {}
    folder.mkdir()
    for segment in segments:
        for suffix, number, data in (
            ("log", segment.base_offset, segment.log),
            ("index", segment.base_offset, segment.index),
            ("timeindex", segment.base_offset, segment.timeindex),
            ("txnindex", segment.base_offset, segment.txnindex),
            ("snapshot", segment.next_offset, segment.snapshot),
        ):
            if data is not None:
                path = folder / f"{number:020d}.{suffix}"
                path.write_bytes(data)
                names.setdefault(suffix, []).append(f"{folder.name}/{path.name}")
    return names


def dump_logs(built: Sequence[BuiltLog], folder: Path, version: str = KAFKA_VERSION) -> Dump:
    """Writes the segment files of all logs below `folder` and dumps each file with Kafka's tool.

    Skips empty files, for which the tool prints nothing.
    """
    names = [
        name
        for number, log in enumerate(built)
        for files in store(folder / str(number), log.segments).values()
        for name in files
        if (folder / name).stat().st_size
    ]
    return dump_log_segments(folder, names, "--deep-iteration", "--print-data-log", version=version)


def row_of(batch: DumpedBatch, record: Fields) -> dict[str, object]:
    kind = next(name for name in TIMESTAMP_TYPES.values() if name in record)
    return {
        "offset": int(record["offset"]),
        "type": kind,
        "timestamp": int(record[kind]),
        "key size": int(record["keySize"]),
        "value size": int(record["valueSize"]),
        "key": record.get("key"),
        "value": record.get("payload"),
        "headers": record.get("headerKeys", "[]"),
        "sequence": int(record.get("sequence", -1)),
        "base": int(batch.fields.get("baseOffset", -1)),
        "codec": batch.fields["compresscodec"],
        "producer": int(batch.fields.get("producerId", -1)),
        "producer epoch": int(batch.fields.get("producerEpoch", -1)),
        "leader epoch": int(batch.fields.get("partitionLeaderEpoch", -1)),
        "transactional": batch.fields.get("isTransactional", "false"),
    }


def intent_of(row: ExpectedRow) -> dict[str, object]:
    return {
        "offset": row.offset,
        "type": TIMESTAMP_TYPES[row.timestamp_type],
        "timestamp": row.timestamp,
        "key size": -1 if row.key is None else len(row.key),
        "value size": -1 if row.value is None else len(row.value),
        "key": None if row.key is None else row.key.decode(),
        "value": None if row.value is None else row.value.decode(),
        "headers": f"[{','.join(key for key, _ in row.headers)}]",
        "sequence": row.sequence,
        # The tool prints no base offset for entries of magic 0 and 1.
        "base": -1 if row.leader_epoch == -1 else row.batch_base_offset,
        "codec": row.codec,
        "producer": row.producer_id,
        "producer epoch": row.producer_epoch,
        "leader epoch": row.leader_epoch,
        "transactional": str(row.transactional).lower(),
    }


def check_rows(dump: Dump, number: int, log: BuiltLog) -> None:
    dumped = []
    for segment in log.segments:
        position = 0
        for batch in dump.batches(f"{number}/{segment.base_offset:020d}.log"):
            assert batch.fields["isvalid"] == "true"
            assert int(batch.fields["position"]) == position
            position += int(batch.fields["size"])
            if batch.fields.get("isControl") != "true":
                dumped += [row_of(batch, record) for record in batch.records]
        assert position == len(segment.log)
    assert dumped == [intent_of(row) for row in log.all_rows]


def optional(text: str) -> int:
    return -1 if text == "OptionalLong.empty" else int(text[len("OptionalLong[") : -1])


def check_transactions(dump: Dump, number: int, log: BuiltLog) -> None:
    aborted = {
        (transaction.producer_id, transaction.first_offset, transaction.marker_offset)
        for transaction in log.transactions
        if transaction.committed is False
    }
    indexed = [
        entry
        for segment in log.segments
        if segment.txnindex is not None
        for entry in dump.entries(f"{number}/{segment.base_offset:020d}.txnindex")
    ]
    assert len(indexed) == len(aborted)
    assert {
        (int(entry["producerId"]), int(entry["firstOffset"]), int(entry["lastOffset"]))
        for entry in indexed
    } == aborted
    for segment in log.segments:
        still_open = {
            (transaction.producer_id, transaction.first_offset)
            for transaction in log.transactions
            if transaction.first_offset < segment.next_offset
            and (
                transaction.marker_offset is None
                or transaction.marker_offset >= segment.next_offset
            )
        }
        snapshot = dump.entries(f"{number}/{segment.next_offset:020d}.snapshot")
        assert {
            (int(entry["producerId"]), optional(entry["currentTxnFirstOffset"]))
            for entry in snapshot
            if optional(entry["currentTxnFirstOffset"]) >= 0
        } == still_open


def marker_kinds(dump: Dump, number: int, log: BuiltLog) -> dict[int, str]:
    return {
        int(record["offset"]): record["endTxnMarker"]
        for segment in log.segments
        for batch in dump.batches(f"{number}/{segment.base_offset:020d}.log")
        for record in batch.records
        if "endTxnMarker" in record
    }


def test_dump_log_segments_decodes_control_records_of_every_type(tmp_path: Path) -> None:
    builder = LogBuilder()
    for kind in CONTROL_TYPES.values():
        if kind > COMMIT:
            builder.append_control(kind)
    builder.commit(7)
    builder.append_control(77)
    log = builder.build()
    dump = dump_logs([log], tmp_path)
    assert dump.complaints == []
    lines = dump.lines[f"0/{0:020d}.log"]
    printed = [
        re.split("[: ]", line.split("headerKeys: [] ")[1])[0] for line in lines if line[0] == "|"
    ]
    assert printed == [
        "LeaderChange",
        "SnapshotHeader",
        "SnapshotFooter",
        "KRaftVersion",
        "KRaftVoters",
        "endTxnMarker",
        "controlType",
    ]


@pytest.mark.parametrize("version", [KAFKA_VERSION, NEWEST_KAFKA])
@pytest.mark.parametrize("kind", ["plain", "transactions", "compaction", "legacy"])
def test_dump_log_segments_prints_rows_and_transactions_of_generated_logs(
    kind: str, version: str, tmp_path: Path
) -> None:
    built = draw_many(
        logs(
            some=PRINTABLE,
            transactions=kind in ("transactions", "compaction"),
            compaction=kind == "compaction",
            legacy=kind == "legacy",
        ),
        LOG_COUNT,
    )
    dump = dump_logs(built, tmp_path, version)
    for number, log in enumerate(built):
        check_rows(dump, number, log)
        check_transactions(dump, number, log)
        markers = marker_kinds(dump, number, log)
        for transaction in log.transactions:
            if transaction.marker_offset is not None:
                expected = "COMMIT" if transaction.committed else "ABORT"
                assert markers[transaction.marker_offset] == expected
    if kind == "compaction" or version == NEWEST_KAFKA:
        dump.complaints = [line for line in dump.complaints if not OF_COMPACTION.fullmatch(line)]
    assert dump.complaints == []
    assert len({row.codec for log in built for row in log.all_rows}) >= 4
    if kind in ("transactions", "compaction"):
        fates = {transaction.committed for log in built for transaction in log.transactions}
        assert fates == {True, False, None}


def test_indexes_of_generated_logs_pass_sanity_check_of_dump_log_segments(tmp_path: Path) -> None:
    names: dict[str, list[str]] = {}
    for number, log in enumerate(draw_many(logs(), LOG_COUNT)):
        for suffix, files in store(tmp_path / str(number), log.segments).items():
            names.setdefault(suffix, []).extend(
                name for name in files if (tmp_path / name).stat().st_size
            )
    indexes = names["index"] + names["timeindex"]
    dump = dump_log_segments(tmp_path, indexes, "--index-sanity-check")
    assert dump.complaints == []
    assert dump.lines == {name: [f"{name} passed sanity check."] for name in indexes}


def test_dump_log_segments_reports_wrong_offset_in_index(tmp_path: Path) -> None:
    builder = LogBuilder(index_interval_bytes=0)
    for _ in range(3):
        builder.append([SimpleRecord(b"value")] * 2)
    log = builder.build()
    (segment,) = log.segments
    names = store(tmp_path / "0", log.segments)
    path = tmp_path / names["index"][0]
    path.write_bytes(segment.index[:3] + bytes([segment.index[3] + 1]) + segment.index[4:])
    dump = dump_log_segments(tmp_path, names["index"], "--deep-iteration")
    assert any("Mismatches" in line for line in dump.complaints)


def test_dump_log_segments_decodes_batches_compressed_as_by_non_java_clients(
    tmp_path: Path,
) -> None:
    rows = [SimpleRecord(f"value{number}".encode() * 40) for number in range(9)]
    names: dict[str, str] = {}
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        for name, compressor in foreign_compressors(codec).items():
            file = f"{len(names)}/{0:020d}.log"
            names[file] = f"{codec}, {name}"
            path = tmp_path / file
            path.parent.mkdir()
            path.write_bytes(write_batch(rows, base_offset=0, codec=codec, compressor=compressor))
    assert len(names) >= 12
    dump = dump_log_segments(tmp_path, names, "--print-data-log")
    assert dump.complaints == []
    for file, name in names.items():
        (batch,) = dump.batches(file)
        payloads = [record["payload"].encode() for record in batch.records]
        assert payloads == [row.value for row in rows], name


def test_dump_log_segments_finds_no_errors_in_segments_of_uniform_batches(tmp_path: Path) -> None:
    for codec in ("none", "zstd"):
        batches = write_uniform_batches(
            batch_count=400,
            records_per_batch=100,
            value_size=50,
            key_size=8,
            codec=codec,
            payload="json",
            base_offset=1000,
        )
        names = store(tmp_path / codec, [uniform_segment(batches)])
        files = [*names["log"], *names["index"], *names["timeindex"]]
        dump = dump_log_segments(tmp_path, files, "--deep-iteration")
        assert dump.complaints == []
        offsets = [
            int(record["offset"])
            for batch in dump.batches(names["log"][0])
            for record in batch.records
        ]
        assert offsets == list(range(1000, 41000))
