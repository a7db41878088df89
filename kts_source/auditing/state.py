"""What audits of a tier have proven, kept in a file: the next one reads only what is new.

A line of text for each segment without faults, and for each partition of which all segments are.
Later lines replace earlier ones of the same segment or partition:

    CRC-32C of the rest in hex (8), kind, partition, name, identity, JSON; separated by tabs

Kind `S`: name is the segment id, identity the listed objects with size, version and storage class;
the JSON is of `proven`. Kind `P`: no name, identity a digest over those of all its segments; the
JSON is [level, time of the audit, keys, statement, findings]. The first line is of kind `V`:
partition is the version, name the tier.

A line serves only objects that are listed exactly the same. It is appended as soon as it is known,
so an audit that was killed goes on; a line that was cut, or damaged, does not count. Nothing with a
fault is kept: it is read each time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import stat
from typing import TYPE_CHECKING, Any, Final, Self

import google_crc32c

from kts_source.auditing.proof import ProvenSegment, from_json, to_json
from kts_source.errors import InvalidOptionError
from kts_source.store.open_store import local_file
from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from kts_source.layout.layout import SegmentEntry

log = logging.getLogger(__name__)

VERSION: Final = "kts-audit-state 2"
"""Goes up where a line means something else, or where checks find more than before."""
_CONTENT: Final = "S"
_PARTITION: Final = "P"
_VERSION: Final = "V"
_WASTE: Final = 2
"""A file with so many times the lines that count is written anew."""
_Lines = dict[str, str]


class PartitionState:
    """What is known of one partition. Used by one thread at a time.

    Args:
        place: Of the partition, in the file.
        lines: Segment id to line; the partition's own has an empty id.
        write: Takes new lines.
    """

    def __init__(
        self,
        place: str,
        lines: _Lines,
        write: Callable[[Sequence[str]], object] | None = None,
    ) -> None:
        self._place = place
        self._lines = lines
        self._write = write

    def segment(self, entry: SegmentEntry) -> ProvenSegment | None:
        """What was proven of exactly these objects."""
        value = self._value(_CONTENT, entry.segment_id, identity_of(entry))
        if value is None:
            return None
        try:
            return from_json(entry, value)
        except (ValueError, TypeError, LookupError, SegmentFormatError):
            return None

    def whole(self, identity: str) -> Any:  # noqa: ANN401
        """What was kept of the whole partition while it had exactly these objects, or `None`."""
        return self._value(_PARTITION, "", identity)

    def add_segments(self, segments: Iterable[tuple[SegmentEntry, ProvenSegment]]) -> None:
        """Keeps proofs, where every object of the segment has a version; all in one write."""
        if self._write is None:
            return
        lines = []
        for entry, proven in segments:
            identity = identity_of(entry)
            value = to_json(entry, proven) if identity else None
            if value is not None:
                lines.append(self._kept(_CONTENT, entry.segment_id, identity, value))
        if lines:
            self._write(lines)

    def add_whole(self, identity: str, value: object) -> None:
        """Keeps what was found of the whole partition."""
        if self._write is not None and identity:
            self._write([self._kept(_PARTITION, "", identity, value)])

    def _value(self, kind: str, name: str, identity: str) -> Any:  # noqa: ANN401
        line = self._lines.get(name)
        start = f"{kind}\t{self._place}\t{name}\t{identity}\t"
        if line is None or not identity or not line.startswith(start):
            return None
        return json.loads(line[len(start) :])

    def _kept(self, kind: str, name: str, identity: str, value: object) -> str:
        text = json.dumps(value, separators=(",", ":"))
        line = f"{kind}\t{self._place}\t{name}\t{identity}\t{text}"
        self._lines[name] = line
        return line


NO_STATE: Final = PartitionState("", {})
"""Knows nothing and keeps nothing."""


class AuditState:
    """The file, held by one audit at a time.

    Args:
        path: Of the file; made with mode 0600 if need be.
        tier: What the audit is of.

    Raises:
        InvalidOptionError: It cannot be written, is none of an audit or of another tier, or another
            audit has it.
    """

    def __init__(self, path: str, tier: str) -> None:
        self._path = local_file(path)
        self._head = _checked(f"{_VERSION}\t{VERSION}\t{json.dumps(tier)}\t\t")
        self._known: dict[str, _Lines] = {}
        self._count = 0
        try:
            self._file = self._opened()
        except BlockingIOError:
            raise InvalidOptionError(f"another audit uses {path} at this time") from None
        except OSError as error:
            raise InvalidOptionError(f"{path} cannot be opened: {error.strerror}") from None
        try:
            self._load(tier)
        except BaseException:
            os.close(self._file)
            raise

    def _opened(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            file = os.open(self._path, flags, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(0, "not a file")
                if os.path.samestat(status, self._path.stat()):
                    os.fchmod(file, 0o600)
                    return file
            except FileNotFoundError:
                pass  # replaced just now by the audit before
            except BaseException:
                os.close(file)
                raise
            os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def of(self, place: str) -> PartitionState:
        """What is known of a partition, and takes what is found out."""
        return PartitionState(place, self.lines(place), self.append)

    def lines(self, place: str) -> _Lines:
        """The lines of a partition, for a process that has no file."""
        return self._known.setdefault(place, {})

    def append(self, lines: Sequence[str]) -> None:
        """Writes lines; in one piece, as threads do it side by side.

        Raises:
            InvalidOptionError: The disk is full, or the like.
        """
        self._count += len(lines)
        _write(self._file, self._path, _checked_lines(lines))

    def take(self, place: str, lines: Sequence[str], *, are_written: bool) -> None:
        """Takes the new lines of a partition from another process.

        Args:
            place: Of the partition.
            lines: What is known now.
            are_written: Whether that process had the file.
        """
        known = self.lines(place)
        for line in lines:
            known[line.split("\t", 3)[2]] = line
        if are_written:
            self._count += len(lines)
        else:
            self.append(lines)

    def finish(self, listed: Mapping[str, Collection[str]]) -> None:
        """Writes the file anew where most of its lines do not count any more.

        Args:
            listed: For each partition that was looked at, the segment ids that there still are.
        """
        for place, names in listed.items():
            known, wanted = self._known.get(place, {}), {"", *names}
            for name in [name for name in known if name not in wanted]:
                del known[name]
        kept = [line for lines in self._known.values() for line in lines.values()]
        if self._count <= _WASTE * len(kept):
            return
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            file = os.open(fresh, flags, 0o600)
            try:
                _write(file, fresh, self._head.encode() + _checked_lines(kept))
            finally:
                os.close(file)
            fresh.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise InvalidOptionError(f"{self._path} cannot be written: {error.strerror}") from None

    def _load(self, tier: str) -> None:
        with open(self._file, "rb", closefd=False) as file:
            data = file.read()
        lines = data.decode(errors="replace").split("\n") if data else []
        if len(lines) < 2 and self._head.startswith(lines[0] if lines else ""):
            # Made just now, or by an audit that was killed, or found the disk full, over it.
            os.ftruncate(self._file, 0)
            _write(self._file, self._path, self._head.encode())
            return
        head = lines[0].split("\t")
        if len(head) < 4 or head[1] != _VERSION or not head[2].startswith("kts-audit-state "):
            raise InvalidOptionError(f"{self._path} is not the state of an audit")
        if head[2] != VERSION:
            log.warning("%s is of another version (%s): begun anew", self._path, head[2][:40])
            os.ftruncate(self._file, 0)
            _write(self._file, self._path, self._head.encode())
            return
        if lines[0] + "\n" != self._head:
            raise InvalidOptionError(
                f"{self._path} is of another tier, {head[3]}, not of {json.dumps(tier)}"
            )
        damaged, is_of_tier = 0, True
        for line in lines[1:-1]:
            text = line[9:]
            if _checked(text) != line + "\n":
                damaged += 1
                continue
            parts = text.split("\t", 3)
            if parts[0] == _VERSION:  # of a file that was put behind this one
                is_of_tier = line + "\n" == self._head
            if parts[0] == _VERSION or not is_of_tier:
                continue
            self._known.setdefault(parts[1], {})[parts[2]] = text
            self._count += 1
        if lines[-1]:  # cut: the next line begins on its own
            damaged += 1
            _write(self._file, self._path, b"\n")
        if damaged:
            log.warning("%s: %d lines are cut or damaged and do not count", self._path, damaged)


@contextlib.contextmanager
def appending(path: str) -> Iterator[Callable[[Sequence[str]], None]]:
    """What writes lines into a state that another process of this machine holds.

    Raises:
        InvalidOptionError: It cannot be opened, or written.
    """
    try:
        file = os.open(local_file(path), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be opened: {error.strerror}") from None
    try:
        yield lambda lines: _write(file, path, _checked_lines(lines))
    finally:
        os.close(file)


def _write(file: int, path: str | Path, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(file, view) :]
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be written: {error.strerror}") from None


def _checked_lines(lines: Iterable[str]) -> bytes:
    return "".join(map(_checked, lines)).encode()


def _checked(line: str) -> str:
    """A line as the file has it."""
    return f"{google_crc32c.value(line.encode()):08x}\t{line}\n"


def identity_of(entry: SegmentEntry) -> str:
    """The listed objects of a segment; empty where one has no version, so that nobody can tell
    whether it is still the same.
    """
    parts = []
    for suffix, info in entry.objects:
        if info.version is None:
            return ""
        parts.append(f"{suffix} {info.size} {info.version} {info.storage_class}")
    text = f"{entry.base_offset}|{'|'.join(parts)}"
    return text if text.isprintable() else ""
