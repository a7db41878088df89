"""The state of audits: a file of proofs, so that the next audit reads only new segments.

The file has one line for each segment without faults. It also has one line for each partition in
which all segments have a proof. If a segment or partition has several lines, the last line counts.
A line has these fields, separated by tabs:

    CRC-32C of the other fields (8 hex digits), kind, partition, name, identity, JSON

There are three kinds of lines:

* `V` is the first line: the field partition is the version of the format, and the field name is the
  name of the tier.
* `S` is a segment: the name is the segment id. The identity is the base offset and the list of the
  objects with size, version and storage class. The JSON is a `ProvenSegment`.
* `P` is a partition: the name is empty. The identity is a digest over the identities of all
  segments. The JSON is [level, time of the audit, keys, statement, findings].

The audit uses a line only if its own listing has exactly the objects that the line names. New lines
are written immediately, so an interrupted audit can be resumed. Truncated and damaged lines are
skipped. Segments with a fault have no line, so each audit reads them again.
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

from kts_source.auditing.proof import ProvenSegment
from kts_source.errors import InvalidOptionError
from kts_source.store.open_store import local_file
from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kts_source.layout.layout import SegmentEntry

log = logging.getLogger(__name__)

VERSION: Final = "kts-audit-state 3"
"""Version of the file. Increase it when lines get another meaning, or checks find more faults."""
_SEGMENT: Final = "S"
_PARTITION: Final = "P"
_VERSION: Final = "V"
_MAX_WASTE: Final = 2
"""The file is rewritten if it has more than this number of lines per valid line."""
_Lines = dict[str, str]


class PartitionState:
    """The lines of one partition in the state file. Used by one thread at a time.

    Args:
        partition: Name of the partition in the file.
        lines: The current line of each segment, by segment id; the line of the partition, by "".
        write: Called with new lines to write them to the file. `None` discards new lines.
    """

    def __init__(
        self,
        partition: str,
        lines: _Lines,
        write: Callable[[Sequence[str]], object] | None = None,
    ) -> None:
        self._partition = partition
        self._lines = lines
        self._write = write

    def segment(self, entry: SegmentEntry) -> ProvenSegment | None:
        """Returns the stored proof of a segment. Returns `None` if there is no proof, or if the
        objects of the segment have changed.
        """
        value = self._value(_SEGMENT, entry.segment_id, identity_of(entry))
        if value is None:
            return None
        try:
            return ProvenSegment.from_json(entry, value)
        except (ValueError, TypeError, LookupError, SegmentFormatError):
            return None

    def whole(self, identity: str) -> Any:  # noqa: ANN401
        """Returns the stored result of the whole partition. Returns `None` if there is no result,
        or if `identity` differs because the objects of the partition have changed.
        """
        return self._value(_PARTITION, "", identity)

    def add_segments(self, segments: Iterable[tuple[SegmentEntry, ProvenSegment]]) -> None:
        """Stores proofs of segments with one write. Skips a segment if one of its objects has no
        version, or if `ProvenSegment.to_json` returns `None`.
        """
        if self._write is None:
            return
        lines = []
        for entry, proven in segments:
            identity = identity_of(entry)
            value = proven.to_json(entry) if identity else None
            if value is not None:
                lines.append(self._keep(_SEGMENT, entry.segment_id, identity, value))
        if lines:
            self._write(lines)

    def add_whole(self, identity: str, value: object) -> None:
        """Stores `value`, the JSON result of the whole partition. Does nothing if `identity` is
        empty.
        """
        if self._write is not None and identity:
            self._write([self._keep(_PARTITION, "", identity, value)])

    def _value(self, kind: str, name: str, identity: str) -> Any:  # noqa: ANN401
        line = self._lines.get(name)
        start = f"{kind}\t{self._partition}\t{name}\t{identity}\t"
        if line is None or not identity or not line.startswith(start):
            return None
        return json.loads(line[len(start) :])

    def _keep(self, kind: str, name: str, identity: str, value: object) -> str:
        text = json.dumps(value, separators=(",", ":"))
        line = f"{kind}\t{self._partition}\t{name}\t{identity}\t{text}"
        self._lines[name] = line
        return line


NO_STATE: Final = PartitionState("", {})
"""An empty state that discards new proofs."""


class AuditState:
    """The state file. Only one audit at a time can open it, because it is locked.

    Args:
        path: Path of the file. The file is created with mode 0600 if it does not exist.
        tier: Name of the audited tier.

    Raises:
        InvalidOptionError: The file cannot be written, is not a state file, belongs to another
            tier, or is used by another audit.
    """

    def __init__(self, path: str, tier: str) -> None:
        self._path = local_file(path)
        self._head = _with_checksum(f"{_VERSION}\t{VERSION}\t{json.dumps(tier)}\t\t")
        self._partitions: dict[str, _Lines] = {}
        self._count = 0
        try:
            self._file = self._open()
        except BlockingIOError:
            raise InvalidOptionError(
                f"state {path} is locked: another audit uses it. Wait for that audit to end, or use"
                " another file."
            ) from None
        except OSError as error:
            raise _file_error(path, "opened", error) from None
        try:
            self._load(tier)
        except BaseException:
            os.close(self._file)
            raise

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            file = os.open(self._path, flags, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(0, "it is not a regular file")
                if os.path.samestat(status, self._path.stat()):
                    os.fchmod(file, 0o600)
                    return file
            except FileNotFoundError:
                pass  # just replaced by the previous audit
            except BaseException:
                os.close(file)
                raise
            os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def partition(self, name: str) -> PartitionState:
        """Returns the state of a partition. New lines of this state are written to the file."""
        return PartitionState(name, self.lines(name), self._append)

    def lines(self, partition: str) -> _Lines:
        """Returns the current lines of a partition, by segment id. They are sent to processes that
        cannot open the file.
        """
        return self._partitions.setdefault(partition, {})

    def _append(self, lines: Sequence[str]) -> None:
        """Appends lines to the file with one call, because several threads append concurrently.
        Each line gets its checksum.
        """
        self._count += len(lines)
        _write(self._file, self._path, _checked_lines(lines))

    def merge(self, partition: str, lines: Sequence[str], *, are_written: bool) -> None:
        """Adds lines of a partition that another process created. If `are_written` is True, that
        process has already appended them to the file.
        """
        line_by_name = self.lines(partition)
        for line in lines:
            line_by_name[line.split("\t", 3)[2]] = line
        if are_written:
            self._count += len(lines)
        else:
            self._append(lines)

    def finish(self, listed: Mapping[str, Collection[str]]) -> None:
        """Forgets the lines of segments that are no longer listed. Rewrites the file without
        obsolete lines if more than half of its lines are obsolete.

        Args:
            listed: For each audited partition, by its name in the file, the ids of its listed
                segments.
        """
        for partition, names in listed.items():
            line_by_name, wanted = self._partitions.get(partition, {}), {"", *names}
            for name in [name for name in line_by_name if name not in wanted]:
                del line_by_name[name]
        kept = [line for lines in self._partitions.values() for line in lines.values()]
        if self._count <= _MAX_WASTE * len(kept):
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
            raise _file_error(self._path, "written", error) from None

    def _load(self, tier: str) -> None:
        with open(self._file, "rb", closefd=False) as file:
            data = file.read()
        lines = data.decode(errors="replace").split("\n") if data else []
        if len(lines) < 2 and self._head.startswith(lines[0] if lines else ""):
            # The file is new, or its first write was interrupted.
            self._restart()
            return
        head = lines[0].split("\t")
        if len(head) < 4 or head[1] != _VERSION or not head[2].startswith("kts-audit-state "):
            raise InvalidOptionError(
                f"{self._path} is not the state of an audit. Use another path, or delete the file."
            )
        if head[2] != VERSION:
            log.warning(
                "%s has another version (%s): the audit starts with an empty state",
                *(self._path, head[2][:40]),
            )
            self._restart()
            return
        if lines[0] + "\n" != self._head:
            raise InvalidOptionError(
                f"state {self._path} belongs to tier {head[3]}, but this audit reads"
                f" {json.dumps(tier)}. Use a separate state file for each tier."
            )
        damaged, is_of_tier = 0, True
        for line in lines[1:-1]:
            text = line[9:]
            if _with_checksum(text) != line + "\n":
                damaged += 1
                continue
            fields = text.split("\t", 3)
            if fields[0] == _VERSION:  # of a file that was appended to this one
                is_of_tier = line + "\n" == self._head
            if fields[0] == _VERSION or not is_of_tier:
                continue
            self._partitions.setdefault(fields[1], {})[fields[2]] = text
            self._count += 1
        if lines[-1]:  # truncated: begin a new line
            damaged += 1
            _write(self._file, self._path, b"\n")
        if damaged:
            log.warning("%s: skipped %d truncated or damaged lines", self._path, damaged)

    def _restart(self) -> None:
        os.ftruncate(self._file, 0)
        _write(self._file, self._path, self._head.encode())


@contextlib.contextmanager
def open_to_append(path: str) -> Iterator[Callable[[Sequence[str]], None]]:
    """Opens the state file and yields a function that appends lines to it. Takes no lock, because
    the audit that started this task holds it.

    Raises:
        InvalidOptionError: The file cannot be opened or written.
    """
    try:
        file = os.open(local_file(path), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise _file_error(path, "opened", error) from None
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
        raise _file_error(path, "written", error) from None


def _file_error(path: str | Path, action: str, error: OSError) -> InvalidOptionError:
    return InvalidOptionError(f"{path} cannot be {action}: {error.strerror}. Check the state file.")


def _checked_lines(lines: Iterable[str]) -> bytes:
    return "".join(map(_with_checksum, lines)).encode()


def _with_checksum(line: str) -> str:
    return f"{google_crc32c.value(line.encode()):08x}\t{line}\n"


def identity_of(entry: SegmentEntry) -> str:
    """Returns a text with the base offset, the listed objects of a segment and their versions.
    Returns "" if an object has no version or the text is not printable.
    """
    names = []
    for suffix, info in entry.objects:
        if info.version is None:
            return ""
        names.append(f"{suffix} {info.size} {info.version} {info.storage_class}")
    text = f"{entry.base_offset}|{'|'.join(names)}"
    return text if text.isprintable() else ""
