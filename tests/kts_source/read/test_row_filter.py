"""Compares three ways to filter rows: in two decoding passes, the first of which decodes only the
columns of the condition; in one pass; and after a full decode.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.predicate.evaluate import evaluate
from kts_source.predicate.model import columns_of
from kts_source.predicate.parse import parse_predicate
from kts_source.read import row_filter
from kts_source.read.read_settings import FOR_SPARK, BatchLimits
from kts_source.read.row_filter import FilteringDecoder
from segment_format.arrow import RECORD_COLUMNS, RecordDecoder, iter_arrow
from segment_format.testing.batches import SimpleRecord, write_batch, write_message_set
from tests.kts_source.predicate.generated import PREDICATES
from tests.quick import examples
from tests.uniform_batches import write_uniform_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from kts_source.predicate.model import Predicate

CODECS = ("none", "lz4", "zstd", "snappy", "gzip")


def make_log(sizes: Sequence[int], codec: str, *, old: bool) -> bytes:
    """Returns a log with one batch for each number of records in `sizes`.

    Some keys and values are null, and some header keys repeat. If `old` is true, a message set of
    magic 1 precedes the batches.
    """
    data, offset = b"", 0
    if old:
        data, offset = (
            write_message_set([SimpleRecord(b"a", b"b", timestamp=2)], base_offset=0, magic=1),
            1,
        )
    for size in sizes:
        records = [
            SimpleRecord(
                value=None if number % 7 == 3 else b"ab" * (number % 5),
                key=None if number % 3 == 2 else b"ab"[: number % 3],
                headers=(("h", b"a"), ("i", None), ("h", None))[: number % 4],
                timestamp=number % 5,
            )
            for number in range(offset, offset + size)
        ]
        data += write_batch(records, base_offset=offset, codec=codec)
        offset += size
    return data


def filtered(
    predicate: Predicate,
    data: bytes,
    cuts: Sequence[int],
    columns: Sequence[str],
    *,
    late: bool | None,
    start: int = 0,
    stop: int = 1 << 40,
    max_rows: int = 5,
) -> list[pa.RecordBatch]:
    make = partial(RecordDecoder, start_offset=start, stop_offset=stop)
    batches = BatchLimits(max_rows, 1 << 20)
    with pytest.MonkeyPatch.context() as patch:
        if late is not None:
            patch.setattr(row_filter, "_LARGE_COLUMNS", frozenset(columns if late else ()))
        decoder = FilteringDecoder(predicate, make, columns=columns, position=0, batches=batches)
    filtered_rows: list[pa.RecordBatch] = []
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for low, high in pairwise(borders):
        if decoder.done:
            break
        filtered_rows += decoder.feed(memoryview(data)[low:high])
    return filtered_rows + list(decoder.finish())


def table_of(batches: list[pa.RecordBatch], columns: Sequence[str]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for batch in batches:
        assert batch.schema.names == list(columns)
        rows += batch.to_pylist()
    return rows


WITHOUT_PLACE = PREDICATES.filter(
    lambda predicate: not columns_of(predicate) & {"topic", "partition"}
)


@settings(deadline=None, max_examples=examples(150))
@given(
    WITHOUT_PLACE,
    st.lists(st.integers(1, 12), max_size=6),
    st.sampled_from(CODECS),
    st.booleans(),
    st.lists(st.integers(0, 10_000), max_size=5),
    st.lists(st.sampled_from(RECORD_COLUMNS), min_size=1, unique=True),
    st.sampled_from([(0, 1 << 40), (3, 20), (5, 6)]),
)
def test_filtering_in_one_or_two_passes_returns_the_same_rows(
    predicate: Predicate,
    sizes: list[int],
    codec: str,
    old: bool,
    cuts: list[int],
    columns: list[str],
    offsets: tuple[int, int],
) -> None:
    data = make_log(sizes, codec, old=old)
    start, stop = offsets
    expected: list[dict[str, object]] = []
    for batch in iter_arrow(data, start_offset=start, stop_offset=stop):
        kept = batch.filter(evaluate(predicate, batch))
        expected += kept.select(columns).to_pylist()
    for late in (True, False, None):
        batches = filtered(predicate, data, cuts, columns, late=late, start=start, stop=stop)
        assert table_of(batches, columns) == expected


@pytest.mark.parametrize(
    ("condition", "late_to_the_end"),
    [("key = X'0000000000000100'", True), ("offset >= 0", False), ("key IS NULL", True)],
)
def test_rows_are_filtered_in_one_pass_if_two_passes_save_nothing(
    condition: str, late_to_the_end: bool
) -> None:
    log = write_uniform_batches(
        batch_count=40, records_per_batch=25, value_size=50, key_size=8
    ).data
    predicate = parse_predicate(condition)
    decoders: list[tuple[str, ...]] = []

    def make(**arguments: object) -> RecordDecoder:
        columns = arguments["columns"]
        decoders.append(tuple(columns))  # type: ignore[arg-type]
        return RecordDecoder(**arguments)  # type: ignore[arg-type]

    decoder = FilteringDecoder(
        predicate, make, columns=["value", "offset"], position=0, batches=FOR_SPARK
    )
    rows = 0
    for low in range(0, len(log), 10_000):
        rows += sum(batch.num_rows for batch in decoder.feed(memoryview(log)[low : low + 10_000]))
    rows += sum(batch.num_rows for batch in decoder.finish())
    assert rows == {"key IS NULL": 0, "offset >= 0": 1000}.get(condition, 1)
    assert "value" not in decoders[0]
    assert len(decoders) == {"key IS NULL": 1, "offset >= 0": 3}.get(condition, 2)
    assert late_to_the_end is (decoders[-1] != decoders[1] if len(decoders) > 2 else True)


def test_few_matches_are_packed_into_one_batch() -> None:
    log = write_uniform_batches(
        batch_count=100, records_per_batch=25, value_size=5, key_size=8
    ).data
    predicate = parse_predicate("offset IN (3, 800, 2300)")
    for late in (True, False):
        (batch,) = filtered(predicate, log, [], ["offset"], late=late, max_rows=100)
        assert batch.column("offset").to_pylist() == [3, 800, 2300]
