"""Generated tiers that several benchmarks read, kept in a scratch folder between runs."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import gettempdir

from segment_format.testing.tiers import AivenTierWriter
from segment_format.testing.uniform import uniform_segment, write_uniform_batches

TOPIC = "bench"
_SEGMENT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TierShape:
    """A topic of equal records.

    Attributes:
        log_bytes: Original bytes of all partitions together.
        batch_bytes: About so many bytes of records in a batch; 0 = one record a batch.
        compression: Whether chunks are zstd frames.
        segment_bytes: About so many original bytes in a segment.
    """

    value_bytes: int
    log_bytes: int
    partitions: int = 2
    batch_bytes: int = 16 << 10
    codec: str = "none"
    payload: str = "random"
    compression: bool = False
    segment_bytes: int = _SEGMENT_BYTES


@dataclass(frozen=True, slots=True)
class Tier:
    """A generated tier and what it holds."""

    path: Path
    records_per_partition: int
    stored_bytes: int
    shape: TierShape

    @property
    def records(self) -> int:
        """Records of all partitions."""
        return self.records_per_partition * self.shape.partitions

    @property
    def options(self) -> dict[str, str]:
        """Options of the data source that read all of it."""
        return {"path": str(self.path), "subscribe": TOPIC}


def make_tier(shape: TierShape) -> Tier:
    """The tier of this shape, generated unless it is there already."""
    name = hashlib.sha256(repr(sorted(asdict(shape).items())).encode()).hexdigest()[:16]
    path = Path(gettempdir()) / "tiered-kafka-benchmarks" / name
    record_bytes = shape.value_bytes + 20  # key, lengths, deltas
    per_batch = max(1, shape.batch_bytes // record_bytes)
    per_segment = max(1, shape.segment_bytes // (per_batch * record_bytes + 61))
    segments = max(1, shape.log_bytes // shape.partitions // shape.segment_bytes)
    done = path / "done"
    if not done.exists():
        shutil.rmtree(path, ignore_errors=True)
        for partition in range(shape.partitions):
            _write_partition(path, shape, partition, segments, per_segment, per_batch)
        done.touch()
    stored = sum(file.stat().st_size for file in path.glob("*/*/*.log"))
    return Tier(path, segments * per_segment * per_batch, stored, shape)


def _write_partition(
    path: Path, shape: TierShape, partition: int, segments: int, per_segment: int, per_batch: int
) -> None:
    writer = AivenTierWriter(
        path,
        topic=TOPIC,
        topic_id="AAAAAAAAAAAAAAAAAAAAAQ",
        partition=partition,
        compression=shape.compression,
    )
    offset = 0
    for number in range(segments):
        batches = write_uniform_batches(
            batch_count=per_segment,
            records_per_batch=per_batch,
            value_size=shape.value_bytes,
            key_size=8,
            base_offset=offset,
            codec=shape.codec,
            payload=shape.payload,
            seed=number,
        )
        writer.write_segment(uniform_segment(batches, log_start=0))
        offset = batches.next_offset
