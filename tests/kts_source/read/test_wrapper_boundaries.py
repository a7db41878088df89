"""Reads logs with compressed messages of format 0 and 1 whose offsets have a flipped bit.

Such a message (a wrapper) states only its last offset, and no checksum covers this offset. If a
slice ends before a wrapper, it must still detect that the wrapper's records overlap its own.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import TieredKafkaError
from segment_format.record.framing import iter_entries
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.planning.scanning import scan
from tests.quick import only

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "orders"
TOPIC_ID = "LWgrMmVrT0a__7a4SasuPA"
WRITERS = {"aiven": AivenTierWriter, "local-tiered-storage": LocalTierWriter}


def write_tier(
    root: Path,
    layout: str,
    sizes: list[int],
    magics: list[int],
    first: int,
    *,
    codec: str = "gzip",
    interval: int = 1,
) -> Path:
    """Writes one segment. Each record's value contains its offset. Returns the path of the log.

    Args:
        root: Folder of the tier.
        layout: Name of the layout.
        sizes: Number of records of each entry.
        magics: Message format of each entry.
        first: First offset.
        codec: Compression of the entries of format 0 and 1.
        interval: Bytes of the log per entry of the offset index.
    """
    builder = LogBuilder(start_offset=first, index_interval_bytes=interval)
    for size, magic in zip(sizes, magics, strict=True):
        offset = builder.next_offset
        records = [SimpleRecord(b"x%d" % number) for number in range(offset, offset + size)]
        if magic == 2:
            builder.append(records)
        else:
            builder.append_message_set(records, magic=magic, codec=codec)
    builder.roll()
    (segment,) = (segment for segment in builder.build().segments if segment.log)
    writer = WRITERS[layout](root, topic=TOPIC, topic_id=TOPIC_ID)
    (key,) = (key for key in writer.write_segment(segment).keys if key.endswith(".log"))
    path: Path = root / key
    return path


def read_rows(root: Path, layout: str, start: int, stop: int, target: str) -> list[int]:
    """Returns the offsets of the rows of a bounded scan, and checks that the values match."""
    table = scan(
        {
            "path": str(root),
            "layout": layout,
            "subscribe": TOPIC,
            "startingOffsets": f'{{"{TOPIC}": {{"0": {start}}}}}',
            "endingOffsets": f'{{"{TOPIC}": {{"0": {stop}}}}}',
            "targetPartitionBytes": target,
        }
    )
    offsets: list[int] = table["offset"].to_pylist()
    assert table["value"].to_pylist() == [b"x%d" % offset for offset in offsets]
    return offsets


@pytest.mark.parametrize("layout", sorted(WRITERS))
@pytest.mark.parametrize("seed", only(6, range(5, 21)))
def test_flipped_bit_in_entry_offset_leaves_rows_unchanged_or_raises(
    tmp_path: Path, layout: str, seed: int
) -> None:
    chance = random.Random(seed)
    sizes = [chance.randint(2, 6) for _ in range(5)]
    magics = [2, *(chance.choice([0, 1, 1, 2]) for _ in sizes[1:])]
    first = chance.randrange(60, 100)
    end = first + sum(sizes)
    codec, interval = chance.choice(["none", "gzip"]), chance.choice([1, 150, 300])
    log = write_tier(tmp_path, layout, sizes, magics, first, codec=codec, interval=interval)
    data = log.read_bytes()
    refused = 0
    for entry in iter_entries(data):
        for bit in range(4):
            start = chance.randrange(first, end)
            stop = chance.randint(start + 1, end)
            target = chance.choice(["1", "200", "1m"])
            log.write_bytes(data)
            assert read_rows(tmp_path, layout, start, stop, target) == list(range(start, stop))
            flipped = bytearray(data)
            flipped[entry.position + 7] ^= 1 << bit
            log.write_bytes(flipped)
            try:
                rows = read_rows(tmp_path, layout, start, stop, target)
            except TieredKafkaError:
                refused += 1
            else:
                assert rows == list(range(start, stop)), (entry, bit, start, stop, target)
    assert refused


@pytest.mark.parametrize("layout", sorted(WRITERS))
def test_wrapper_that_overlaps_the_previous_slice_raises(tmp_path: Path, layout: str) -> None:
    log = write_tier(tmp_path, layout, [4, 3, 4, 3, 5], [2, 1, 1, 1, 1], 90)
    data = bytearray(log.read_bytes())
    wrapper = list(iter_entries(bytes(data)))[1]
    data[wrapper.position + 7] ^= 2  # [94, 97) becomes [96, 99); the next wrapper has [97, 101)
    log.write_bytes(data)
    with pytest.raises(TieredKafkaError, match=r"begins at offset 97.* ends with offset 98"):
        read_rows(tmp_path, layout, 90, 101, "200")


def test_message_whose_offset_is_in_the_previous_slice_raises_or_is_skipped(tmp_path: Path) -> None:
    errors = []
    log = write_tier(tmp_path, "aiven", [6, 3, 5], [2, 1, 1], 0, codec="none", interval=150)
    data = bytearray(log.read_bytes())
    message = next(entry for entry in iter_entries(bytes(data)) if entry.offset == 12)
    data[message.position + 7] ^= 4  # offset 12 becomes 8
    log.write_bytes(data)
    for target, stop in itertools.product(range(100, 400, 30), (9, 10, 11)):
        try:
            rows = read_rows(tmp_path, "aiven", 0, stop, str(target))
        except TieredKafkaError as error:
            errors.append(str(error))
        else:
            assert rows == list(range(stop)), target
    assert any("ends with offset 11" in error for error in errors), errors


@pytest.mark.parametrize("layout", sorted(WRITERS))
def test_wrapper_whose_offset_became_0_raises_or_is_not_read(tmp_path: Path, layout: str) -> None:
    chance = random.Random(17)
    refused = 0
    for number, last in enumerate((1, 2, 4, 8)):
        sizes = [last + 1, *(chance.randint(1, 4) for _ in range(3))]
        root = tmp_path / str(number)
        log = write_tier(root, layout, sizes, [1] * len(sizes), 0)
        data = bytearray(log.read_bytes())
        data[7] ^= last
        log.write_bytes(data)
        for start in range(last + 2):
            stop = chance.randint(start + 1, sum(sizes))
            try:
                rows = read_rows(root, layout, start, stop, chance.choice(["1", "1m"]))
            except TieredKafkaError:
                refused += 1
            else:
                assert rows == list(range(start, stop)), (last, start, stop)
    assert refused
