"""Generates the tiers that several benchmarks read, and keeps them in a scratch folder between
runs.

The name of the folder is a hash of the code that writes the tiers. Tiers that other versions of the
code wrote are removed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import gettempdir

import segment_format.testing
from segment_format.testing.tiers import AivenTierWriter, EncryptionKey
from tests.uniform_batches import uniform_segment, write_uniform_batches

TOPIC = "bench"
_SEGMENT_BYTES = 64 << 20
_KEY_ID = "bench"
_KEY_FILE = "private.pem"


@dataclass(frozen=True, slots=True)
class TierShape:
    """A topic whose records have equal sizes.

    Attributes:
        log_bytes: Bytes of all logs together, before the storage plugin compresses or encrypts
            them.
        batch_bytes: Approximate bytes of records in a batch; 0 for one record per batch.
        compression: True if chunks are zstd frames.
        segment_bytes: Approximate bytes of a segment's log, before the plugin compresses or
            encrypts it.
        encryption: True if chunks and indexes are encrypted.
    """

    value_bytes: int
    log_bytes: int
    partitions: int = 2
    batch_bytes: int = 16 << 10
    codec: str = "none"
    payload: str = "random"
    compression: bool = False
    segment_bytes: int = _SEGMENT_BYTES
    encryption: bool = False


@dataclass(frozen=True, slots=True)
class Tier:
    """A generated tier and its size."""

    path: Path
    records_per_partition: int
    stored_bytes: int
    shape: TierShape

    @property
    def records(self) -> int:
        """Returns the number of records in all partitions."""
        return self.records_per_partition * self.shape.partitions

    @property
    def options(self) -> dict[str, str]:
        """Returns the options of the data source that read the entire tier."""
        options = {"path": str(self.path), "subscribe": TOPIC}
        if self.shape.encryption:
            name = f"encryption.key.pairs.{_KEY_ID}.private.key.file"
            options[name] = str(self.key_file)
        return options

    @property
    def key_file(self) -> Path:
        """Returns the path of the private key that decrypts the tier."""
        return self.path / _KEY_FILE


@functools.cache
def cache_folder() -> Path:
    """Removes tiers that other versions of the code wrote. Returns the folder for tiers of the
    current code.
    """
    digest = hashlib.sha256()
    code = Path(segment_format.testing.__file__).parent.glob("*.py")
    for path in (*sorted(code), Path(__file__)):
        digest.update(path.read_bytes())
    home = os.environ.get("KTS_BENCH_CACHE") or Path(gettempdir()) / "tiered-kafka-benchmarks"
    folder = Path(home) / digest.hexdigest()[:16]
    if folder.parent.is_dir():
        for stale in folder.parent.iterdir():
            if stale != folder:
                shutil.rmtree(stale, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def make_tier(shape: TierShape) -> Tier:
    """Returns the tier of this shape, which is generated unless it already exists."""
    name = hashlib.sha256(repr(sorted(asdict(shape).items())).encode()).hexdigest()[:16]
    path = cache_folder() / name
    record_bytes = shape.value_bytes + 20  # key, lengths, deltas
    per_batch = max(1, shape.batch_bytes // record_bytes)
    per_segment = max(1, shape.segment_bytes // (per_batch * record_bytes + 61))
    segments = max(1, shape.log_bytes // shape.partitions // shape.segment_bytes)
    done = path / "done"
    if not done.exists():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        key = _new_key(path) if shape.encryption else None
        for partition in range(shape.partitions):
            _write_partition(path, shape, partition, segments, per_segment, per_batch, key)
        done.touch()
    stored = sum(file.stat().st_size for file in path.glob("*/*/*.log"))
    return Tier(path, segments * per_segment * per_batch, stored, shape)


def _new_key(path: Path) -> EncryptionKey:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (path / _KEY_FILE).write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return EncryptionKey(_KEY_ID, public)


def _write_partition(
    path: Path,
    shape: TierShape,
    partition: int,
    segments: int,
    per_segment: int,
    per_batch: int,
    key: EncryptionKey | None,
) -> None:
    writer = AivenTierWriter(
        path,
        topic=TOPIC,
        topic_id="AAAAAAAAAAAAAAAAAAAAAQ",
        partition=partition,
        compression=shape.compression,
        encryption=key,
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
