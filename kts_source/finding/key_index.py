"""The filters of a partition in one file, in a folder of the user's.

    filters, table, length of the table (u32), CRC-32C of the table (u32), "KTKI"

Numbers are big-endian; filters: `key_filter`. The table is JSON: salt, check, and for each segment
the log object with size and version, offsets [start, stop), whether there are records without a
key, and where its filter stands with a CRC-32C. A filter that is not what was written, or is of
another version of the object, is as none: the segment is read.

Which keys a segment may hold: hashes of 64 bits, of which it keeps enough that a key that is not
there is taken for one that is about once in 67 million look-ups.

    borders  uint32 × (2^bits + 1)   first key of each bucket; the last one is the number of keys
    lows     uint32 × keys           ascending within a bucket

    bucket = the first `bits` bits of a hash,  low = the 32 bits behind them

Numbers are little-endian. With 64 keys a bucket, about, that is four bytes a key. Why no library:
`rbloom` takes 4.2 bytes a key for one in 10 million, and a call of Python for each key;
`pyfusefilter` has no wheels for aarch64.

Hashes are BLAKE2b of eight bytes, with a salt of the index and, if the user has one, with a secret
as the key: without it nobody can tell which keys there are.

Leaves out of a search the segments whose filter tells that they have none of the keys.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import struct
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import numpy as np

from kts_source.errors import InvalidOptionError
from kts_source.read.task import ScanTask
from kts_source.secret import Secret
from kts_source.store.local_store import local_root
from kts_source.store.open_store import scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]
    from collections.abc import Iterator, Mapping

    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.options import ScanOptions
    from kts_source.read.task import SegmentSlice
    from segment_format.key_set import KeySet


MOST_KEYS: Final = 1 << 26
"""In a segment; one with more has no filter."""
_KEYS_OF_A_BUCKET: Final = 64
_MOST_BITS: Final = 24
_LOW_BITS: Final = 32
_AT_A_TIME: Final = 1 << 14
"""Keys that are looked up together: with each come all keys of its bucket."""
SALT_SIZE: Final = 16
MOST_SECRET_BYTES: Final = 64


def hashes_of(keys: Iterable[bytes], *, salt: bytes, secret: bytes) -> Hashes:
    """A hash for each key, in order.

    Args:
        keys: Bytes.
        salt: `SALT_SIZE` bytes.
        secret: Up to `MOST_SECRET_BYTES`; empty = none.
    """
    start = hashlib.blake2b(digest_size=8, salt=salt, key=secret)
    found = bytearray()
    for key in keys:
        one = start.copy()
        one.update(key)
        found += one.digest()
    return np.frombuffer(bytes(found), "<u8").astype(np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class KeyFilter:
    """The keys of one segment.

    Attributes:
        bits: Of a hash that name its bucket.
        borders: See above.
        lows: See above.
    """

    bits: int
    borders: NDArray[np.uint32]
    lows: NDArray[np.uint32]

    @classmethod
    def of(cls, hashes: Hashes) -> KeyFilter:
        """The filter of these hashes.

        Raises:
            ValueError: More than `MOST_KEYS` of them.
        """
        distinct = np.unique(hashes)
        if len(distinct) > MOST_KEYS:
            raise ValueError(f"{len(distinct)} keys in a segment; at most {MOST_KEYS}")
        bits = max(0, min((len(distinct) // _KEYS_OF_A_BUCKET).bit_length(), _MOST_BITS))
        buckets, lows = _split(distinct, bits)
        borders = np.searchsorted(buckets, np.arange((1 << bits) + 1)).astype(np.uint32)
        return cls(bits, borders, lows)

    @classmethod
    def from_bytes(cls, data: bytes, bits: int) -> KeyFilter:
        """What `to_bytes` wrote.

        Raises:
            ValueError: It is not a filter of so many bits.
        """
        numbers = np.frombuffer(data, "<u4")
        count = (1 << bits) + 1
        if not 0 <= bits <= _MOST_BITS or len(numbers) < count:
            raise ValueError("a filter without all of its borders")
        borders, lows = numbers[:count], numbers[count:]
        if borders[0] != 0 or borders[-1] != len(lows) or (borders[1:] < borders[:-1]).any():
            raise ValueError("borders of a filter that are in no order")
        return cls(bits, borders, lows)

    def to_bytes(self) -> bytes:
        """Borders and lows."""
        return self.borders.astype("<u4").tobytes() + self.lows.astype("<u4").tobytes()

    def may_hold(self, hashes: Hashes) -> bool:
        """Whether the segment may have one of these keys; false only if it has none."""
        return any(
            self._may_hold(hashes[start : start + _AT_A_TIME])
            for start in range(0, len(hashes), _AT_A_TIME)
        )

    def _may_hold(self, hashes: Hashes) -> bool:
        buckets, lows = _split(hashes, self.bits)
        starts = self.borders[buckets].astype(np.int64)
        sizes = self.borders[buckets + 1].astype(np.int64) - starts
        # The keys of all those buckets, one bucket after the other.
        before = np.cumsum(sizes) - sizes
        places = np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
        return bool((self.lows[places] == np.repeat(lows, sizes)).any())


def _split(hashes: Hashes, bits: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Bucket and low of each hash."""
    buckets = (
        (hashes >> np.uint64(64 - bits)).astype(np.int64)
        if bits
        else np.zeros(len(hashes), np.int64)
    )
    lows = (hashes >> np.uint64(64 - bits - _LOW_BITS)).astype(np.uint32)
    return buckets, lows


log = logging.getLogger(__name__)

_MAGIC: Final = b"KTKI"
_TAIL: Final = struct.Struct(">II4s")
_SUFFIX: Final = ".keys"
_MOST_TABLE_BYTES: Final = 256 << 20
_LEAST_SECRET_BYTES: Final = 16
_CHECKED: Final = b"tiered-kafka key index"


@dataclass(frozen=True, slots=True)
class IndexedSegment:
    """A segment that has a filter.

    Attributes:
        key: Of its log object.
        size: Bytes of that object.
        version: Of that object.
        start: First offset whose key is in the filter.
        stop: One past the last.
        has_null: Whether there are records without a key.
        bits: See `KeyFilter`.
        at: First byte of the filter in the file.
        length: Its bytes.
        crc: CRC-32C of them.
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

    def covers(self, part: SegmentSlice) -> bool:
        """Whether it is of this version of the object, and of all these offsets."""
        ref = part.objects.log
        same = (ref.key, ref.size, ref.version) == (self.key, self.size, self.version)
        return same and self.start <= part.start_offset and part.stop_offset <= self.stop


@dataclass(frozen=True, slots=True)
class PartitionIndex:
    """A file of filters.

    Attributes:
        path: The file.
        salt: Of the hashes.
        check: Tells one secret from another.
        segments: Key of a log object -> its filter's place.
    """

    path: Path
    salt: bytes
    check: bytes
    segments: dict[str, IndexedSegment]

    def filter_bytes(self, one: IndexedSegment) -> bytes | None:
        """The bytes of a filter; `None` where they are not what was written."""
        try:
            with self.path.open("rb") as file:
                file.seek(one.at)
                data = file.read(one.length)
        except OSError as error:
            log.warning("%s: %s", self.path, error)
            return None
        if len(data) != one.length or google_crc32c.value(data) != one.crc:
            log.warning("%s: the filter of %s is damaged; not used", self.path, one.key)
            return None
        return data

    def may_hold(self, part: SegmentSlice, hashes: Hashes, *, null: bool) -> bool | None:
        """Whether a slice may have one of the keys; `None` where no filter tells.

        Args:
            part: Which.
            hashes: Of the keys.
            null: Whether records without a key are wanted, too.
        """
        one = self.segments.get(part.objects.log.key)
        if one is None or not one.covers(part):
            return None
        if null and one.has_null:
            return True
        data = self.filter_bytes(one)
        try:
            return None if data is None else KeyFilter.from_bytes(data, one.bits).may_hold(hashes)
        except ValueError as error:
            log.warning("%s: the filter of %s: %s; not used", self.path, one.key, error)
            return None


@dataclass(frozen=True, slots=True)
class IndexFolder:
    """Where indexes are, and the secret of their hashes.

    Attributes:
        path: The folder.
        secret: Empty = none.
    """

    path: Path
    secret: Secret[bytes]

    @classmethod
    def of(cls, path: str, secret: bytes | None, options: ScanOptions) -> IndexFolder:
        """A folder, once it is known not to be in the tier.

        Raises:
            InvalidOptionError: It is, or it is no folder of this machine, or the secret is too
                short or too long.
        """
        if scheme_of(path) != "file":
            raise InvalidOptionError("the folder of an index is one of this machine")
        folder = local_root(path.strip()).resolve()
        mirror = options.fetch.fallback_path
        for root in (options.path, mirror, *options.tail_paths, *options.disk_paths):
            if root and scheme_of(root) == "file":
                tier = Path(local_root(root)).resolve()
                if folder == tier or tier in folder.parents:
                    raise InvalidOptionError(f"the folder of an index, {path}, is one of the tier")
        if secret is not None and not _LEAST_SECRET_BYTES <= len(secret) <= MOST_SECRET_BYTES:
            raise InvalidOptionError(
                f"the secret of an index has {_LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES} bytes"
            )
        return cls(folder, Secret(secret or b""))

    def file_of(self, root: str, topic: str, topic_id: str, partition: int) -> Path:
        """The file of a partition of the tier at a root; names in a store decide no path."""
        name = json.dumps([root, topic, topic_id, partition])
        return self.path / (hashlib.sha256(name.encode()).hexdigest()[:40] + _SUFFIX)

    def open(self, file: Path) -> PartitionIndex | None:
        """The index in a file; `None` where there is none that can be used.

        Raises:
            InvalidOptionError: It was made with another secret: it would say that no key is there.
        """
        try:
            found = _read(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s is no index of keys, not used: %s", file, error)
            return None
        if found.check != check_of(found.salt, self.secret.reveal()):
            raise InvalidOptionError(f"{file} was made with another secret, or with none")
        return found

    def write(
        self, file: Path, salt: bytes, segments: Iterable[tuple[IndexedSegment, bytes]]
    ) -> int:
        """Writes a file as a whole: who reads it meanwhile sees the one before.

        Args:
            file: Where.
            salt: Of the hashes.
            segments: Each with its filter; taken one by one, and placed here.

        Returns:
            Bytes written.

        Raises:
            InvalidOptionError: The folder cannot be written.
        """
        fresh = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}.new")
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.touch(mode=0o600, exist_ok=False)
            with fresh.open("wb") as out:
                placed = []
                for one, data in segments:
                    placed.append(asdict(replace(one, at=out.tell())))
                    out.write(data)
                check = check_of(salt, self.secret.reveal()).hex()
                table = json.dumps({"salt": salt.hex(), "check": check, "segments": placed})
                encoded = table.encode()
                out.write(encoded)
                out.write(_TAIL.pack(len(encoded), google_crc32c.value(encoded), _MAGIC))
                size = out.tell()
            fresh.replace(file)
        except OSError as error:
            raise InvalidOptionError(f"{file} cannot be written: {error.strerror}") from None
        finally:
            with suppress(OSError):  # it has its place by now, or never was
                fresh.unlink()
        return size


def new_salt() -> bytes:
    """Of an index that begins."""
    return secrets.token_bytes(SALT_SIZE)


def check_of(salt: bytes, secret: bytes) -> bytes:
    """What tells one secret from another."""
    return hashes_of([_CHECKED], salt=salt, secret=secret).tobytes()


def indexed(
    ref: ObjectRef, start: int, stop: int, *, has_null: bool, bits: int, data: bytes
) -> IndexedSegment | None:
    """A segment's entry, not placed yet; `None` where the store tells no version."""
    if ref.version is None:
        return None
    crc = google_crc32c.value(data)
    return IndexedSegment(
        ref.key, ref.size, ref.version, start, stop, has_null, bits, 0, len(data), crc
    )


def _read(file: Path) -> PartitionIndex:
    """Raises `ValueError` and what JSON of another shape brings up."""
    with file.open("rb") as data:
        end = data.seek(0, os.SEEK_END)
        if end < _TAIL.size:
            raise ValueError("it is too short")
        data.seek(end - _TAIL.size)
        size, crc, magic = _TAIL.unpack(data.read(_TAIL.size))
        if magic != _MAGIC or size > min(end - _TAIL.size, _MOST_TABLE_BYTES):
            raise ValueError("it ends otherwise")
        data.seek(end - _TAIL.size - size)
        table = data.read(size)
    if len(table) != size or google_crc32c.value(table) != crc:
        raise ValueError("its table is damaged")
    document: dict[str, Any] = json.loads(table)
    segments = [IndexedSegment(**one) for one in document["segments"]]
    salt, check = (bytes.fromhex(document[name]) for name in ("salt", "check"))
    return PartitionIndex(file, salt, check, {one.key: one for one in segments})


@dataclass(slots=True)
class RuleOut:
    """What the filters of one search say.

    Attributes:
        folder: Where they are.
        root: URI of the tier.
        keys: What is looked for.
        topic_ids: Topic and partition -> incarnation.
        logs: Topic and partition -> the logs that are left out.
    """

    folder: IndexFolder
    root: str
    keys: KeySet
    topic_ids: Mapping[tuple[str, int], str]
    logs: dict[tuple[str, int], set[ObjectRef]] = field(default_factory=dict)
    _place: tuple[str, int] | None = None
    _index: PartitionIndex | None = None
    _hashes: Hashes | None = None

    def narrowed(self, tasks: Iterable[ScanTask]) -> Iterator[ScanTask]:
        """The tasks, each of one partition, without those slices.

        Raises:
            InvalidOptionError: The filters were made with another secret.
        """
        for task in tasks:
            kept = tuple(part for part in task.slices if not self._is_out(part))
            if kept:
                yield ScanTask(kept)

    def _is_out(self, part: SegmentSlice) -> bool:
        place = part.topic, part.partition
        if place != self._place:
            self._open(place)
        if self._index is None or self._hashes is None:
            return False
        logs = self.logs.setdefault(place, set())
        null = self.keys.has_null
        if self._index.may_hold(part, self._hashes, null=null) is not False:
            return False
        logs.add(part.objects.log)
        return True

    def _open(self, place: tuple[str, int]) -> None:
        topic, partition = self._place = place
        file = self.folder.file_of(self.root, topic, self.topic_ids[place], partition)
        self._index = self.folder.open(file)
        if self._index is not None:
            salt, secret = self._index.salt, self.folder.secret.reveal()
            self._hashes = hashes_of(self.keys, salt=salt, secret=secret)
