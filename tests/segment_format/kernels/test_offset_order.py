"""Checks that a wrong base offset, which no checksum covers, is detected because the offsets are
not in order.
"""

from __future__ import annotations

import random

import pytest

from segment_format.arrow import RecordDecoder
from segment_format.errors import CorruptRecordError, SegmentFormatError
from segment_format.record.framing import iter_entries
from segment_format.testing import SimpleRecord, write_batch
from segment_format.testing.batches import write_message_set
from tests.quick import only
from tests.segment_format.kernels.yardstick import decode_pieces, pieces

FIRST, STOP = 1000, 1060


def make_log(codec: str = "none") -> bytes:
    """Returns twelve batches of five records each, without missing offsets."""
    return b"".join(
        write_batch([SimpleRecord(b"v")] * 5, base_offset=base, codec=codec)
        for base in range(FIRST, STOP, 5)
    )


def offsets_of(
    data: bytes, start: int, stop: int, cut: int, bounds: tuple[int, int] = (FIRST, STOP)
) -> list[int]:
    decoder = RecordDecoder(
        columns=("offset",), start_offset=start, stop_offset=stop, offset_bounds=bounds
    )
    batches = decode_pieces(decoder, pieces(data, [cut]))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize("cut", only(1, [50, 1, 100, 1 << 20]))
@pytest.mark.parametrize(("start", "stop"), [(FIRST, STOP), (1017, 1033), (1020, 1035)])
def test_flipped_base_offset_bit_does_not_change_rows(start: int, stop: int, cut: int) -> None:
    data = make_log()
    expected = list(range(start, stop))
    assert offsets_of(data, start, stop, cut) == expected
    refused: list[tuple[int, int | None]] = []
    named_offsets: list[int] = []
    entries = list(iter_entries(data))
    for number, entry in enumerate(entries):
        for bit in range(64):
            changed = bytearray(data)
            changed[entry.position + bit // 8] ^= 1 << bit % 8
            try:
                assert offsets_of(bytes(changed), start, stop, cut) == expected
            except SegmentFormatError as error:
                refused.append((number, error.position))
                named_offsets.append(-1 if error.offset is None else error.offset)
    # The error names the changed entry or the next one.
    assert all(
        position in [entry.position for entry in entries[number : number + 2]]
        for number, position in refused
    )
    assert all(FIRST <= offset <= STOP for offset in named_offsets)
    needed = [entry for entry in entries if entry.offset < stop]
    assert len(refused) >= 64 * len(needed)


def test_repeated_or_reordered_entries_raise() -> None:
    batches = [make_log()[entry.position : entry.stop] for entry in iter_entries(make_log())]
    for order in ([0, 0], [1, 0], [0, 2, 1]):
        with pytest.raises(CorruptRecordError, match="an entry has offsets"):
            offsets_of(b"".join(batches[number] for number in order), FIRST, STOP, 1 << 20)


def test_gaps_between_offsets_do_not_raise() -> None:
    source = random.Random(5)
    batches = [make_log()[entry.position : entry.stop] for entry in iter_entries(make_log())]
    for _ in range(50):
        kept = sorted(source.sample(range(12), source.randint(0, 12)))
        start = source.randint(FIRST, STOP)
        stop = source.randint(start, STOP)
        existing = {FIRST + 5 * number + record for number in kept for record in range(5)}
        data = b"".join(batches[number] for number in kept)
        for cut in (7, 83, 1 << 20):
            assert offsets_of(data, start, stop, cut) == sorted(existing & set(range(start, stop)))


@pytest.mark.parametrize("bounds", [(FIRST + 1, STOP), (FIRST, STOP - 1)])
def test_entries_outside_segment_bounds_raise(bounds: tuple[int, int]) -> None:
    with pytest.raises(CorruptRecordError, match=rf"\[{bounds[0]}, |, {bounds[1]}\)"):
        offsets_of(make_log(), 0, 2**40, 1 << 20, bounds)


def test_message_sets_in_wrong_order_raise() -> None:
    data = b"".join(
        write_message_set([SimpleRecord(b"v")], base_offset=offset, magic=1) for offset in (3, 4, 9)
    )
    assert offsets_of(data, 0, 100, 1 << 20, (3, 10)) == [3, 4, 9]
    for bounds in ((4, 10), (3, 9)):
        with pytest.raises(CorruptRecordError, match="an entry has offsets"):
            offsets_of(data, 0, 100, 1 << 20, bounds)
    again = write_message_set([SimpleRecord(b"v")], base_offset=9, magic=1)
    with pytest.raises(CorruptRecordError, match="an entry has offsets 9 to 9"):
        offsets_of(data + again, 0, 100, 1 << 20, (3, 10))
