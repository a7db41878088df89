"""Flips one bit in the header of a batch near the first or last offset of a read.

Some header fields are not covered by a checksum. Reads of an offset range use these fields to find
the first and last batch of the range. After each flip, a read must return the correct rows or raise
an error.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

import kts_source
from kts_source.errors import TieredKafkaError
from kts_source.export.run import export
from kts_source.export.settings import export_settings
from kts_source.export.task_writer import LocalExecutor
from segment_format.record.framing import iter_entries
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from segment_format.record.framing import Entry
    from segment_format.testing.segment import SegmentFiles

    Row = tuple[int, bytes]

TOPIC: Final = "flips"
TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
LAYOUTS: Final = {"aiven": AivenTierWriter, "local": LocalTierWriter}
LAYOUT_NAMES: Final = {"aiven": "aiven", "local": "local-tiered-storage"}
FORMATS: Final = {
    "v0": (0, "none"),
    "v1": (1, "none"),
    "v0 wrapper": (0, "gzip"),
    "v1 wrapper": (1, "gzip"),
    "v2": (2, "none"),
    "v2 compressed": (2, "lz4"),
}
"""Magic and codec, by name of the record format."""
HEADER_BYTES: Final = {0: 18, 1: 26, 2: 61}
FLIPS_PER_TIER: Final = 25
RIGHT: Final = "right rows"


@dataclass(slots=True)
class Flips:
    """Results of several flips.

    Attributes:
        tried: Number of flips.
        outcomes: Number of reads by outcome: `RIGHT`, "wrong rows" or the name of an error class.
        silent: Descriptions of the reads that returned wrong rows.
    """

    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    silent: list[str] = field(default_factory=list)


class FlippedTier:
    """A tier without offset gaps, in which `try_flip` changes one bit of a batch header.

    Args:
        source: Source of all random choices.
        folder: Folder for the tier and for exported tables.
    """

    def __init__(self, source: random.Random, folder: Path) -> None:
        self._random = source
        self._folder = folder
        self.layout = source.choice(list(LAYOUTS))
        self.format = source.choice(list(FORMATS))
        self.first = source.choice([0, 5, 64, 1000])
        self._rows, segments = _build(source, self.first, self.format)
        self.stop = self._rows[-1][0] + 1
        writer = LAYOUTS[self.layout](folder / "tier", topic=TOPIC, topic_id=TOPIC_ID)
        self._logs: list[tuple[Path, bytes]] = []
        for segment in segments:
            written = writer.write_segment(segment)
            (key,) = (key for key in written.keys if key.endswith(".log"))
            self._logs.append((folder / "tier" / key, segment.log))
        self._options = {
            "path": str(folder / "tier"),
            "subscribe": TOPIC,
            # A limit of 200 bytes makes tasks that start or end inside a segment.
            "targetPartitionBytes": source.choice(["1m", "200"]),
            "layout": LAYOUT_NAMES[self.layout],
        }
        assert _scan(self._options) == self._rows, "wrong rows before the first flip"

    def try_flip(self, number: int) -> tuple[str, str, bool]:
        """Flips a random bit of a batch header, reads a random offset range, and restores the bit.

        Returns the outcome (see `Flips.outcomes`), a description of the flip and the read, and
        whether the read returned wrong rows without an error.
        """
        choose = self._random
        start, stop = sorted(choose.sample(range(self.first, self.stop + 1), 2))
        path, data = choose.choice(self._logs)
        entry = choose.choice(_boundary_entries(data, start, stop))
        byte = entry.position + choose.randrange(HEADER_BYTES[entry.magic])
        bit = choose.randrange(8)
        name, read = choose.choice(list(self._reads(start, stop, number)))
        flipped = bytearray(data)
        flipped[byte] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            rows = read()
            outcome = RIGHT
        except TieredKafkaError as error:
            rows, outcome = None, type(error).__name__
        finally:
            path.write_bytes(data)
        text = (
            f"{self.layout}, {self.format}: bit {bit} of byte {byte - entry.position} in the entry"
            f" of offset {entry.offset}, magic {entry.magic}, {path.name}: {name} [{start}, {stop})"
        )
        expected = [row for row in self._rows if start <= row[0] < stop]
        is_silent = rows is not None and rows not in (expected, len(expected))
        return "wrong rows" if is_silent else outcome, f"{text}: {rows}", is_silent

    def _reads(
        self, start: int, stop: int, number: int
    ) -> Iterator[tuple[str, Callable[[], list[Row] | int]]]:
        """Yields a name and a function for each way to read the offsets [start, stop)."""
        bounds = {
            "startingOffsets": f'{{"{TOPIC}": {{"0": {start}}}}}',
            "endingOffsets": f'{{"{TOPIC}": {{"0": {stop}}}}}',
        }
        bounded = {**self._options, **bounds}
        where = {**self._options, "where": f"offset >= {start} and offset < {stop}"}
        yield "scan", lambda: _scan(bounded)
        yield "where", lambda: _scan(where)
        yield "find", lambda: self._search(bounded, start, stop)
        yield "count", lambda: kts_source.scan(bounded).count(threads=1)
        yield "export", lambda: self._export(bounded, number)

    def _search(self, options: dict[str, str], start: int, stop: int) -> list[Row] | int:
        search = kts_source.find(options, keys=[b"k"])
        table = search.to_table(threads=1)
        if not search.certificate.complete:  # an incomplete certificate counts as an error
            return stop - start
        return _rows_of(table.to_pydict())

    def _export(self, options: dict[str, str], number: int) -> list[Row]:
        target = self._folder / f"table-{number}"
        try:
            export(options, export_settings(str(target), table_format="parquet"), LocalExecutor(1))
            return _rows_of(pq.read_table(target, columns=["offset", "value"]).to_pydict())
        finally:
            shutil.rmtree(target, ignore_errors=True)


def check_flips(total: int, seed: int, first: int = 0) -> Flips:
    """Tries the flips with the numbers `first` to `total - 1` and returns their results.

    Each tier is used for `FLIPS_PER_TIER` flips. If `first` is in the middle of a tier's flips,
    also tries the flips from the first flip of this tier on.
    """
    result = Flips()
    for block in range(first // FLIPS_PER_TIER, -(-total // FLIPS_PER_TIER)):
        with tempfile.TemporaryDirectory() as folder:
            tier = FlippedTier(random.Random(f"{seed}-{block}"), Path(folder))
            for number in range(min(FLIPS_PER_TIER, total - block * FLIPS_PER_TIER)):
                outcome, text, is_silent = tier.try_flip(number)
                result.tried += 1
                result.outcomes[outcome] += 1
                if is_silent:
                    result.silent.append(f"seed {seed}, block {block}: {text}")
    return result


def _build(source: random.Random, first: int, name: str) -> tuple[list[Row], list[SegmentFiles]]:
    """Builds a log without offset gaps, which begins at `first`, in the record format `name`.
    Returns all rows of the log, and its two or three segments.
    """
    magic, codec = FORMATS[name]
    log = LogBuilder(
        start_offset=first, codec=codec, index_interval_bytes=source.choice([1, 150, 4096])
    )
    rows: list[Row] = []
    for _ in range(source.randint(2, 3)):
        for batch in range(source.randint(1, 8)):
            count = source.randint(1, 6)
            values = [b"%d" % (len(rows) + number) for number in range(count)]
            rows += [(log.next_offset + number, value) for number, value in enumerate(values)]
            records = [SimpleRecord(value, key=b"k") for value in values]
            # Every segment needs a batch of magic 2, because only such batches have a leader epoch.
            if magic == 2 or batch == 0:
                log.append(records)
            else:
                log.append_message_set(records, magic=magic, codec=codec)
        log.roll()
    return rows, list(log.build().segments)


def _boundary_entries(data: bytes, start: int, stop: int) -> list[Entry]:
    """Returns the first and the last batch of the log `data`, and the batches near the offsets
    `start` and `stop`.
    """
    entries = list(iter_entries(data))
    chosen = {0, len(entries) - 1}
    for offset in (start, stop - 1):
        # The header of a legacy wrapper contains its last offset; that of a batch, its first.
        after = next((n for n, entry in enumerate(entries) if entry.offset > offset), None)
        position = len(entries) - 1 if after is None else after
        chosen |= {position - 2, position - 1, position, position + 1}
    return [entries[number] for number in sorted(chosen) if 0 <= number < len(entries)]


def _scan(options: dict[str, str]) -> list[Row]:
    return _rows_of(kts_source.scan(options).to_table(threads=1).to_pydict())


def _rows_of(columns: dict[str, list[object]]) -> list[Row]:
    return sorted(zip(columns["offset"], columns["value"], strict=True))  # type: ignore[arg-type]
