"""Reads one hour out of thirty days from a tier with chunks. Compares the number of fetched bytes
with the total size of the chunks that contain the hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.bench import NEWEST_SPARK, Bench, Contestant
from benchmarks.report import Row, at_most
from benchmarks.session import Query
from benchmarks.tiers import TOPIC, cache_folder
from kts_source.metrics import summary
from segment_format.testing.segment import (
    BatchFacts,
    IndexBuilder,
    SegmentFiles,
    write_leader_epoch_checkpoint,
    write_producer_snapshot,
)
from segment_format.testing.tiers import DEFAULT_CHUNK_SIZE, AivenTierWriter
from tests.uniform_batches import write_uniform_batches

if TYPE_CHECKING:
    from pathlib import Path

_FIRST_MS: Final = 1_750_000_000_000
_HOUR_MS: Final = 3_600_000
_HOURS: Final = 720
_SEGMENTS: Final = 6
_PIECES_AN_HOUR: Final = 4
_PIECE_BATCHES: Final = 8
_BATCH_RECORDS: Final = 136
_VALUE_BYTES: Final = 100


def hour_rows(bench: Bench) -> list[Row]:
    """Returns the row that compares the bytes fetched for the middle hour with the size of the
    hour's chunks.
    """
    path = _tier()
    start = _FIRST_MS + 361 * _HOUR_MS + _HOUR_MS // 8
    options = {
        "path": str(path),
        "subscribe": TOPIC,
        "startingTimestamp": str(start),
        "endingTimestamp": str(start + _HOUR_MS),
    }
    folder = bench.folder()
    query = Query("tiered-kafka", {**options, "metricsPath": str(folder)}, sink="count")
    run = bench.run(Contestant(NEWEST_SPARK, query))
    expected = _PIECES_AN_HOUR * _PIECE_BATCHES * _BATCH_RECORDS
    if run.rows != expected:
        raise AssertionError(f"the query returned {run.rows} of {expected} rows of the hour")
    fetched = float(summary(str(folder)).total["bytes"])
    needed = _chunks_of_hour(start)
    return [
        at_most(
            "one hour of 30 days: bytes fetched, by those of the chunks that hold it",
            fetched / needed,
            "×",
            1.1,
        ),
        Row("one hour of 30 days: bytes fetched", fetched / (1 << 20), "MiB"),
    ]


def _piece_size() -> int:
    return len(_piece(0, 0)[0])


def _piece(base_offset: int, first_ms: int) -> tuple[bytes, list[int]]:
    batches = write_uniform_batches(
        batch_count=_PIECE_BATCHES,
        records_per_batch=_BATCH_RECORDS,
        value_size=_VALUE_BYTES,
        base_offset=base_offset,
        base_timestamp=first_ms,
    )
    return batches.data, batches.sizes.tolist()


def _chunks_of_hour(start: int) -> int:
    """Returns the total size in bytes of the chunks that contain records of the hour from `start`
    on. The chunks must be neither compressed nor encrypted.
    """
    spacing = _HOUR_MS // _PIECES_AN_HOUR
    first = -(-(start - _FIRST_MS) // spacing)
    stop = -(-(start + _HOUR_MS - _FIRST_MS) // spacing)
    segment_pieces = _HOURS * _PIECES_AN_HOUR // _SEGMENTS
    assert first // segment_pieces == (stop - 1) // segment_pieces, "the hour lies in one segment"
    size = _piece_size()
    low, high = first % segment_pieces * size, ((stop - 1) % segment_pieces + 1) * size
    low = low // DEFAULT_CHUNK_SIZE * DEFAULT_CHUNK_SIZE
    high = min(-(-high // DEFAULT_CHUNK_SIZE) * DEFAULT_CHUNK_SIZE, segment_pieces * size)
    return high - low


def _tier() -> Path:
    path = cache_folder() / "thirty-days"
    if (path / "done").exists():
        return path
    writer = AivenTierWriter(path, topic=TOPIC, topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
    spacing = _HOUR_MS // _PIECES_AN_HOUR
    offset = 0
    segment_pieces = _HOURS * _PIECES_AN_HOUR // _SEGMENTS
    for segment in range(_SEGMENTS):
        base = offset
        indexes = IndexBuilder(base)
        pieces = []
        for number in range(segment * segment_pieces, (segment + 1) * segment_pieces):
            first_ms = _FIRST_MS + number * spacing
            data, sizes = _piece(offset, first_ms)
            pieces.append(data)
            for batch_number, size in enumerate(sizes, 1):
                done = batch_number * _BATCH_RECORDS - 1
                indexes.add_append([BatchFacts(size, offset + done, first_ms + done)])
            offset += len(sizes) * _BATCH_RECORDS
        newest = indexes.max_timestamp
        index, timeindex, _ = indexes.close()
        writer.write_segment(
            SegmentFiles(
                base_offset=base,
                next_offset=offset,
                log=b"".join(pieces),
                index=index,
                timeindex=timeindex,
                txnindex=None,
                snapshot=write_producer_snapshot([]),
                leader_epoch_checkpoint=write_leader_epoch_checkpoint(((0, 0),)),
                max_timestamp_ms=newest,
                epochs=((0, base),),
            )
        )
    (path / "done").touch()
    return path
