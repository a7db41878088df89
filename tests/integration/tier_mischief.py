"""Lists and removes objects in the folder of LocalTieredStorage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from pathlib import Path

_ASIDE = ".aside"


@dataclass(frozen=True, slots=True)
class TieredSegment:
    """The objects of a segment.

    Attributes:
        base_offset: Its first offset.
        objects: Paths of its objects, including the log.
    """

    base_offset: int
    objects: tuple[Path, ...]

    @property
    def log(self) -> Path:
        """Returns the path of the log."""
        return next(path for path in self.objects if path.suffix == ".log")


def list_tiered_segments(tier: Path, topic: str, partition: int = 0) -> list[TieredSegment]:
    """Returns the segments that have a log, of all topics with this name, by base offset."""
    paths_by_segment: dict[tuple[Path, str], list[Path]] = {}
    for path in tier.glob(f"*/{topic}-{partition}-*/*"):
        if path.suffix != _ASIDE:
            paths_by_segment.setdefault((path.parent, path.name.split(".")[0]), []).append(path)
    segments = [
        TieredSegment(int(name.split("-")[0]), tuple(sorted(paths)))
        for (_, name), paths in paths_by_segment.items()
        if any(path.suffix == ".log" for path in paths)
    ]
    return sorted(segments, key=lambda segment: (segment.base_offset, str(segment.log)))


def remove_random(segments: list[TieredSegment], count: int, choice: random.Random) -> list[Path]:
    """Deletes random objects of any kind.

    Returns:
        The deleted paths.
    """
    objects = [path for segment in segments for path in segment.objects]
    removed = choice.sample(objects, count)
    for path in removed:
        path.unlink()
    return removed


def put_aside(path: Path) -> None:
    """Renames an object so that readers do not find it; `put_back` restores it."""
    path.rename(path.with_name(path.name + _ASIDE))


def put_back(path: Path) -> None:
    """Restores the name of an object that `put_aside` renamed."""
    path.with_name(path.name + _ASIDE).rename(path)
