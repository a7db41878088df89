"""Lists, renames and deletes objects in the folder of `LocalTieredStorage`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from pathlib import Path

_ASIDE = ".aside"


@dataclass(frozen=True, slots=True)
class TieredSegment:
    """A segment in the tier.

    Attributes:
        base_offset: First offset of the segment.
        objects: Paths of the segment's objects, including the log.
    """

    base_offset: int
    objects: tuple[Path, ...]

    @property
    def log(self) -> Path:
        """Returns the path of the log object."""
        return next(path for path in self.objects if path.suffix == ".log")


def list_tiered_segments(tier: Path, topic: str, partition: int = 0) -> list[TieredSegment]:
    """Returns the segments of a partition in order of their base offsets.

    Skips segments without a log object. If a topic was recreated, also returns segments of the
    deleted topic."""
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
    """Deletes `count` random objects of the segments and returns their paths."""
    objects = [path for segment in segments for path in segment.objects]
    removed = choice.sample(objects, count)
    for path in removed:
        path.unlink()
    return removed


def put_aside(path: Path) -> None:
    """Renames an object so that readers do not find it; `put_back` restores the name."""
    path.rename(path.with_name(path.name + _ASIDE))


def put_back(path: Path) -> None:
    """Restores the name of an object that `put_aside` renamed."""
    path.with_name(path.name + _ASIDE).rename(path)
