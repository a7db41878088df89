"""Tests that an audit reports each kind of damage with its offsets, and nothing else."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.auditing.report import LEVELS, Severity
from segment_format.testing.segment import (
    AbortedTransaction,
    write_leader_epoch_checkpoint,
    write_transaction_index,
)
from tests.golden_data import encryption_options
from tests.kts_source.auditing.damaged_tier import (
    ABORT_MARKER,
    BASES,
    STOP,
    DamagedTier,
    encryption,
    finding_spans,
    healthy_segments,
    replace_files,
    run_audit,
    write_tier,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from segment_format.testing import SegmentFiles
    from segment_format.testing.tiers import EncryptionKey


def test_healthy_tier_has_no_findings(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    for level in LEVELS:
        report = run_audit(tier, level)
        assert report.findings == ()
        assert report.exit_code == 0
    (statement,) = report.partitions
    assert (statement.start, statement.stop, statement.last_stable_offset) == (0, STOP, STOP)
    assert statement.is_whole
    # Two of the 203 offsets are transaction markers.
    assert (statement.records, statement.batches) == (STOP - 2, 23)


def test_digest_does_not_depend_on_compression_or_encryption(tmp_path: Path) -> None:
    digests = set()
    encodings: list[tuple[int, bool, EncryptionKey | None, tuple[int, ...]]] = [
        (512, False, None, (0, 1, 2, 3, 4)),
        (100, True, None, (0, 1, 2, 3, 4)),
        (4096, True, encryption(), (1, 4)),
        (77, False, encryption(), (0, 4)),
    ]
    for number, (chunk_size, compression, key, rolls) in enumerate(encodings):
        tier = write_tier(
            tmp_path / str(number),
            healthy_segments(rolls),
            chunk_size=chunk_size,
            compression=compression,
            encryption=key,
        )
        report = run_audit(tier, **encryption_options())
        assert report.findings == ()
        digests.add((report.partitions[0].digest, report.partitions[0].records))
    assert len(digests) == 1
    # Compute the digest as its definition says: base offset and CRC of each batch.
    chain = hashlib.sha256()
    for segment in healthy_segments():
        position = 0
        while position < len(segment.log):
            base, length = struct.unpack_from(">qi", segment.log, position)
            chain.update(struct.pack(">q", base) + segment.log[position + 17 : position + 21])
            position += 12 + length
    assert digests == {(chain.hexdigest(), STOP - 2)}


@dataclass(frozen=True, slots=True)
class Damage:
    """One kind of damage, and the finding that an audit reports for it.

    Attributes:
        level: Lowest audit level that reports the damage. Lower levels report nothing; higher
            levels report the same finding.
        kind: Name of the finding.
        number: Number of the damaged segment.
        harm: Function that damages a tier after it was written.
        segments: Function that returns the segments to write; by default the healthy segments.
    """

    level: str
    kind: str
    number: int
    harm: Callable[[DamagedTier], object] = lambda tier: None
    segments: Callable[[], list[SegmentFiles]] = healthy_segments

    @property
    def span(self) -> tuple[str, int, int]:
        ends = (*BASES[1:], STOP)
        return self.kind, BASES[self.number], ends[self.number]


def without_last_entry(number: int, field: str, size: int) -> list[SegmentFiles]:
    segment = healthy_segments()[number]
    return replace_files(number, **{field: getattr(segment, field)[:-size]})


def index_of(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def times_of(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


def snapshot_of(number: int, other: int) -> list[SegmentFiles]:
    return replace_files(number, snapshot=healthy_segments()[other].snapshot)


def with_bad_byte(number: int, field: str, position: int) -> list[SegmentFiles]:
    data = bytearray(getattr(healthy_segments()[number], field))
    data[position] ^= 1
    return replace_files(number, **{field: bytes(data)})


def entry(producer: int, first: int, last: int) -> bytes:
    return write_transaction_index([AbortedTransaction(producer, first, last, last + 1)])


def _id_of(manifest: dict[str, Any]) -> dict[str, Any]:
    segment_id: dict[str, Any] = manifest["remoteLogSegmentMetadata"]["remoteLogSegmentId"]
    return segment_id


def other_topic_id(manifest: dict[str, Any]) -> None:
    _id_of(manifest)["topicIdPartition"]["topicId"] = "AAAAAAAAAAAAAAAAAAAABQ"


def other_segment_id(manifest: dict[str, Any]) -> None:
    _id_of(manifest)["id"] = "AAAAAAAAAAAAAAAAAAAABQ"


def other_partition(manifest: dict[str, Any]) -> None:
    _id_of(manifest)["topicIdPartition"]["topicPartition"]["partition"] = 3


def other_topic(manifest: dict[str, Any]) -> None:
    _id_of(manifest)["topicIdPartition"]["topicPartition"]["topic"] = "u"


IN_LOG = ("crc", "batch-invalid", "offset-order", "epoch")
"""Findings that have the offsets of a batch; all other findings have the offsets of a segment."""
NO_END = ("manifest-invalid", "manifest-foreign")
"""Findings that have no end offset if the newest segment is damaged."""
LOST = {"object-missing", "hole", "log-size", "log-unreadable", "crc", "batch-invalid"}
"""Findings after which consumers cannot read some offsets."""
T3 = healthy_segments()[3].max_timestamp_ms

DAMAGES = {
    "missing log": Damage("listing", "object-missing", 2, lambda t: t.lose(2, "log")),
    "missing side files": Damage("listing", "object-missing", 2, lambda t: t.lose(2, "indexes")),
    "missing newest log": Damage("listing", "object-missing", 4, lambda t: t.lose(4, "log")),
    "newest segment with manifest only": Damage(
        "listing", "object-missing", 4, lambda t: t.lose(4, "log", "indexes")
    ),
    "missing segment": Damage(
        "metadata", "hole", 2, lambda t: t.lose(2, "log", "indexes", "rsm-manifest")
    ),
    "truncated log": Damage("metadata", "log-size", 2, lambda t: t.resize(2, "log", -10)),
    "extended log": Damage("metadata", "log-size", 2, lambda t: t.resize(2, "log", 10)),
    "truncated newest log": Damage("metadata", "log-size", 4, lambda t: t.resize(4, "log", -1)),
    "truncated side files": Damage(
        "metadata", "indexes-size", 2, lambda t: t.resize(2, "indexes", -1)
    ),
    "extended side files": Damage(
        "metadata", "indexes-size", 2, lambda t: t.resize(2, "indexes", 1)
    ),
    "empty log": Damage("listing", "empty-object", 2, lambda t: t.path(2, "log").write_bytes(b"")),
    "truncated manifest": Damage(
        "metadata", "manifest-invalid", 2, lambda t: t.resize(2, "rsm-manifest", -30)
    ),
    "truncated newest manifest": Damage(
        "metadata", "manifest-invalid", 4, lambda t: t.resize(4, "rsm-manifest", -30)
    ),
    "manifest of another version": Damage(
        "metadata",
        "manifest-invalid",
        2,
        lambda t: t.edit_manifest(2, lambda m: m.update(version="2")),
    ),
    "manifest with contradictory chunk sizes": Damage(
        "metadata",
        "manifest-invalid",
        2,
        lambda t: t.edit_manifest(2, lambda m: m["chunkIndex"].update(originalFileSize=9)),
    ),
    "manifest of another topic id": Damage(
        "metadata", "manifest-foreign", 2, lambda t: t.edit_manifest(2, other_topic_id)
    ),
    "manifest of another segment id": Damage(
        "metadata", "manifest-foreign", 2, lambda t: t.edit_manifest(2, other_segment_id)
    ),
    "manifest of another partition": Damage(
        "metadata", "manifest-foreign", 2, lambda t: t.edit_manifest(2, other_partition)
    ),
    "manifest of another topic": Damage(
        "metadata", "manifest-foreign", 2, lambda t: t.edit_manifest(2, other_topic)
    ),
    "flipped bit in a value": Damage("bytes", "crc", 2, lambda t: t.flip(2, "log", 100)),
    "flipped bit in a checksum": Damage(
        "bytes", "crc", 2, lambda t: t.flip(2, "log", t.positions(2)[1] + 17)
    ),
    "too long batch": Damage(
        "bytes", "batch-invalid", 2, lambda t: t.flip(2, "log", t.positions(2)[1] + 8, 0x10)
    ),
    "batch of unknown format": Damage(
        "bytes", "batch-invalid", 2, lambda t: t.flip(2, "log", t.positions(2)[1] + 16, 0x10)
    ),
    "batch with out-of-range offset": Damage(
        "bytes", "out-of-bounds", 2, lambda t: t.flip(2, "log", t.positions(2)[1] + 3)
    ),
    "batch with decreasing offset": Damage(
        "bytes", "offset-order", 4, lambda t: t.flip(4, "log", t.positions(4)[2] + 7, 4)
    ),
    "batch of another epoch": Damage(
        "bytes", "epoch", 2, lambda t: t.flip(2, "log", t.positions(2)[1] + 15, 2)
    ),
    "checkpoint with decreasing epochs": Damage(
        "metadata",
        "epochs-invalid",
        3,
        segments=lambda: replace_files(
            3, leader_epoch_checkpoint=write_leader_epoch_checkpoint([(0, 0), (3, 82), (2, 90)])
        ),
    ),
    "checkpoint of another segment": Damage(
        "metadata",
        "epochs-disagree",
        3,
        segments=lambda: replace_files(
            3, leader_epoch_checkpoint=healthy_segments()[1].leader_epoch_checkpoint
        ),
    ),
    "invalid newest checkpoint": Damage(
        "metadata",
        "epochs-invalid",
        4,
        segments=lambda: replace_files(4, leader_epoch_checkpoint=b"0\n"),
    ),
    "snapshot with a changed byte": Damage(
        "metadata", "snapshot-invalid", 3, segments=lambda: with_bad_byte(3, "snapshot", 20)
    ),
    "empty snapshot": Damage(
        "metadata", "snapshot-invalid", 3, segments=lambda: replace_files(3, snapshot=b"")
    ),
    "snapshot of a later segment": Damage(
        "metadata", "snapshot-disagrees", 0, segments=lambda: snapshot_of(0, 1)
    ),
    "transaction index with half an entry": Damage(
        "metadata",
        "transactions-invalid",
        1,
        segments=lambda: without_last_entry(1, "txnindex", 1),
    ),
    "transaction index of another segment": Damage(
        "metadata",
        "transactions-disagree",
        3,
        segments=lambda: replace_files(3, txnindex=healthy_segments()[1].txnindex),
    ),
    "unordered offset index": Damage(
        "indexes",
        "offset-index-invalid",
        3,
        segments=lambda: replace_files(3, index=index_of((20, 430), (10, 800))),
    ),
    "offset index after the segment end": Damage(
        "indexes",
        "offset-index-invalid",
        3,
        segments=lambda: replace_files(3, index=index_of((20, 430), (39, 99_999))),
    ),
    "offset index entry inside a batch": Damage(
        "indexes",
        "offset-index-disagrees",
        3,
        segments=lambda: replace_files(3, index=index_of((39, 700))),
    ),
    "unordered time index": Damage(
        "indexes",
        "time-index-invalid",
        3,
        segments=lambda: replace_files(3, timeindex=times_of((T3, 29), (T3 - 1000, 39))),
    ),
    "time index after the segment end": Damage(
        "indexes",
        "time-index-invalid",
        3,
        segments=lambda: replace_files(3, timeindex=times_of((T3, 40))),
    ),
    "time index without last entry": Damage(
        "indexes",
        "time-index-disagrees",
        3,
        segments=lambda: without_last_entry(3, "timeindex", 12),
    ),
    "offset index with one invalid entry": Damage(
        "bytes",
        "offset-index-disagrees",
        3,
        segments=lambda: replace_files(
            3, index=index_of((19, 400)) + healthy_segments()[3].index[-8:]
        ),
    ),
    "offset index with offset of the previous batch": Damage(
        "bytes",
        "offset-index-disagrees",
        3,
        segments=lambda: replace_files(
            3, index=index_of((9, 431)) + healthy_segments()[3].index[-8:]
        ),
    ),
    "time index with one invalid entry": Damage(
        "bytes",
        "time-index-disagrees",
        3,
        segments=lambda: replace_files(
            3, timeindex=times_of((T3 - 1500, 29)) + healthy_segments()[3].timeindex[-12:]
        ),
    ),
    "snapshot of an earlier segment": Damage(
        "bytes", "snapshot-disagrees", 1, segments=lambda: snapshot_of(1, 0)
    ),
    "unindexed aborted transaction": Damage(
        "bytes", "aborted-not-indexed", 1, segments=lambda: replace_files(1, txnindex=None)
    ),
    "aborted transaction with too late start": Damage(
        "bytes",
        "aborted-not-indexed",
        1,
        segments=lambda: replace_files(1, txnindex=entry(7, 50, ABORT_MARKER)),
    ),
    "transaction of another producer": Damage(
        "bytes",
        "transactions-disagree",
        4,
        segments=lambda: replace_files(4, txnindex=entry(11, 170, 180)),
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_audit_reports_the_damage_and_nothing_else(tmp_path: Path, name: str) -> None:
    damage = DAMAGES[name]
    tier = write_tier(tmp_path, damage.segments())
    damage.harm(tier)
    for level in LEVELS:
        report = run_audit(tier, level)
        if LEVELS.index(level) < LEVELS.index(damage.level):
            assert report.findings == (), level
        elif level == "listing":
            assert {(finding.name, finding.start) for finding in report.findings} == {
                damage.span[:2]
            }
        else:
            ((kind, start, stop),) = finding_spans(report)
            _, first, last = damage.span
            assert kind == damage.kind, level
            if damage.kind in NO_END and damage.number == 4:
                assert (start, stop) == (first, None)
            elif damage.kind in IN_LOG:
                assert start is not None
                assert first <= start < last
            else:
                assert (start, stop) == (first, last)
            assert all(finding.severity is Severity.ERROR for finding in report.findings)
            loses_data = damage.kind in ("hole", "object-missing")
            assert report.exit_code == (3 if loses_data else 1)
    (statement,) = report.partitions
    assert not statement.is_whole
    assert statement.digest is None or damage.kind not in LOST
