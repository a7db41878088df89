"""Indexes of the keys that each segment may have, so that searches skip segments without the wanted
keys.

`kts_source.index_keys` writes a file per partition into a folder of this machine:

    filters, table, length of the table (u32), CRC-32C of the table (u32), "KTKI"

Numbers are big-endian. The table is JSON: a salt, a hash that identifies the secret (`check`), and
a list of segments. Each segment has the key, size and version of its log object, its offsets
[start, stop), whether it has records without a key, and the position and CRC-32C of its filter.

If a filter is damaged, or the version of the log object has changed, a search reads the segment.

A filter stores parts of the 64-bit hashes of keys. If the segment does not have a key, a look-up
still matches with a probability of about one in 67 million. The format of a filter:

    borders  uint32 × (2^bits + 1)   first key of each bucket; the last one is the number of keys
    lows     uint32 × keys           ascending within a bucket

    bucket = the first `bits` bits of a hash,  low = the next 32 bits

Numbers in a filter are little-endian. With about 64 keys per bucket, a key takes four bytes. The
library `rbloom` would take 4.2 bytes per key for accidental matches of one in 10 million, and needs
a Python call per key. The library `pyfusefilter` has no wheels for aarch64.

Hashes are BLAKE2b with eight bytes of output and a salt per index. If the user gives a secret, it
is the key of the hash function. Then readers without the secret cannot find out from an index which
keys exist.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import struct
from collections import Counter
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import numpy as np
import pyarrow.compute as pc

from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.finding.certificate import archived_object
from kts_source.options import check_for_batch, parse_any_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import FOR_ENGINES, ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task import ScanTask
from kts_source.secret import Secret
from kts_source.store.local_store import local_root
from kts_source.store.open_store import scheme_of
from kts_source.texts import one_line
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.options import Options, ScanOptions
    from kts_source.read.task import SegmentSlice
    from segment_format.key_set import KeySet

    Hashes = NDArray[np.uint64]

log = logging.getLogger(__name__)

MAX_KEYS: Final = 1 << 26
"""Maximum number of keys of a filter. A segment with more keys has no filter."""
SALT_SIZE: Final = 16
_BUCKET_KEYS: Final = 64
_MAX_BITS: Final = 24
_LOW_BITS: Final = 32
_LOOK_UPS: Final = 1 << 14
"""Maximum number of keys that are looked up together. This limits the memory for the keys of their
buckets.
"""
_SECRET_BYTES: Final = (16, 64)
_MAGIC: Final = b"KTKI"
_TAIL: Final = struct.Struct(">II4s")
_SUFFIX: Final = ".keys"
_MAX_TABLE_BYTES: Final = 256 << 20
_CHECK_KEY: Final = b"tiered-kafka key index"
_WHOLE_SEGMENTS: Final = 1 << 62


def hashes_of(keys: Iterable[bytes], *, salt: bytes, secret: bytes) -> Hashes:
    """Returns the hash of each key, in the order of `keys`. The hash of a key depends on the salt
    and, unless it is empty, on `secret`.
    """
    start = hashlib.blake2b(digest_size=8, salt=salt, key=secret)
    hashes = bytearray()
    for key in keys:
        state = start.copy()
        state.update(key)
        hashes += state.digest()
    return np.frombuffer(bytes(hashes), "<u8").astype(np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class KeyFilter:
    """A filter of the keys of a segment. The module docstring describes the attributes."""

    bits: int
    borders: NDArray[np.uint32]
    lows: NDArray[np.uint32]

    @classmethod
    def of(cls, hashes: Hashes) -> KeyFilter:
        """Builds a filter that contains `hashes`.

        Raises:
            ValueError: There are more than `MAX_KEYS` hashes.
        """
        distinct = np.unique(hashes)
        if len(distinct) > MAX_KEYS:
            raise ValueError(f"the segment has {len(distinct)} keys, more than {MAX_KEYS}")
        bits = max(0, min((len(distinct) // _BUCKET_KEYS).bit_length(), _MAX_BITS))
        buckets, lows = _split(distinct, bits)
        borders = np.searchsorted(buckets, np.arange((1 << bits) + 1)).astype(np.uint32)
        return cls(bits, borders, lows)

    @classmethod
    def from_bytes(cls, data: bytes, bits: int) -> KeyFilter:
        """Restores a filter from the result of `to_bytes`.

        Raises:
            ValueError: `data` is not a filter with this number of bits.
        """
        numbers = np.frombuffer(data, "<u4")
        count = (1 << bits) + 1
        if not 0 <= bits <= _MAX_BITS or len(numbers) < count:
            raise ValueError("a filter has too few bucket borders")
        borders, lows = numbers[:count], numbers[count:]
        if borders[0] != 0 or borders[-1] != len(lows) or (borders[1:] < borders[:-1]).any():
            raise ValueError("the bucket borders of a filter do not ascend")
        return cls(bits, borders, lows)

    def to_bytes(self) -> bytes:
        """Returns the bytes of `borders`, then of `lows`."""
        return self.borders.astype("<u4").tobytes() + self.lows.astype("<u4").tobytes()

    def may_hold(self, hashes: Hashes) -> bool:
        """Returns whether the segment may have a key with one of `hashes`. `False` proves that the
        segment has no such key.
        """
        return any(
            self._may_hold(hashes[start : start + _LOOK_UPS])
            for start in range(0, len(hashes), _LOOK_UPS)
        )

    def _may_hold(self, hashes: Hashes) -> bool:
        buckets, lows = _split(hashes, self.bits)
        starts = self.borders[buckets].astype(np.int64)
        sizes = self.borders[buckets + 1].astype(np.int64) - starts
        # Compute the positions of all keys in these buckets, bucket after bucket.
        before = np.cumsum(sizes) - sizes
        positions = np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
        return bool((self.lows[positions] == np.repeat(lows, sizes)).any())


def _split(hashes: Hashes, bits: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Returns two arrays: the bucket number of each hash (its first `bits` bits), and its `low`
    (the next 32 bits).
    """
    buckets = (
        (hashes >> np.uint64(64 - bits)).astype(np.int64)
        if bits  # numpy does not define shifts by 64 bits
        else np.zeros(len(hashes), np.int64)
    )
    lows = (hashes >> np.uint64(64 - bits - _LOW_BITS)).astype(np.uint32)
    return buckets, lows


@dataclass(frozen=True, slots=True)
class IndexedSegment:
    """A segment with a filter.

    Attributes:
        key: Key of the log object.
        version: Version of the log object when the filter was built.
        start: First offset that the filter covers.
        stop: End of the covered offsets, exclusive.
        has_null: True if there are records without a key.
        bits: Number of bits of a hash that select a bucket of the filter.
        at: Position of the first byte of the filter in the index file.
        length: Size of the filter.
        crc: CRC-32C of the filter.
    """

    key: str
    size: int
    version: str
    start: int
    stop: int
    has_null: bool
    bits: int
    at: int
    length: int
    crc: int

    def covers(self, task_slice: SegmentSlice) -> bool:
        """Returns whether the filter covers all offsets of a slice, and was built from the version
        of the log object that the slice reads.
        """
        ref = task_slice.objects.log
        same = (ref.key, ref.size, ref.version) == (self.key, self.size, self.version)
        return (
            same and self.start <= task_slice.start_offset and task_slice.stop_offset <= self.stop
        )


@dataclass(frozen=True, slots=True)
class PartitionIndex:
    """The index of a partition: a file with the filters of its segments.

    Attributes:
        check: Hash of a fixed key with the salt and secret of the index. It shows whether a secret
            is the secret of the index.
        segments: Segments with a filter, by key of their log object.
    """

    path: Path
    salt: bytes
    check: bytes
    segments: dict[str, IndexedSegment]

    def segment_of(self, task_slice: SegmentSlice) -> IndexedSegment | None:
        """Returns the entry that covers a slice; `None` if there is no such entry."""
        segment = self.segments.get(task_slice.objects.log.key)
        return segment if segment is not None and segment.covers(task_slice) else None

    def filter_bytes(self, segment: IndexedSegment) -> bytes | None:
        """Reads the bytes of a segment's filter. Returns `None` if they are damaged or cannot be
        read.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(segment.at)
                data = file.read(segment.length)
        except OSError as error:
            log.warning("%s cannot be read, so the segment is searched: %s", self.path, error)
            return None
        if len(data) != segment.length or google_crc32c.value(data) != segment.crc:
            log.warning("%s: skipped the damaged filter of %s", self.path, segment.key)
            return None
        return data

    def may_hold(self, task_slice: SegmentSlice, hashes: Hashes, *, null: bool) -> bool:
        """Returns whether the segment of a slice may have a key with one of `hashes` or, if `null`
        is true, a record without a key. Returns true if no usable filter covers the slice.
        """
        segment = self.segment_of(task_slice)
        if segment is None or (null and segment.has_null):
            return True
        data = self.filter_bytes(segment)
        try:
            return data is None or KeyFilter.from_bytes(data, segment.bits).may_hold(hashes)
        except ValueError as error:
            log.warning("%s: skipped the filter of %s: %s", self.path, segment.key, error)
            return True


@dataclass(frozen=True, slots=True)
class IndexFolder:
    """The folder of indexes, and the secret that is the key of their hash function. If the secret
    is empty, the hashes have no key.
    """

    path: Path
    secret: Secret[bytes]

    @classmethod
    def of(cls, path: str, secret: bytes | None, options: ScanOptions) -> IndexFolder:
        """Checks that the folder `path` is on this machine and not in the tier, and returns it with
        the secret.

        Raises:
            InvalidOptionError: The folder is in the tier or not on this machine, or the secret is
                too short or too long.
        """
        if scheme_of(path) != "file":
            raise InvalidOptionError(f"the index {path} must be in a folder of this machine")
        folder = local_root(path.strip()).resolve()
        mirror = options.fetch.fallback_path
        for root in (options.path, mirror, *options.tail_paths, *options.disk_paths):
            if root and scheme_of(root) == "file":
                tier = Path(local_root(root)).resolve()
                if folder == tier or tier in folder.parents:
                    raise InvalidOptionError(
                        f"the index {path} would be written into the tier: use another folder"
                    )
        low, high = _SECRET_BYTES
        if secret is not None and not low <= len(secret) <= high:
            raise InvalidOptionError(
                f"the secret of the index has {len(secret)} bytes: use {low} to {high} bytes"
            )
        return cls(folder, Secret(secret or b""))

    def file_of(self, root: str, topic: str, topic_id: str, partition: int) -> Path:
        """Returns the path of a partition's index. The file name is a digest, so that a topic name
        cannot lead to a path outside the folder.
        """
        name = json.dumps([root, topic, topic_id, partition])
        return self.path / (hashlib.sha256(name.encode()).hexdigest()[:40] + _SUFFIX)

    def open(self, file: Path) -> PartitionIndex | None:
        """Returns the index in a file; `None` if it does not exist or is damaged.

        Raises:
            InvalidOptionError: The index was made with another secret, so look-ups would find no
                key.
        """
        try:
            index = _read(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("skipped %s, which is not an index of keys: %s", file, error)
            return None
        if index.check != self._check(index.salt):
            raise InvalidOptionError(
                f"index {file} was made with another secret, or without a secret: use the"
                " secret of the index, or no secret if the index has none"
            )
        return index

    def write(
        self, file: Path, salt: bytes, segments: Iterable[tuple[IndexedSegment, bytes]]
    ) -> int:
        """Writes an index file with these segments and their filters, atomically. Returns the size
        of the file.

        Raises:
            InvalidOptionError: The folder cannot be written.
        """
        fresh = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}.new")
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.touch(mode=0o600, exist_ok=False)
            with fresh.open("wb") as out:
                entries = []
                for segment, data in segments:
                    entries.append(asdict(replace(segment, at=out.tell())))
                    out.write(data)
                check = self._check(salt).hex()
                table = json.dumps({"salt": salt.hex(), "check": check, "segments": entries})
                encoded = table.encode()
                out.write(encoded)
                out.write(_TAIL.pack(len(encoded), google_crc32c.value(encoded), _MAGIC))
                size = out.tell()
            fresh.replace(file)
        except OSError as error:
            raise InvalidOptionError(
                f"index {file} cannot be written: {error.strerror}. Use another folder."
            ) from None
        finally:
            with suppress(OSError):  # renamed, or never created
                fresh.unlink()
        return size

    def _check(self, salt: bytes) -> bytes:
        return hashes_of([_CHECK_KEY], salt=salt, secret=self.secret.reveal()).tobytes()


def _read(file: Path) -> PartitionIndex:
    """Reads the index of a partition. Raises `OSError`, `ValueError`, `KeyError` or `TypeError` if
    the file cannot be read or is damaged.
    """
    with file.open("rb") as data:
        end = data.seek(0, os.SEEK_END)
        if end < _TAIL.size:
            raise ValueError("the file is too short")
        data.seek(end - _TAIL.size)
        size, crc, magic = _TAIL.unpack(data.read(_TAIL.size))
        if magic != _MAGIC or size > min(end - _TAIL.size, _MAX_TABLE_BYTES):
            raise ValueError("the last bytes of the file are not those of an index")
        data.seek(end - _TAIL.size - size)
        table = data.read(size)
    if len(table) != size or google_crc32c.value(table) != crc:
        raise ValueError("the table in the file is damaged")
    document: dict[str, Any] = json.loads(table)
    segments = [IndexedSegment(**fields) for fields in document["segments"]]
    salt, check = (bytes.fromhex(document[name]) for name in ("salt", "check"))
    return PartitionIndex(file, salt, check, {segment.key: segment for segment in segments})


@dataclass(slots=True)
class SegmentFilters:
    """Finds slices that a search can skip, because the filter of the segment proves that it has
    none of the keys.

    Attributes:
        root: URI of the tier.
        topic_ids: Topic id by topic and partition.
        ruled_out: Log objects of skipped slices, by topic and partition.
    """

    folder: IndexFolder
    root: str
    keys: KeySet
    topic_ids: Mapping[tuple[str, int], str]
    ruled_out: dict[tuple[str, int], set[ObjectRef]] = field(default_factory=dict)
    _partition: tuple[str, int] | None = None
    _index: PartitionIndex | None = None
    _hashes: Hashes | None = None

    def rules_out(self, task_slice: SegmentSlice) -> bool:
        """Returns whether a filter proves that a slice has none of the keys. Pass all slices of a
        partition before slices of the next partition, because only one index is in memory.

        Raises:
            InvalidOptionError: The filters were made with another secret.
        """
        partition = task_slice.topic, task_slice.partition
        if partition != self._partition:
            self._open(partition)
        if self._index is None or self._hashes is None:
            return False
        if self._index.may_hold(task_slice, self._hashes, null=self.keys.has_null):
            return False
        self.ruled_out.setdefault(partition, set()).add(task_slice.objects.log)
        return True

    def _open(self, partition: tuple[str, int]) -> None:
        topic, number = self._partition = partition
        file = self.folder.file_of(self.root, topic, self.topic_ids[partition], number)
        self._index = self.folder.open(file)
        if self._index is not None:
            salt, secret = self._index.salt, self.folder.secret.reveal()
            self._hashes = hashes_of(self.keys, salt=salt, secret=secret)


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The result of `index_keys`.

    Attributes:
        segments: Number of segments that now have a filter.
        read: Number of segments that this call has read. All other segments already had a filter.
        bytes: Total size of the index files that this call has written.
        left_out: Pairs of an object or partition that has no filter, and the reason.
    """

    segments: int
    read: int
    bytes: int
    left_out: tuple[tuple[str, str], ...]


def index_keys(
    source: Options,
    folder: str,
    *,
    secret: bytes | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> IndexReport:
    """Writes a filter of the keys of each segment into `folder`, so that searches skip segments
    without the wanted keys.

    Segments that already have a filter are not read again.

    Args:
        source: Options as for the data source.
        folder: A folder of this machine, not in the tier.
        secret: 16 to 64 bytes, the key of the hashes. A filter without a secret reveals whether a
            key exists, so a secret is required for encrypted topics.
        progress: Called after each segment with two sizes, in bytes of the original segment files:
            the size of the segments read so far, and the size of all segments.

    Raises:
        InvalidOptionError: An option limits which records are read, an encrypted topic has no
            secret, or the folder is unusable.
        TieredKafkaError: The tier cannot be planned, or the store fails.
    """
    options = _index_options(source)
    target = IndexFolder.of(folder, secret, options)
    with closing(open_tier(options)) as tier:
        refused: list[TieredKafkaError] = []
        plan = plan_scan(options, tier, on_partition_error=refused.append)
        slices = [task_slice for task in plan.tasks for task_slice in task.slices]
        if not target.secret.reveal() and any(s.objects.encryption is not None for s in slices):
            raise InvalidOptionError(
                "segments are encrypted, but an index without a secret reveals which keys exist:"
                " give a secret"
            )
        total = sum(task_slice.nominal_bytes for task_slice in slices)
        reader, key = SegmentSource(tier, options.key_ring), target.secret.reveal()
        on_read = None if progress is None else partial(_report, progress, total)
        builder = _IndexBuilder(reader, options, key, on_read)
        root = tier.store.uri(options.key_prefix)
        written = 0
        for partition in plan.partitions:
            file = target.file_of(root, partition.topic, partition.topic_id, partition.partition)
            before = target.open(file)
            salt = secrets.token_bytes(SALT_SIZE) if before is None else before.salt
            own = [
                s
                for s in slices
                if (s.topic, s.partition) == (partition.topic, partition.partition)
            ]
            written += target.write(file, salt, builder.entries(own, before, salt))
    left_out = [(f"{error.topic}-{error.partition}", one_line(str(error))) for error in refused]
    segments = builder.read + builder.kept
    return IndexReport(segments, builder.read, written, (*left_out, *builder.left_out))


def _report(progress: Callable[[int, int], object], total: int, read: int) -> None:
    progress(read, total)


def _index_options(source: Options) -> ScanOptions:
    check_for_batch(options := parse_any_options(source))
    named = sorted(options.given & {"planFile", "where", "timestampRange", "targetPartitionBytes"})
    if options.brokers is not None:
        named.append("kafka.bootstrap.servers")
    if options.formats:
        named.append("key.format and value.format")
    if not options.check_crcs:  # filters of damaged bytes would hide keys from a search
        named.append("checkCrcs=false")
    if named:
        raise InvalidOptionError(
            f"an index needs all records of complete segments: remove {', '.join(named)}"
        )
    return replace(
        options,
        key_ring=options.key_ring.loaded(),
        isolation_level="read_uncommitted",  # valid for any isolation level of a search
        fail_on_data_loss=False,  # segments that cannot be read have no filter
        target_partition_bytes=_WHOLE_SEGMENTS,
        max_segments_per_task=1,
        min_partitions=None,
        max_records_per_partition=None,
    )


class _IndexBuilder:
    """Builds the filters of segments, and counts the segments for `IndexReport`.

    Args:
        on_read: Called after each segment with the size of the segments so far, in bytes of the
            original segment files.
    """

    def __init__(
        self,
        reader: SegmentSource,
        options: ScanOptions,
        secret: bytes,
        on_read: Callable[[int], object] | None,
    ) -> None:
        self.read = self.kept = self._done = 0
        self.left_out: list[tuple[str, str]] = []
        self._reader = reader
        self._secret = secret
        self._on_read = on_read
        # The plan skips lost segments. If a segment is lost in part, reading it must fail, because
        # a filter of its remaining keys would hide other keys once the object is restored.
        self._settings = replace(
            ReadSettings.of(options), columns=("key",), batches=FOR_ENGINES, fail_on_data_loss=True
        )

    def entries(
        self, slices: Sequence[SegmentSlice], before: PartitionIndex | None, salt: bytes
    ) -> Iterator[tuple[IndexedSegment, bytes]]:
        """Yields each segment of a partition with its filter. Reuses the filter in the previous
        index `before` if it covers the slice, and otherwise builds a new one.
        """
        pieces = Counter(task_slice.objects.log.key for task_slice in slices)
        for task_slice in slices:
            if pieces[task_slice.objects.log.key] > 1:  # a filter must cover all offsets
                self.left_out.append((task_slice.objects.log.key, "it was planned in pieces"))
                continue
            entry = self._kept_entry(task_slice, before) or self._new_entry(task_slice, salt)
            if entry is not None:
                yield entry
            self._done += task_slice.nominal_bytes
            if self._on_read is not None:
                self._on_read(self._done)

    def _kept_entry(
        self, task_slice: SegmentSlice, before: PartitionIndex | None
    ) -> tuple[IndexedSegment, bytes] | None:
        segment = None if before is None else before.segment_of(task_slice)
        if before is None or segment is None:
            return None
        data = before.filter_bytes(segment)
        if data is None:
            return None
        self.kept += 1
        return segment, data

    def _new_entry(
        self, task_slice: SegmentSlice, salt: bytes
    ) -> tuple[IndexedSegment, bytes] | None:
        if (archived := archived_object(task_slice)) is not None:
            ref, reason = archived
            self.left_out.append((ref.key, reason))
            return None
        try:
            return self._build(task_slice, salt)
        except (TieredKafkaError, ValueError) as error:
            self.left_out.append((task_slice.objects.log.key, one_line(str(error))))
        return None

    def _build(self, task_slice: SegmentSlice, salt: bytes) -> tuple[IndexedSegment, bytes]:
        """Reads a segment and builds its filter. Returns the entry for the table of the index, and
        the bytes of the filter. Raises `ValueError` if the segment has too many keys, or if the
        store reports no version of the log object.
        """
        has_null, count = False, 0
        hashes = [np.empty(0, np.uint64)]
        with closing(read_task(ScanTask((task_slice,)), self._reader, self._settings)) as batches:  # type: ignore[type-var]
            for batch in batches:
                keys = batch.column(0)
                has_null = has_null or keys.null_count > 0
                distinct = pc.unique(keys.drop_null()).to_pylist()
                hashes.append(hashes_of(distinct, salt=salt, secret=self._secret))
                count += len(distinct)
                if count > MAX_KEYS:
                    hashes = [np.unique(np.concatenate(hashes))]
                    count = len(hashes[0])
        key_filter = KeyFilter.of(np.concatenate(hashes))
        data, ref = key_filter.to_bytes(), task_slice.objects.log
        if ref.version is None:
            raise ValueError(
                "the store reports no version of the object, so a later change would not be noticed"
            )
        self.read += 1
        crc = google_crc32c.value(data)
        located = ref.key, ref.size, ref.version, task_slice.start_offset, task_slice.stop_offset
        entry = IndexedSegment(*located, has_null, key_filter.bits, 0, len(data), crc)
        return entry, data
