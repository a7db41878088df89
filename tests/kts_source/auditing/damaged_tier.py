"""Writes a healthy tier with known segments, and damages it on request."""

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
"""Current time of audits, long after the test files were written."""
TOPIC, TOPIC_ID = "t", "AAAAAAAAAAAAAAAAAAAAIQ"
BASES = (0, 40, 82, 123, 163)
"""Base offset of each segment."""
ABORT_MARKER, STOP = 81, 203


def healthy_segments(rolls: tuple[int, ...] = (0, 1, 2, 3, 4)) -> list[SegmentFiles]:
    """Returns the files of five segments with entries in the offset and time indexes.

    A transaction that begins in the first segment is aborted in the second. The third segment
    begins a new leader epoch. The batches are written in five groups, numbered from 0. A segment
    ends after each group whose number is in `rolls`.
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
    """A tier in a local folder, with methods that damage it. Segments are numbered from 0."""

    root: Path

    def path(self, number: int, suffix: str) -> Path:
        """Returns the path of an object, given its segment number and suffix."""
        (path,) = self.root.rglob(f"{BASES[number]:020d}-*.{suffix}")
        return path

    def key(self, number: int, suffix: str) -> str:
        """Returns the key of an object, given its segment number and suffix."""
        return self.path(number, suffix).relative_to(self.root).as_posix()

    def flip(self, number: int, suffix: str, position: int, mask: int = 1) -> None:
        """Flips the bits in `mask` of the byte at `position` of an object.

        A negative position counts from the end.
        """
        path = self.path(number, suffix)
        data = bytearray(path.read_bytes())
        data[position] ^= mask
        path.write_bytes(data)

    def lose(self, number: int, *suffixes: str) -> None:
        """Deletes the objects of segment `number` whose suffixes are in `suffixes`."""
        for suffix in suffixes:
            self.path(number, suffix).unlink()

    def resize(self, number: int, suffix: str, by: int) -> None:
        """Appends `by` zero bytes to an object or, if `by` is negative, removes bytes from its
        end.
        """
        path = self.path(number, suffix)
        data = path.read_bytes()
        path.write_bytes(data[: len(data) + by] if by < 0 else data + bytes(by))

    def swap(self, number: int, other: int, suffix: str) -> None:
        """Swaps the contents of the objects with suffix `suffix` of the segments `number` and
        `other`.
        """
        first, second = self.path(number, suffix), self.path(other, suffix)
        a, b = first.read_bytes(), second.read_bytes()
        first.write_bytes(b)
        second.write_bytes(a)

    def edit_manifest(self, number: int, change: Callable[[dict[str, Any]], object]) -> None:
        """Parses the manifest of segment `number`, calls `change` with it, and stores it."""
        path = self.path(number, "rsm-manifest")
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest, separators=(",", ":")))

    def positions(self, number: int) -> list[int]:
        """Returns the byte position of each batch in the log of segment `number`.

        The log must not be compressed or encrypted.
        """
        data = self.path(number, "log").read_bytes()
        positions, position = [], 0
        while position < len(data):
            positions.append(position)
            position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        return positions


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
    """Writes `segments` in the layout of the Aiven plugin. `seed` determines the segment ids."""
    writer = AivenTierWriter(
        str(root),
        topic=TOPIC,
        topic_id=topic_id,
        chunk_size=chunk_size,
        compression=compression,
        encryption=encryption,
        random_bytes=random.Random(seed).randbytes,
    )
    for segment in segments:
        writer.write_segment(segment, event_timestamp_ms=event_timestamp_ms)
    return DamagedTier(root)


def replace_files(number: int, **fields: Any) -> list[SegmentFiles]:  # noqa: ANN401
    """Returns the healthy segments; in segment `number`, the files in `fields` replace the
    originals.
    """
    segments = healthy_segments()
    segments[number] = replace(segments[number], **fields)
    return segments


def run_audit(tier: DamagedTier, level: str = "bytes", **options: str) -> AuditReport:
    """Audits a tier as of the time `NOW_MS`, long after the tier was written."""
    audit_options = {"path": str(tier.root), "subscribe": TOPIC, **options}
    return kts_source.audit(audit_options, level=level, now_ms=NOW_MS)


def finding_spans(report: AuditReport) -> set[tuple[str, int | None, int | None]]:
    """Returns name, start offset and exclusive end offset of each finding."""
    return {(finding.name, finding.start, finding.stop) for finding in report.findings}


def encryption() -> EncryptionKey:
    """Returns the golden tier's public key `key1`, which encrypts the data keys of segments."""
    return EncryptionKey("key1", (KEYS / "key1.public.pem").read_bytes())
