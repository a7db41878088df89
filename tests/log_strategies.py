"""Provides Hypothesis strategies. They build Kafka logs, and the rows that a reader of the logs
must return.

    @given(logs())
    def test_reader(log):
        assert read(log.segments, "read_committed") == log.rows("read_committed")
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from segment_format.testing.batches import (
    CODEC_NUMBERS,
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    SimpleRecord,
)
from segment_format.testing.log_builder import LogBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.testing.log_builder import BuiltLog, ExpectedRow
    from segment_format.testing.segment import SegmentFiles

MAX_OFFSET = (1 << 48) - 1
_PRODUCER_IDS = (0, 7, 4242)


@dataclass(frozen=True, slots=True)
class BatchCase:
    """One entry of a log and its expected rows.

    Attributes:
        data: The bytes.
        rows: Every data record; empty for control and empty batches.
        base_offset: First offset.
        next_offset: The offset after the last one.
    """

    data: bytes
    rows: tuple[ExpectedRow, ...]
    base_offset: int
    next_offset: int


def codecs() -> st.SearchStrategy[str]:
    """Generates codec names. Failing examples shrink to "none"."""
    return st.sampled_from(sorted(CODEC_NUMBERS, key=CODEC_NUMBERS.__getitem__))


def timestamps() -> st.SearchStrategy[int]:
    """Generates timestamps in ms from 1970 to 2109, not in ascending order, and `NO_TIMESTAMP`."""
    return st.one_of(
        st.integers(1_700_000_000_000, 1_700_000_100_000),
        st.integers(0, (1 << 42) - 1),
        st.just(NO_TIMESTAMP),
    )


def payloads() -> st.SearchStrategy[bytes]:
    """Generates keys and values. Most are short; some are too long for a one-byte varint length."""
    return st.one_of(
        st.binary(max_size=12),
        st.builds(lambda unit, count: unit * count, st.binary(min_size=1, max_size=8), _LENGTHS),
    )


_LENGTHS = st.sampled_from([9, 64, 130, 2000])


def headers(
    names: st.SearchStrategy[str] | None = None,
) -> st.SearchStrategy[tuple[tuple[str, bytes | None], ...]]:
    """Generates record headers; many records have none. Keys may repeat or be empty, and values may
    be null.
    """
    keys = st.text(max_size=4) if names is None else names
    pair = st.tuples(keys, st.none() | st.binary(max_size=6))
    return st.just(()) | st.lists(pair, max_size=3).map(tuple)


@st.composite
def records(
    draw: st.DrawFn,
    *,
    min_size: int = 1,
    max_size: int = 6,
    contents: st.SearchStrategy[bytes] | None = None,
    header_names: st.SearchStrategy[str] | None = None,
) -> list[SimpleRecord]:
    """Generates records without offsets.

    `contents` generates the keys and values that are not null; the default is `payloads()`.
    `header_names` generates header keys; the default is any short text.
    """
    content = st.none() | (payloads() if contents is None else contents)
    record = st.builds(
        SimpleRecord,
        value=content,
        key=content,
        headers=headers(header_names),
        timestamp=timestamps(),
    )
    return draw(st.lists(record, min_size=min_size, max_size=max_size))


@st.composite
def batches(
    draw: st.DrawFn,
    *,
    codec: st.SearchStrategy[str] | None = None,
    some: st.SearchStrategy[list[SimpleRecord]] | None = None,
) -> BatchCase:
    """Generates a batch of magic 2: data with any codec, or a compacted, empty or control batch.

    `codec` defaults to `codecs()`. `some` generates the records of the batch and defaults to
    `records()`.
    """
    builder = LogBuilder(
        start_offset=draw(st.integers(0, MAX_OFFSET)), leader_epoch=draw(st.integers(0, 1000))
    )
    shape = draw(st.sampled_from(["data", "data", "compacted", "append time", "empty", "marker"]))
    producer_id = draw(st.sampled_from([-1, *_PRODUCER_IDS]))
    name = draw(codecs() if codec is None else codec)
    produced = draw(records() if some is None else some)
    if shape == "empty":
        builder.append_empty_batch(draw(st.integers(1, 5)), producer_id=producer_id)
    elif shape == "marker":
        end = builder.commit if draw(st.booleans()) else builder.abort
        end(max(producer_id, 0), producer_epoch=draw(st.integers(0, 5)))
    elif shape == "compacted":
        _append_compacted(draw, builder, produced, name, producer_id)
    else:
        appended = shape == "append time"
        builder.append(
            produced,
            codec=name,
            producer_id=producer_id,
            timestamp_type=LOG_APPEND_TIME if appended else CREATE_TIME,
            log_append_time=draw(st.integers(0, 1 << 41)),
            transactional=producer_id >= 0 and draw(st.booleans()),
        )
    log = builder.build()
    (segment,) = log.segments
    return BatchCase(segment.log, log.all_rows, segment.base_offset, segment.next_offset)


@st.composite
def message_sets(
    draw: st.DrawFn, *, some: st.SearchStrategy[list[SimpleRecord]] | None = None
) -> BatchCase:
    """Generates legacy entries of magic 0 or 1: uncompressed entries, or one compressed wrapper.

    `some` generates the records, whose headers are dropped; the default is `records()`.
    """
    builder = LogBuilder(start_offset=draw(st.integers(0, MAX_OFFSET)))
    _append_legacy(draw, builder, some)
    log = builder.build()
    (segment,) = log.segments
    return BatchCase(segment.log, log.all_rows, segment.base_offset, segment.next_offset)


@st.composite
def logs(
    draw: st.DrawFn,
    *,
    max_steps: int = 14,
    transactions: bool = True,
    compaction: bool = True,
    legacy: bool = False,
    codec: st.SearchStrategy[str] | None = None,
    some: st.SearchStrategy[list[SimpleRecord]] | None = None,
) -> BuiltLog:
    """Generates the closed segments of a partition and the expected rows of each isolation level.

    Args:
        draw: Passed by Hypothesis.
        max_steps: Maximum number of appends, markers, rolls and similar steps.
        transactions: True adds transactional and idempotent producers; transactions may stay open.
        compaction: True adds holes, empty batches and delete horizons.
        legacy: True adds entries of magic 0 and 1 at the start.
        codec: None uses `codecs()`.
        some: The records of a batch; None uses `records()`.
    """
    names = codecs() if codec is None else codec
    content = records() if some is None else some
    builder = LogBuilder(
        start_offset=draw(st.sampled_from([0, 5, MAX_OFFSET])),
        leader_epoch=draw(st.integers(0, 3)),
        index_interval_bytes=draw(st.sampled_from([0, 200, 4096])),
        segment_bytes=draw(st.sampled_from([None, 300, 5000])),
    )
    if legacy:
        for _ in range(draw(st.integers(1, 3))):
            _append_legacy(draw, builder, some)
    steps = ["append", "append", "roll", "epoch"]
    if transactions:
        steps += ["send", "send", "send", "idempotent", "commit", "abort", "abort", "bump"]
    if compaction:
        steps += ["hole", "compacted", "empty", "control"]
    steps_taken = draw(st.lists(st.sampled_from(steps), min_size=1, max_size=max_steps))
    open_producers = _take_steps(draw, builder, steps_taken, names, content)
    builder.append([SimpleRecord(b"end", timestamp=NO_TIMESTAMP)])
    if transactions and draw(st.booleans()):
        for producer_id in sorted(open_producers):
            (builder.commit if draw(st.booleans()) else builder.abort)(producer_id)
    return builder.build()


def _take_steps(
    draw: st.DrawFn,
    builder: LogBuilder,
    steps: list[str],
    names: st.SearchStrategy[str],
    content: st.SearchStrategy[list[SimpleRecord]],
) -> set[int]:
    """Performs the steps and returns the producers with a transaction that is still open."""
    open_producers: set[int] = set()
    leader_epoch, producer_epoch = 3, 0
    for step in steps:
        producer_id = draw(st.sampled_from(_PRODUCER_IDS))
        if step == "append":
            builder.append(draw(content), codec=draw(names))
        elif step == "roll":
            builder.roll()
        elif step == "epoch":
            leader_epoch += 1
            builder.set_leader_epoch(leader_epoch)
        elif step == "send":
            builder.send(producer_id, draw(content), codec=draw(names))
            open_producers.add(producer_id)
        elif step == "idempotent":
            # Separate ids, because a producer id is either always or never transactional.
            builder.append(draw(content), codec=draw(names), producer_id=producer_id + 100)
        elif step in ("commit", "abort"):
            (builder.commit if step == "commit" else builder.abort)(producer_id)
            open_producers.discard(producer_id)
        elif step == "bump":
            # Transactions V2 (KIP-890): the marker has a higher epoch than the data.
            producer_epoch += draw(st.integers(1, 9))
            builder.commit(producer_id, producer_epoch=producer_epoch)
            open_producers.discard(producer_id)
        elif step == "hole":
            builder.skip_offsets(draw(st.integers(1, 50)))
        elif step == "compacted":
            _append_compacted(draw, builder, draw(content), draw(names), -1)
        elif step == "empty":
            builder.append_empty_batch(draw(st.integers(1, 5)), producer_id=producer_id + 200)
        else:
            builder.append_control(draw(st.sampled_from([2, 3, 4, 5, 6, 77])))
    return open_producers


def segments() -> st.SearchStrategy[SegmentFiles]:
    """Generates single segments with all their index files."""
    return logs().flatmap(lambda log: st.sampled_from(log.segments))


@st.composite
def mutations(draw: st.DrawFn, data: bytes) -> bytes:
    """Corrupts `data`: flips bits, truncates, inserts or removes bytes, sets huge length fields."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        size = len(changed)
        kind = draw(st.sampled_from(["flip", "cut", "insert", "remove", "integer", "repeat"]))
        position = draw(st.integers(0, max(size - 1, 0)))
        if kind == "insert":
            changed[position:position] = draw(st.binary(min_size=1, max_size=9))
        elif size == 0:
            continue
        elif kind == "flip":
            changed[position] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del changed[position:]
        elif kind == "remove":
            del changed[position : position + draw(st.integers(1, 9))]
        elif kind == "integer":
            changed[position : position + 4] = draw(st.sampled_from(_HOSTILE_INTEGERS))
        else:
            changed[position:position] = changed[position : position + draw(st.integers(1, 70))]
    return bytes(changed)


_HOSTILE_INTEGERS = [
    value.to_bytes(4, "big") for value in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFF0)
]


def _append_compacted(
    draw: st.DrawFn,
    builder: LogBuilder,
    produced: Sequence[SimpleRecord],
    codec: str,
    producer_id: int,
) -> None:
    deltas = draw(st.sets(st.integers(0, len(produced) - 1), min_size=1))
    base = builder.next_offset
    builder.append(
        [replace(produced[delta], offset=base + delta) for delta in sorted(deltas)],
        codec=codec,
        producer_id=producer_id,
        last_offset_delta=len(produced) - 1,
        delete_horizon=draw(st.none() | st.integers(0, 1 << 42)),
    )


def _append_legacy(
    draw: st.DrawFn,
    builder: LogBuilder,
    some: st.SearchStrategy[list[SimpleRecord]] | None,
) -> None:
    magic = draw(st.sampled_from([0, 1]))
    produced = draw(records() if some is None else some)
    builder.append_message_set(
        [replace(record, headers=()) for record in produced],
        magic=magic,
        codec=draw(st.sampled_from(["none", "gzip", "snappy", "lz4"])),
        timestamp_type=draw(st.sampled_from([CREATE_TIME, LOG_APPEND_TIME])) if magic else 0,
    )
