"""Checks that a part of an unencoded chunk is read without the rest of the chunk.

Unencoded chunks are neither compressed nor encrypted. A local store and a remote store return the
same bytes, and no other bytes are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kts_source.errors import TruncatedObjectError
from kts_source.keyring import KeyRing
from kts_source.layout.remote_segment import ObjectRef, SegmentObjects
from kts_source.read import segment_source
from kts_source.read.fetch import NO_READ_AHEAD, ReadAhead
from kts_source.read.segment_source import SegmentSource, SegmentSpan
from kts_source.store.local_store import LocalStore
from kts_source.tier import Tier
from segment_format.manifest.chunk_index import FixedChunkIndex

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = bytes(number * number % 251 for number in range(205))
CHUNK = 40
ENDS = st.integers(0, len(DATA))


class Far(LocalStore):
    """A folder that behaves like a remote store."""

    is_near = False


@pytest.fixture(scope="module", params=[LocalStore, Far])
def reader(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SegmentSource]:
    root: Path = tmp_path_factory.mktemp("near")
    (root / "a.log").write_bytes(DATA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_source, "ENOUGH_REQUEST_BYTES", 2 * CHUNK)
        patch.setattr(segment_source, "FIRST_REQUEST_BYTES", CHUNK)
        yield SegmentSource(Tier(request.param(root)), KeyRing())


@given(ends=st.lists(st.tuples(ENDS, ENDS).map(sorted), min_size=1, max_size=3))
def test_windows_contain_exactly_the_requested_bytes(
    reader: SegmentSource, ends: list[list[int]]
) -> None:
    index = FixedChunkIndex(CHUNK, len(DATA), CHUNK, len(DATA) % CHUNK)
    log = ObjectRef("a.log", len(DATA), None)
    objects = SegmentObjects(log, index, False, None, {})
    spans = [
        SegmentSpan("t", 0, number, objects, start, stop)
        for number, (start, stop) in enumerate(ends)
    ]
    assert reader.reads_parts(objects)
    before = reader.store.counters.bytes
    contents = [b""] * len(spans)
    for span, window in reader.windows(spans, read_ahead=ReadAhead(2, 1000, slow_start=True)):
        assert window
        contents[span.offset] += window
    assert contents == [DATA[start:stop] for start, stop in ends]
    assert reader.store.counters.bytes - before == sum(stop - start for start, stop in ends)


@pytest.mark.parametrize("ahead", [NO_READ_AHEAD, ReadAhead(2, 1000, slow_start=False)])
def test_error_of_failed_read_names_its_byte_range(tmp_path: Path, ahead: ReadAhead) -> None:
    (tmp_path / "whole.log").write_bytes(DATA)
    (tmp_path / "cut.log").write_bytes(DATA[:50])
    index = FixedChunkIndex(CHUNK, len(DATA), CHUNK, len(DATA) % CHUNK)
    complete, cut = (
        SegmentObjects(ObjectRef(f"{name}.log", len(DATA), None), index, False, None, {})
        for name in ("whole", "cut")
    )
    spans = [
        SegmentSpan("t", 0, 1, complete, 0, len(DATA)),
        SegmentSpan("t", 0, 2, cut, 0, 40),
        SegmentSpan("t", 0, 3, cut, 40, len(DATA)),
        SegmentSpan("t", 0, 4, complete, 0, len(DATA)),
    ]
    source = SegmentSource(Tier(Far(tmp_path)), KeyRing())
    read: list[int] = []
    with pytest.raises(TruncatedObjectError, match=r"cut\.log") as caught:
        read.extend(span.offset for span, _ in source.windows(spans, read_ahead=ahead))
    assert set(read) <= {1, 2}
    assert caught.value.span is spans[2]
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 3)
