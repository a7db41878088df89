"""Measures lower bounds of a scan without Spark: reading the bytes, and decoding them, each
separately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kts_source.columns import DEFAULT_COLUMNS, PARTITION, TOPIC
from kts_source.read.read_settings import FOR_ENGINES
from segment_format.arrow import RecordDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_WINDOW: Final = 8 << 20


def read(logs: Sequence[Path]) -> None:
    """Reads files and does nothing else."""
    memory = memoryview(bytearray(_WINDOW))
    for path in logs:
        with path.open("rb", buffering=0) as file:
            while file.readinto(memory):
                pass


def read_and_decode(logs: Sequence[Path]) -> None:
    """Reads and decodes windows in turns, and does nothing else."""
    memory = memoryview(bytearray(_WINDOW))
    for path in logs:
        decoder = _decoder()
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(memory):
                for _ in decoder.feed(memory[:size]):
                    pass
        for _ in decoder.finish():
            pass


def _decoder() -> RecordDecoder:
    return RecordDecoder(
        columns=DEFAULT_COLUMNS,
        constants={TOPIC: "bench", PARTITION: 0},
        max_rows=FOR_ENGINES.rows,
        max_bytes=FOR_ENGINES.size,
    )


def decode(log: bytes, repeats: int) -> None:
    """Decodes the bytes of a log from memory, `repeats` times."""
    view = memoryview(log)
    for _ in range(repeats):
        decoder = _decoder()
        for start in range(0, len(log), _WINDOW):
            for _ in decoder.feed(view[start : start + _WINDOW]):
                pass
        for _ in decoder.finish():
            pass
