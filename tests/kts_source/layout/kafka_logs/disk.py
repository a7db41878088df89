"""Writes generated logs into a broker's log directory, and reads the directory with a scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from pathlib import Path

    from segment_format.testing.log_builder import BuiltLog

TOPIC = "orders"
TOPIC_ID = "LWgrMmVrT0a__7a4SasuPA"
HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"


def build_transactions(*, segments: int = 3, rounds: int = 4, undecided: bool = True) -> BuiltLog:
    """Builds a log with transactions that continue across segment borders.

    Each segment repeats the same sequence of batches `rounds` times. If `undecided` is true,
    transactions are open at the end of the log.
    """
    builder = LogBuilder(index_interval_bytes=300)
    number = 0
    for segment in range(segments):
        for turn in range(rounds):
            number += 1
            builder.send(7, [SimpleRecord(b"seven %d" % number)] * 3)
            builder.append([SimpleRecord(b"plain %d" % number)] * 5)
            builder.send(8, [SimpleRecord(b"eight %d" % number)])
            if turn % 2:
                builder.abort(7)
            if turn % 3 == 1:
                builder.commit(8)
        builder.send(7, [SimpleRecord(b"over the border")])
        if segment < segments - 1:
            builder.roll()
            (builder.abort if segment % 2 else builder.commit)(7)
    if not undecided:
        builder.abort(7)
        builder.commit(8)
    return builder.build()


@dataclass(frozen=True)
class Disk:
    """A broker's log directory with one partition, orders-0.

    Attributes:
        root: Path of the log directory.
    """

    root: Path

    @property
    def folder(self) -> Path:
        """Returns the folder of the partition in the log directory."""
        return self.root / f"{TOPIC}-0"

    def write(
        self,
        log: BuiltLog,
        *,
        clean: bool = True,
        high_watermark: int | None = None,
        recovery_point: int = 0,
    ) -> Disk:
        """Writes all segments as a broker stores them. The last segment is the active segment.

        Args:
            log: The log to write.
            clean: Whether the broker was shut down cleanly. After a crash, the indexes of the
                active segment have their preallocated size, and the producer snapshot of the log's
                end is missing.
            high_watermark: Offset in the high watermark checkpoint. The default is the end of the
                log.
            recovery_point: Offset in the recovery point checkpoint if `clean` is false. After a
                clean shutdown, this checkpoint contains the end of the log.
        """
        self.folder.mkdir(parents=True)
        for segment in log.segments:
            stem = f"{segment.base_offset:020d}"
            is_active = segment is log.segments[-1]
            padding = b"" if clean or not is_active else bytes(4096)
            self.put(f"{stem}.log", segment.log)
            self.put(f"{stem}.index", segment.index + padding)
            self.put(f"{stem}.timeindex", segment.timeindex + padding)
            if segment.txnindex is not None:
                self.put(f"{stem}.txnindex", segment.txnindex)
            if clean or not is_active:
                self.put(f"{segment.next_offset:020d}.snapshot", segment.snapshot)
        self.put("leader-epoch-checkpoint", log.segments[-1].leader_epoch_checkpoint)
        self.put("partition.metadata", f"version: 0\ntopic_id: {TOPIC_ID}".encode())
        end = log.end_offset()
        self.checkpoint(HIGH_WATERMARKS, end if high_watermark is None else high_watermark)
        self.checkpoint(RECOVERY_POINTS, end if clean else recovery_point)
        self.checkpoint(LOG_STARTS, None)
        (self.root / "meta.properties").write_text("version=1\n")
        if clean:
            (self.root / ".kafka_cleanshutdown").touch()
        return self

    def put(self, name: str, data: bytes) -> Path:
        """Writes a file into the partition folder."""
        path = self.folder / name
        path.write_bytes(data)
        return path

    def checkpoint(self, name: str, offset: int | None) -> None:
        """Writes a checkpoint file with the partition's `offset`, or without entries if `offset` is
        `None`.
        """
        lines = [] if offset is None else [f"{TOPIC} 0 {offset}"]
        (self.root / name).write_text("\n".join(["0", str(len(lines)), *lines, ""]))

    def files(self, kind: str) -> list[Path]:
        """Returns the files of the partition with suffix `kind`, ordered by base offset."""
        return sorted(self.folder.glob(f"*.{kind}"))


def read_offsets(root: Path, level: str = "read_committed", **extra: str) -> list[int]:
    """Returns the offsets that a scan at isolation level `level` reads, in scan order."""
    options = {"path": str(root), "layout": "kafka-logs", "subscribe": TOPIC, **extra}
    rows: list[int] = scan({"isolationLevel": level, **options})["offset"].to_pylist()
    return rows


def list_expected_offsets(
    log: BuiltLog, level: str = "read_committed", *, stop: int | None = None
) -> list[int]:
    """Returns the offsets below `stop` that a consumer with isolation level `level` would receive.
    Computes them from the generated log, without a scan.
    """
    end = log.end_offset() if stop is None else stop
    stable = end
    if level == "read_committed":
        open_starts = (
            transaction.first_offset
            for transaction in log.transactions
            if transaction.marker_offset is None or transaction.marker_offset >= end
        )
        stable = min([end, *open_starts])
    rows = log.rows("read_uncommitted", stop=stable)
    aborted = {
        number
        for number, transaction in enumerate(log.transactions)
        if transaction.committed is False
    }
    skipped = aborted if level == "read_committed" else set()
    return [row.offset for row in rows if row.transaction not in skipped]
