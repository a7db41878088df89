"""Checks and changes the log directory of a stopped broker.

Files are written under temporary names, synced and renamed. Only empty files of a new topic are
replaced. Kafka ignores the temporary names.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.errors import InvalidOptionError
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import parse_offset_checkpoint, parse_partition_metadata
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TEMPORARY: Final = ".kts-restore"
"""Suffix of files that are not complete."""
LOG_STARTS: Final = "log-start-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
EPOCHS: Final = "leader-epoch-checkpoint"
_OWN: Final = "partition.metadata"
_REPLACED: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


class LogDir:
    """A log directory (`log.dirs`) of a stopped broker.

    Args:
        cluster_id: Id of the cluster that the broker must belong to.

    Raises:
        InvalidOptionError: The folder is not a log directory of this broker.
    """

    def __init__(self, path: str, cluster_id: str, node_id: int) -> None:
        self.path = Path(path)
        properties = self.path / "meta.properties"
        try:
            lines = properties.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOptionError(
                f"{path} is not a formatted log directory: {properties} cannot be read: {error}"
            ) from None
        facts = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
        if (found := facts.get("cluster.id", "")) != cluster_id:
            raise InvalidOptionError(
                f"log directory {path} belongs to cluster {found!r}, but the plan restores into"
                f" cluster {cluster_id!r}: use the log directory of a broker of that cluster"
            )

        if (number := facts.get("node.id", "")) != str(node_id):
            raise InvalidOptionError(
                f"log directory {path} belongs to broker {number}, but the topics of the plan are"
                f" assigned to broker {node_id}: use the log directory of that broker"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock of the log directory, so that no broker can start on it.

        Raises:
            InvalidOptionError: A broker runs on the log directory.
        """
        try:
            import fcntl
        except ImportError:
            raise InvalidOptionError(
                f"log directory {self.path} cannot be locked on this system: use Linux or macOS"
            ) from None
        with (self.path / ".lock").open("ab") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InvalidOptionError(
                    f"log directory {self.path} is in use: stop its broker first"
                ) from None
            yield  # closing the file releases the lock

    def partition(self, name: str, topic_id: str) -> Path:
        """Returns the folder of a partition.

        Raises:
            InvalidOptionError: The folder does not exist, or belongs to another topic id.
        """
        folder = self.path / name
        try:
            found = uuid_to_text(parse_partition_metadata((folder / _OWN).read_bytes()))
        except (OSError, SegmentFormatError) as error:
            raise InvalidOptionError(
                f"{folder} is not a partition of the new cluster: {error}. Assign {name} to this"
                " broker while it runs, and stop the broker"
            ) from None
        if found != topic_id:
            raise InvalidOptionError(
                f"{folder} belongs to topic id {found}, but the plan restores topic id {topic_id}:"
                " plan again"
            )
        return folder

    def merge_offsets(self, name: str, offsets: Mapping[tuple[str, int], int | None]) -> None:
        """Sets offsets in an offset checkpoint. `None` removes an entry."""
        path = self.path / name
        try:
            merged: dict[tuple[str, int], int | None] = {
                **(parse_offset_checkpoint(path.read_bytes()) if path.exists() else {}),
                **offsets,
            }
        except SegmentFormatError as error:
            raise InvalidOptionError(
                f"offset checkpoint {path} cannot be parsed: {error}"
            ) from None
        kept = {pair: offset for pair, offset in sorted(merged.items()) if offset is not None}
        lines = ["0", str(len(kept)), *(f"{t} {n} {at}" for (t, n), at in kept.items())]
        temporary = path.with_name(name + TEMPORARY)
        write_synced(temporary, "".join(f"{line}\n" for line in lines).encode())
        temporary.replace(path)
        sync_folder(self.path)


def check_empty(folder: Path) -> None:
    """Checks that a partition's folder has no records and no unknown files. Files with temporary
    names are from an earlier attempt.

    Raises:
        InvalidOptionError: The folder has records or unknown files.
    """
    for path in sorted(folder.iterdir()):
        if path.name in (_OWN, EPOCHS) or path.name.endswith(TEMPORARY):
            continue
        if path.suffix not in _REPLACED or (path.suffix == ".log" and path.stat().st_size):
            raise InvalidOptionError(
                f"{folder} is not empty: it has {path.name}. Restore into a new topic; nothing was"
                " changed"
            )


def place(folder: Path, files: Mapping[str, int]) -> None:
    """Replaces the empty files of a partition by the complete temporary files. Continues after a
    crash of an earlier call.

    Args:
        folder: Folder of the partition.
        files: Size of each file to place, by name.

    Raises:
        InvalidOptionError: A file is missing or has another size, or a log has other records.
    """
    pending = [name for name in files if (folder / (name + TEMPORARY)).exists()]
    for name, size in files.items():
        path = folder / (name + TEMPORARY if name in pending else name)
        found = path.stat().st_size if path.exists() else None
        if found != size:
            raise InvalidOptionError(
                f"{path} has {found} bytes, but the journal records {size}: it was changed after"
                " it was written. Restore into a new topic"
            )
    for path in folder.glob("*.log"):
        if path.stat().st_size and (path.name not in files or path.name in pending):
            raise InvalidOptionError(
                f"{path} has records that the restore did not write: a broker ran before the write"
                " was complete. Restore into a new topic"
            )
    for path in folder.iterdir():
        if path.suffix in _REPLACED and path.name not in files:
            path.unlink()
    for name in pending:
        (folder / (name + TEMPORARY)).replace(folder / name)
    sync_folder(folder)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file and waits until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Waits until renames in a folder are on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
