"""Every damage is named in its right place, and nothing else is."""

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
    audited,
    changed,
    encryption,
    found,
    healthy_segments,
    write_tier,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from segment_format.testing import SegmentFiles
    from segment_format.testing.tiers import EncryptionKey


def test_a_healthy_tier_has_no_findings(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    for level in LEVELS:
        report = audited(tier, level)
        assert report.findings == ()
        assert report.exit_code == 0
    (part,) = report.partitions
    assert (part.start, part.stop, part.last_stable_offset) == (0, STOP, STOP)
    assert part.is_whole
    # Two markers, of 203 offsets.
    assert (part.records, part.batches) == (STOP - 2, 23)


def test_what_is_served_compares_whatever_the_tier_does_to_it(tmp_path: Path) -> None:
    digests = set()
    ways: list[tuple[int, bool, EncryptionKey | None, tuple[int, ...]]] = [
        (512, False, None, (0, 1, 2, 3, 4)),
        (100, True, None, (0, 1, 2, 3, 4)),
        (4096, True, encryption(), (1, 4)),
        (77, False, encryption(), (0, 4)),
    ]
    for number, (chunk_size, compression, key, rolls) in enumerate(ways):
        tier = write_tier(
            tmp_path / str(number),
            healthy_segments(rolls),
            chunk_size=chunk_size,
            compression=compression,
            encryption=key,
        )
        report = audited(tier, **encryption_options())
        assert report.findings == ()
        digests.add((report.partitions[0].digest, report.partitions[0].records))
    assert len(digests) == 1
    # The chain, spelled out.
    chain = hashlib.sha256()
    for segment in healthy_segments():
        at = 0
        while at < len(segment.log):
            base, length = struct.unpack_from(">qi", segment.log, at)
            chain.update(struct.pack(">q", base) + segment.log[at + 17 : at + 21])
            at += 12 + length
    assert digests == {(chain.hexdigest(), STOP - 2)}


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that goes wrong.

    Attributes:
        level: The first level that sees it; those before see nothing, those behind it the same.
        kind: What it is.
        number: Of the segment concerned.
        harm: Breaks a tier that was written.
        segments: What is written instead of the healthy segments.
    """

    level: str
    kind: str
    number: int
    harm: Callable[[DamagedTier], object] = lambda tier: None
    segments: Callable[[], list[SegmentFiles]] = healthy_segments

    @property
    def place(self) -> tuple[str, int, int]:
        ends = (*BASES[1:], STOP)
        return self.kind, BASES[self.number], ends[self.number]


def without_last_entry(number: int, field: str, size: int) -> list[SegmentFiles]:
    segment = healthy_segments()[number]
    return changed(number, **{field: getattr(segment, field)[:-size]})


def index_of(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def times_of(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


def snapshot_of(number: int, other: int) -> list[SegmentFiles]:
    return changed(number, snapshot=healthy_segments()[other].snapshot)


def with_bad_byte(number: int, field: str, at: int) -> list[SegmentFiles]:
    data = bytearray(getattr(healthy_segments()[number], field))
    data[at] ^= 1
    return changed(number, **{field: bytes(data)})


def entry(producer: int, first: int, last: int) -> bytes:
    return write_transaction_index([AbortedTransaction(producer, first, last, last + 1)])


def _id_of(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["remoteLogSegmentMetadata"]["remoteLogSegmentId"]
    return found


def other_topic_id(manifest: dict[str, Any]) -> None:
    _id_of(manifest)["topicIdPartition"]["topicId"] = "AAAAAAAAAAAAAAAAAAAABQ"


def other_segment_id(manifest: dict[str, Any]) -> None:
    _id_of(manifest)["id"] = "AAAAAAAAAAAAAAAAAAAABQ"


def other_partition(manifest: dict[str, Any]) -> None:
    _id_of(manifest)["topicIdPartition"]["topicPartition"]["partition"] = 3


def other_topic(manifest: dict[str, Any]) -> None:
    _id_of(manifest)["topicIdPartition"]["topicPartition"]["topic"] = "u"


IN_LOG = ("crc", "batch-invalid", "offset-order", "epoch")
"""Kinds that name the batch, not the segment."""
NO_END = ("manifest-invalid", "manifest-foreign")
"""Kinds that cannot tell where the newest segment ends."""
LOST = {"object-missing", "hole", "log-size", "log-unreadable", "crc", "batch-invalid"}
"""What keeps served offsets from being read."""
T3 = healthy_segments()[3].max_timestamp_ms

DAMAGES = {
    "a log that is lost": Damage("listing", "object-missing", 2, lambda t: t.lose(2, "log")),
    "side files that are lost": Damage(
        "listing", "object-missing", 2, lambda t: t.lose(2, "indexes")
    ),
    "the newest log is lost": Damage("listing", "object-missing", 4, lambda t: t.lose(4, "log")),
    "the newest has its manifest alone": Damage(
        "listing", "object-missing", 4, lambda t: t.lose(4, "log", "indexes")
    ),
    "a segment that is lost": Damage(
        "metadata", "hole", 2, lambda t: t.lose(2, "log", "indexes", "rsm-manifest")
    ),
    "a log that is cut": Damage("metadata", "log-size", 2, lambda t: t.resize(2, "log", -10)),
    "a log that is longer": Damage("metadata", "log-size", 2, lambda t: t.resize(2, "log", 10)),
    "the newest log is cut": Damage("metadata", "log-size", 4, lambda t: t.resize(4, "log", -1)),
    "side files that are cut": Damage(
        "metadata", "indexes-size", 2, lambda t: t.resize(2, "indexes", -1)
    ),
    "side files that are longer": Damage(
        "metadata", "indexes-size", 2, lambda t: t.resize(2, "indexes", 1)
    ),
    "a log without a byte": Damage(
        "listing", "empty-object", 2, lambda t: t.path(2, "log").write_bytes(b"")
    ),
    "a manifest that is cut": Damage(
        "metadata", "manifest-invalid", 2, lambda t: t.resize(2, "rsm-manifest", -30)
    ),
    "the newest manifest is cut": Damage(
        "metadata", "manifest-invalid", 4, lambda t: t.resize(4, "rsm-manifest", -30)
    ),
    "a manifest of another version": Damage(
        "metadata",
        "manifest-invalid",
        2,
        lambda t: t.edit_manifest(2, lambda m: m.update(version="2")),
    ),
    "a manifest whose chunks contradict each other": Damage(
        "metadata",
        "manifest-invalid",
        2,
        lambda t: t.edit_manifest(2, lambda m: m["chunkIndex"].update(originalFileSize=9)),
    ),
    "a manifest of another topic id": Damage(
        "metadata", "manifest-foreign", 2, lambda t: t.edit_manifest(2, other_topic_id)
    ),
    "a manifest of another segment id": Damage(
        "metadata", "manifest-foreign", 2, lambda t: t.edit_manifest(2, other_segment_id)
    ),
    "a manifest of another partition": Damage(
        "metadata", "manifest-foreign", 2, lambda t: t.edit_manifest(2, other_partition)
    ),
    "a manifest of another topic": Damage(
        "metadata", "manifest-foreign", 2, lambda t: t.edit_manifest(2, other_topic)
    ),
    "a flipped bit in a value": Damage("bytes", "crc", 2, lambda t: t.flip(2, "log", 100)),
    "a flipped bit in the checksum": Damage(
        "bytes", "crc", 2, lambda t: t.flip(2, "log", t.positions(2)[1] + 17)
    ),
    "a batch that is too long": Damage(
        "bytes", "batch-invalid", 2, lambda t: t.flip(2, "log", t.positions(2)[1] + 8, 0x10)
    ),
    "a batch of an unknown format": Damage(
        "bytes", "batch-invalid", 2, lambda t: t.flip(2, "log", t.positions(2)[1] + 16, 0x10)
    ),
    "a batch with an offset far away": Damage(
        "bytes", "out-of-bounds", 2, lambda t: t.flip(2, "log", t.positions(2)[1] + 3)
    ),
    "a batch whose offset steps back": Damage(
        "bytes", "offset-order", 4, lambda t: t.flip(4, "log", t.positions(4)[2] + 7, 4)
    ),
    "a batch of another epoch": Damage(
        "bytes", "epoch", 2, lambda t: t.flip(2, "log", t.positions(2)[1] + 15, 2)
    ),
    "a checkpoint that skips back": Damage(
        "metadata",
        "epochs-invalid",
        3,
        segments=lambda: changed(
            3, leader_epoch_checkpoint=write_leader_epoch_checkpoint([(0, 0), (3, 82), (2, 90)])
        ),
    ),
    "a checkpoint of another segment": Damage(
        "metadata",
        "epochs-disagree",
        3,
        segments=lambda: changed(
            3, leader_epoch_checkpoint=healthy_segments()[1].leader_epoch_checkpoint
        ),
    ),
    "the newest checkpoint is bad": Damage(
        "metadata", "epochs-invalid", 4, segments=lambda: changed(4, leader_epoch_checkpoint=b"0\n")
    ),
    "a snapshot with a bad byte": Damage(
        "metadata", "snapshot-invalid", 3, segments=lambda: with_bad_byte(3, "snapshot", 20)
    ),
    "a snapshot that is empty": Damage(
        "metadata", "snapshot-invalid", 3, segments=lambda: changed(3, snapshot=b"")
    ),
    "a snapshot of a later segment": Damage(
        "metadata", "snapshot-disagrees", 0, segments=lambda: snapshot_of(0, 1)
    ),
    "a transaction index with half an entry": Damage(
        "metadata",
        "transactions-invalid",
        1,
        segments=lambda: without_last_entry(1, "txnindex", 1),
    ),
    "a transaction index of another segment": Damage(
        "metadata",
        "transactions-disagree",
        3,
        segments=lambda: changed(3, txnindex=healthy_segments()[1].txnindex),
    ),
    "an offset index out of order": Damage(
        "indexes",
        "offset-index-invalid",
        3,
        segments=lambda: changed(3, index=index_of((20, 430), (10, 800))),
    ),
    "an offset index behind the segment": Damage(
        "indexes",
        "offset-index-invalid",
        3,
        segments=lambda: changed(3, index=index_of((20, 430), (39, 99_999))),
    ),
    "an offset index that points into a batch": Damage(
        "indexes",
        "offset-index-disagrees",
        3,
        segments=lambda: changed(3, index=index_of((39, 700))),
    ),
    "a time index out of order": Damage(
        "indexes",
        "time-index-invalid",
        3,
        segments=lambda: changed(3, timeindex=times_of((T3, 29), (T3 - 1000, 39))),
    ),
    "a time index behind the segment": Damage(
        "indexes",
        "time-index-invalid",
        3,
        segments=lambda: changed(3, timeindex=times_of((T3, 40))),
    ),
    "a time index that lacks its end": Damage(
        "indexes",
        "time-index-disagrees",
        3,
        segments=lambda: without_last_entry(3, "timeindex", 12),
    ),
    "an offset index with one bad entry": Damage(
        "bytes",
        "offset-index-disagrees",
        3,
        segments=lambda: changed(3, index=index_of((19, 400)) + healthy_segments()[3].index[-8:]),
    ),
    "an offset index with an offset of the batch before": Damage(
        "bytes",
        "offset-index-disagrees",
        3,
        segments=lambda: changed(3, index=index_of((9, 431)) + healthy_segments()[3].index[-8:]),
    ),
    "a time index with one bad entry": Damage(
        "bytes",
        "time-index-disagrees",
        3,
        segments=lambda: changed(
            3, timeindex=times_of((T3 - 1500, 29)) + healthy_segments()[3].timeindex[-12:]
        ),
    ),
    "a snapshot that is older": Damage(
        "bytes", "snapshot-disagrees", 1, segments=lambda: snapshot_of(1, 0)
    ),
    "an aborted transaction that is not indexed": Damage(
        "bytes", "aborted-not-indexed", 1, segments=lambda: changed(1, txnindex=None)
    ),
    "an aborted transaction that begins too late": Damage(
        "bytes",
        "aborted-not-indexed",
        1,
        segments=lambda: changed(1, txnindex=entry(7, 50, ABORT_MARKER)),
    ),
    "a transaction of another producer": Damage(
        "bytes",
        "transactions-disagree",
        4,
        segments=lambda: changed(4, txnindex=entry(11, 170, 180)),
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damage_is_named_and_nothing_else(tmp_path: Path, name: str) -> None:
    damage = DAMAGES[name]
    tier = write_tier(tmp_path, damage.segments())
    damage.harm(tier)
    for level in LEVELS:
        report = audited(tier, level)
        if LEVELS.index(level) < LEVELS.index(damage.level):
            assert report.findings == (), level
        elif level == "listing":
            assert {(one.name, one.start) for one in report.findings} == {damage.place[:2]}
        else:
            ((name_found, start, stop),) = found(report)
            _, first, last = damage.place
            assert name_found == damage.kind, level
            if damage.kind in NO_END and damage.number == 4:
                assert (start, stop) == (first, None)
            elif damage.kind in IN_LOG:
                assert start is not None
                assert first <= start < last
            else:
                assert (start, stop) == (first, last)
            assert all(one.severity is Severity.ERROR for one in report.findings)
            loses = damage.kind in ("hole", "object-missing")
            assert report.exit_code == (3 if loses else 1)
    (part,) = report.partitions
    assert not part.is_whole
    assert part.digest is None or damage.kind not in LOST
