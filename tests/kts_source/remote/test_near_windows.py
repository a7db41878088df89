"""Chunks that are stored as they are need not be read whole: the same bytes, and few more of the
file where it is on this machine, none elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kts_source.keyring import KeyRing
from kts_source.remote import segment_reader
from kts_source.remote.local_store import LocalStore, local_root
from kts_source.remote.segment import ObjectRef, SegmentObjects
from kts_source.remote.segment_reader import ReadAhead, SegmentReader, SegmentSpan
from segment_format.manifest.chunk_index import FixedChunkIndex

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = bytes(number * number % 251 for number in range(205))
CHUNK = 40
PIECE = 15  # several to a chunk, and no divisor of it
ENDS = st.integers(0, len(DATA))


class Far(LocalStore):
    """A folder read as if it were elsewhere."""

    is_near = False


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SegmentReader]:
    root: Path = tmp_path_factory.mktemp("near")
    (root / "a.log").write_bytes(DATA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_reader, "NEAR_REQUEST_BYTES", PIECE)
        yield SegmentReader(LocalStore(root), KeyRing())


@given(ends=st.lists(st.tuples(ENDS, ENDS).map(sorted), min_size=1, max_size=3))
def test_windows_of_pieces_are_the_bytes_of_the_spans(
    reader: SegmentReader, ends: list[list[int]]
) -> None:
    index = FixedChunkIndex(CHUNK, len(DATA), CHUNK, len(DATA) % CHUNK)
    log = ObjectRef("a.log", len(DATA), None)
    objects = SegmentObjects(log, index, False, None, {})
    spans = [SegmentSpan("t", 0, at, objects, start, stop) for at, (start, stop) in enumerate(ends)]
    before = reader.store.counters.bytes
    found = [b""] * len(spans)
    for span, window in reader.windows(spans, read_ahead=ReadAhead(2, 1000, slow_start=True)):
        assert window
        found[span.offset] += window
    assert found == [DATA[start:stop] for start, stop in ends]
    wanted = sum(stop - start for start, stop in ends)
    assert reader.store.counters.bytes - before <= wanted + 2 * (PIECE - 1) * len(ends)


@given(ends=st.lists(st.tuples(ENDS, ENDS).map(sorted), min_size=1, max_size=3))
def test_elsewhere_not_a_byte_more_is_read(reader: SegmentReader, ends: list[list[int]]) -> None:
    index = FixedChunkIndex(CHUNK, len(DATA), CHUNK, len(DATA) % CHUNK)
    objects = SegmentObjects(ObjectRef("a.log", len(DATA), None), index, False, None, {})
    spans = [SegmentSpan("t", 0, at, objects, start, stop) for at, (start, stop) in enumerate(ends)]
    far = SegmentReader(Far(local_root(reader.store.uri(""))), KeyRing())
    assert far.reads_parts(objects)
    assert not reader.reads_parts(objects)
    found = [b""] * len(spans)
    for span, window in far.windows(spans, read_ahead=ReadAhead(2, 1000, slow_start=True)):
        found[span.offset] += window
    assert found == [DATA[start:stop] for start, stop in ends]
    assert far.store.counters.bytes == sum(stop - start for start, stop in ends)
