"""Looks into the folder of LocalTieredStorage and takes objects away from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from pathlib import Path

_ASIDE = ".aside"


@dataclass(frozen=True, slots=True)
class TieredSegment:
    """The objects of one segment.

    Attributes:
        base_offset: Its first offset.
        objects: Their paths; the log is the one that ends in `.log`.
    """

    base_offset: int
    objects: tuple[Path, ...]

    @property
    def log(self) -> Path:
        """The records."""
        return next(path for path in self.objects if path.suffix == ".log")


def tiered_segments(tier: Path, topic: str, partition: int = 0) -> list[TieredSegment]:
    """The segments with a log, of all topics that have had this name, by base offset."""
    found: dict[tuple[Path, str], list[Path]] = {}
    for path in tier.glob(f"*/{topic}-{partition}-*/*"):
        if path.suffix != _ASIDE:
            found.setdefault((path.parent, path.name.split(".")[0]), []).append(path)
    segments = [
        TieredSegment(int(name.split("-")[0]), tuple(sorted(paths)))
        for (_, name), paths in found.items()
        if any(path.suffix == ".log" for path in paths)
    ]
    return sorted(segments, key=lambda segment: (segment.base_offset, str(segment.log)))


def remove_random(segments: list[TieredSegment], count: int, choice: random.Random) -> list[Path]:
    """Deletes random objects, of any kind.

    Returns:
        What was deleted.
    """
    objects = [path for segment in segments for path in segment.objects]
    gone = choice.sample(objects, count)
    for path in gone:
        path.unlink()
    return gone


def put_aside(path: Path) -> None:
    """Renames an object so that no reader finds it; `put_back` undoes that."""
    path.rename(path.with_name(path.name + _ASIDE))


def put_back(path: Path) -> None:
    """Gives an object that was put aside its name again."""
    path.with_name(path.name + _ASIDE).rename(path)
