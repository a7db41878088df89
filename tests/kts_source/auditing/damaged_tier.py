"""A healthy tier of known segments, and what breaks it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import kts_source
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from segment_format.testing.batches import DEFAULT_TIMESTAMP_MS
from segment_format.testing.tiers import EncryptionKey
from tests.golden_data import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kts_source.auditing.report import AuditReport
    from segment_format.testing import SegmentFiles

NOW_MS = 1 << 41
"""Long after every file of a test was written."""
TOPIC, TOPIC_ID = "t", "AAAAAAAAAAAAAAAAAAAAIQ"
BASES = (0, 40, 82, 123, 163)
"""Where the segments begin."""
ABORT_MARKER, STOP = 81, 203


def healthy_segments(rolls: tuple[int, ...] = (0, 1, 2, 3, 4)) -> list[SegmentFiles]:
    """Five segments: a transaction from the first is aborted in the second, the third begins an
    epoch, and every index has entries. The same batches in others where not all `rolls` are made.
    """
    builder = LogBuilder(index_interval_bytes=300)
    clock = DEFAULT_TIMESTAMP_MS
    for number in range(len(BASES)):
        if number == 2:
            builder.set_leader_epoch(3)
        for _ in range(3):
            clock += 1000
            builder.append([SimpleRecord(bytes(30), timestamp=clock) for _ in range(10)])
        clock += 1000
        records = [SimpleRecord(b"%d" % number * 30, timestamp=clock) for _ in range(10)]
        if number == 0:
            builder.send(7, records)
        elif number == 1:
            builder.append(records, producer_id=9)
            builder.send(8, [SimpleRecord(b"x", timestamp=clock)])
            builder.abort(7, timestamp=clock)
        else:
            builder.append(records)
        if number == 2:
            builder.commit(8, timestamp=clock)
        if number in rolls:
            builder.roll()
    return list(builder.build().segments)


@dataclass(frozen=True, slots=True)
class DamagedTier:
    """Where a tier was written."""

    root: Path

    def path(self, number: int, suffix: str) -> Path:
        """An object of one of the segments."""
        (found,) = self.root.rglob(f"{BASES[number]:020d}-*.{suffix}")
        return found

    def key(self, number: int, suffix: str) -> str:
        """The same below the root."""
        return self.path(number, suffix).relative_to(self.root).as_posix()

    def flip(self, number: int, suffix: str, at: int, mask: int = 1) -> None:
        """Changes bits of a byte; a negative position counts from the end."""
        path = self.path(number, suffix)
        data = bytearray(path.read_bytes())
        data[at] ^= mask
        path.write_bytes(data)

    def lose(self, number: int, *suffixes: str) -> None:
        """Deletes objects."""
        for suffix in suffixes:
            self.path(number, suffix).unlink()

    def resize(self, number: int, suffix: str, by: int) -> None:
        """Cuts an object, or adds zeros."""
        path = self.path(number, suffix)
        data = path.read_bytes()
        path.write_bytes(data[: len(data) + by] if by < 0 else data + bytes(by))

    def swap(self, one: int, other: int, suffix: str) -> None:
        """Exchanges the objects of two segments."""
        first, second = self.path(one, suffix), self.path(other, suffix)
        a, b = first.read_bytes(), second.read_bytes()
        first.write_bytes(b)
        second.write_bytes(a)

    def edit_manifest(self, number: int, change: Callable[[dict[str, Any]], object]) -> None:
        """Changes members of a manifest."""
        path = self.path(number, "rsm-manifest")
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest, separators=(",", ":")))

    def positions(self, number: int) -> list[int]:
        """Where the batches of a plain log begin."""
        data = self.path(number, "log").read_bytes()
        found, at = [], 0
        while at < len(data):
            found.append(at)
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        return found


def write_tier(
    root: Path,
    segments: list[SegmentFiles],
    *,
    compression: bool = False,
    encryption: EncryptionKey | None = None,
    chunk_size: int = 512,
    event_timestamp_ms: int | None = None,
    topic_id: str = TOPIC_ID,
    seed: int = 5,
) -> DamagedTier:
    """Writes segments in the plugin's layout, with ids that follow from the seed."""
    writer = AivenTierWriter(
        str(root),
        topic=TOPIC,
        topic_id=topic_id,
        chunk_size=chunk_size,
        compression=compression,
        encryption=encryption,
        random_bytes=random.Random(seed).randbytes,
    )
    for one in segments:
        writer.write_segment(one, event_timestamp_ms=event_timestamp_ms)
    return DamagedTier(root)


def changed(number: int, **fields: Any) -> list[SegmentFiles]:  # noqa: ANN401
    """The healthy segments, with other files in one of them."""
    segments = healthy_segments()
    segments[number] = replace(segments[number], **fields)
    return segments


def audited(tier: DamagedTier, level: str = "bytes", **options: str) -> AuditReport:
    """The audit of a tier, long after it was written."""
    given = {"path": str(tier.root), "subscribe": TOPIC, **options}
    return kts_source.audit(given, level=level, now_ms=NOW_MS)


def found(report: AuditReport) -> set[tuple[str, int | None, int | None]]:
    """Kinds and offsets of the findings."""
    return {(one.name, one.start, one.stop) for one in report.findings}


def encryption() -> EncryptionKey:
    """The key of the golden tier."""
    return EncryptionKey("key1", (KEYS / "key1.public.pem").read_bytes())
