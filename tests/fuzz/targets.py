"""Defines the fuzz targets: parsers of untrusted bytes, as functions of one byte string.

The first byte of an input selects how the rest is parsed. A target returns an outcome. If the input
was parsed, the outcome is a word, such as `value`. If the parser raised a `SegmentFormatError`, the
outcome is the name of the error class, a colon and the message. A target fails in these cases:

* The parser raises another exception, or the position in an error is outside the input.
* Two readers return different results.
* A reader does not return what a writer wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import LeaderEpochCheckpoint
from segment_format.index.producer_snapshot import parse_producer_snapshot, write_producer_snapshot
from segment_format.index.sparse_indexes import OffsetIndex, TimeIndex
from segment_format.index.transaction_index import (
    parse_transaction_index,
    write_transaction_index,
)
from segment_format.isolation import AbortedIntervals
from segment_format.kafka_uuid import uuid_from_text, uuid_to_text
from segment_format.manifest import chunk_index as chunk_sizes
from segment_format.manifest import object_names
from segment_format.manifest.chunk_index import Chunk
from segment_format.manifest.encryption import WrappedDataKey, load_private_key
from segment_format.manifest.object_names import parse_custom_metadata
from segment_format.manifest.segment_manifest import SegmentManifest
from segment_format.manifest.transform import restore_chunk
from segment_format.metadata.remote_log_segment_metadata import parse_metadata_record
from segment_format.record.batch_header import RecordBatchHeader
from segment_format.record.compression import decompress
from segment_format.record.control_record import parse_control_record_type
from segment_format.record.framing import iter_entries
from segment_format.record.records import iter_batches
from tests.fuzz.repair import repaired_batches, repaired_snapshot
from tests.segment_format.manifest.writers import manifest_json, pack_chunk_sizes
from tests.segment_format.metadata.readable_segments import known_segments
from tests.segment_format.metadata.writers import write_metadata_record
from tests.segment_format.undecided import open_transactions

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE: Final = "value"
MAX_OUTPUT: Final = 1 << 20
"""Output limit of the decompressing targets; small, so that exceeding it is detected quickly."""
DATA_KEY: Final = bytes(range(32))
AAD: Final = bytes(range(32, 64))


@dataclass(frozen=True, slots=True)
class Target:
    """A parser or a comparison.

    Attributes:
        name: Name of the target and of the folders of its inputs.
        run: Takes an input and returns an outcome; fails by raising.
        weight: Relative share of the total time.
        compiled: True if the target runs machine code, which does not check memory accesses.
    """

    name: str
    run: Callable[[bytes], str]
    weight: int = 1
    compiled: bool = False


def _checked(function: Callable[[bytes, int], object], data: bytes, *, located: bool) -> str:
    """Calls a parser and returns the outcome, as described in the module docstring.

    The parser gets all bytes of `data` except the first one, and the first byte as a number. If
    `located` is true, an error without a byte position fails the target.
    """
    mode, rest = (data[0], data[1:]) if data else (0, b"")
    try:
        function(rest, mode)
    except SegmentFormatError as error:
        if located and error.position is None:
            raise AssertionError(f"the error has no position: {error!r}") from error
        if error.position is not None and not 0 <= error.position <= len(rest):
            raise AssertionError(
                f"position {error.position} is outside of the input of {len(rest)} bytes"
            ) from error
        return f"{type(error).__name__}: {error.message}"
    return VALUE


def located(function: Callable[[bytes, int], object]) -> Callable[[bytes], str]:
    """Returns a target function for a parser whose errors must have a byte position."""
    return lambda data: _checked(function, data, located=True)


def unlocated(function: Callable[[bytes, int], object]) -> Callable[[bytes], str]:
    """Returns a target function for a parser whose errors need no byte position."""
    return lambda data: _checked(function, data, located=False)


def _framing(data: bytes, _mode: int) -> None:
    position = 0
    for entry in iter_entries(data):
        assert entry.position == position
        position = entry.stop
    assert position == len(data)


def _batches(data: bytes, mode: int) -> None:
    data = repaired_batches(data) if mode & 1 else data
    for batch in iter_batches(data, check_crcs=not mode & 2, max_batch_bytes=MAX_OUTPUT):
        assert len(batch.records) <= MAX_OUTPUT


def _batch_header(data: bytes, _mode: int) -> None:
    header = RecordBatchHeader.from_bytes(data)
    assert header.to_bytes() == data[:61]
    assert header.next_offset == header.last_offset + 1


def _control_record(data: bytes, _mode: int) -> None:
    parse_control_record_type(data)


def _codec(data: bytes, mode: int) -> None:
    codec, magic = mode & 7, (2, 1, 0)[(mode >> 3) % 3]
    plain = decompress(codec, data, magic=magic, max_output_bytes=MAX_OUTPUT)
    assert len(memoryview(plain)) <= MAX_OUTPUT  # type: ignore[arg-type]


def _offset_index(data: bytes, mode: int) -> None:
    index = OffsetIndex.from_bytes(data, base_offset=mode)
    assert index.to_bytes() == data
    for offset, position in zip(index.offsets.tolist(), index.positions.tolist(), strict=True):
        assert index.lookup(offset) == (offset, position)


def _time_index(data: bytes, mode: int) -> None:
    index = TimeIndex.from_bytes(data, base_offset=mode)
    assert index.to_bytes() == data
    for timestamp, offset in zip(index.timestamps.tolist(), index.offsets.tolist(), strict=True):
        assert index.lookup(timestamp) == (timestamp, offset)


def _transaction_index(data: bytes, mode: int) -> None:
    txns = parse_transaction_index(data)
    assert write_transaction_index(txns) == data
    intervals = AbortedIntervals.from_txns(txns, start_offset=0, stop_offset=2**63 - 1)
    for txn in txns[: mode % 8]:
        inside = txn.first_offset < txn.last_offset and txn.first_offset < 2**63 - 1
        assert intervals.is_aborted(txn.producer_id, txn.first_offset) or not inside


def _snapshot(data: bytes, mode: int) -> None:
    data = repaired_snapshot(data) if mode & 1 else data
    entries = parse_producer_snapshot(data)
    assert write_producer_snapshot(entries) == data
    open_transactions(entries, below=2**62)


def _checkpoint(data: bytes, mode: int) -> None:
    checkpoint = LeaderEpochCheckpoint.from_bytes(data)
    assert LeaderEpochCheckpoint.from_bytes(checkpoint.to_bytes()) == checkpoint
    checkpoint.epoch_for_offset(mode)


def _manifest(data: bytes, mode: int) -> None:
    manifest = SegmentManifest.from_json(data)
    assert SegmentManifest.from_json(manifest_json(manifest)) == manifest
    index = manifest.chunk_index
    size = index.original_file_size
    if not size:
        return
    start = size * mode // 256
    chunks = index.chunks(start, min(start + 3 * index.original_chunk_size, size))
    assert chunks[0].original_position <= start
    for chunk, following in pairwise(chunks):
        assert chunk.transformed_stop == following.transformed_position
    assert chunks[-1].transformed_stop <= index.transformed_size


def _chunk_sizes(data: bytes, mode: int) -> None:
    if mode & 1:
        chunk_sizes.decode_chunk_sizes(data.decode("latin-1"))
        return
    sizes = chunk_sizes.unpack_chunk_sizes(data)
    packed = pack_chunk_sizes(sizes)
    assert chunk_sizes.unpack_chunk_sizes(packed).tolist() == sizes.tolist()


def _custom_metadata(data: bytes, _mode: int) -> None:
    metadata = parse_custom_metadata(data)
    assert parse_custom_metadata(metadata.to_bytes()) == metadata


def _metadata_record(data: bytes, _mode: int) -> None:
    record = parse_metadata_record(data)
    assert parse_metadata_record(write_metadata_record(record)) == record
    known_segments([record, record])


def _object_name(data: bytes, _mode: int) -> None:
    name = data.decode("utf-8", "surrogateescape")
    object_names.parse_topic_directory(name)
    object_names.parse_local_partition_directory(name)
    object_names.parse_partition_directory(name)
    object_names.parse_log_file_name(name)


def _id(data: bytes, _mode: int) -> None:
    text = data.decode("latin-1")
    assert uuid_to_text(uuid_from_text(text)) == text


def _data_key(data: bytes, _mode: int) -> None:
    key = WrappedDataKey.from_text(data.decode("latin-1"))
    assert WrappedDataKey.from_text(key.to_text()) == key


def _private_key(data: bytes, _mode: int) -> None:
    load_private_key(data)


def _chunk(data: bytes, mode: int) -> None:
    size = int.from_bytes(data[:3], "big")
    stored = data[3:]
    chunk = Chunk(0, 0, size, 0, len(stored) + (mode & 3 == 3))
    key, aad = (DATA_KEY, AAD) if mode & 4 else (None, None)
    plain = restore_chunk(stored, chunk, compression=bool(mode & 8), data_key=key, aad=aad)
    assert len(plain) == size


PARSERS: Final = (
    Target("framing", located(_framing)),
    Target("batches", located(_batches), weight=3),
    Target("batch-header", located(_batch_header)),
    Target("control-record", located(_control_record)),
    Target("codec", unlocated(_codec), weight=3),
    Target("offset-index", located(_offset_index)),
    Target("time-index", located(_time_index)),
    Target("transaction-index", located(_transaction_index)),
    Target("snapshot", located(_snapshot)),
    Target("checkpoint", located(_checkpoint)),
    Target("manifest", unlocated(_manifest), weight=2),
    Target("chunk-sizes", unlocated(_chunk_sizes)),
    Target("custom-metadata", located(_custom_metadata)),
    Target("metadata-record", located(_metadata_record), weight=2),
    Target("object-name", unlocated(_object_name)),
    Target("id", unlocated(_id)),
    Target("data-key", unlocated(_data_key)),
    Target("private-key", unlocated(_private_key)),
    Target("chunk", unlocated(_chunk)),
)


def targets() -> tuple[Target, ...]:
    """Returns all targets. The first call takes seconds, because it imports the kernels."""
    from tests.fuzz.compiled import COMPILED

    return (*PARSERS, *COMPILED)


def target_named(name: str) -> Target:
    for target in PARSERS:
        if target.name == name:
            return target
    if name.startswith("broken-"):
        from tests.fuzz.broken import BROKEN

        return next(target for target in BROKEN if target.name == name)
    return next(target for target in targets() if target.name == name)
