"""Tests audits of stores that change during the audit, refuse access, or contain archived
objects.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.auditing.report import LEVELS
from kts_source.errors import AccessDeniedError, ObjectChangedError, ObjectNotFoundError
from segment_format.testing import AivenTierWriter
from tests.kts_source.auditing.damaged_tier import (
    NOW_MS,
    STOP,
    TOPIC,
    TOPIC_ID,
    healthy_segments,
    write_tier,
)
from tests.kts_source.planning.memory_store import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.auditing.report import AuditReport
    from kts_source.errors import StoreError
    from kts_source.store.object_store import ObjectInfo


def objects() -> dict[str, bytes]:
    written: dict[str, bytes] = {}
    writer = AivenTierWriter(written, topic=TOPIC, topic_id=TOPIC_ID, chunk_size=512)
    for segment in healthy_segments():
        writer.write_segment(segment)
    return written


class FailingStore(MemoryStore):
    """Store in which reading one object raises `error`, or in which this object has the storage
    class `storage_class`. The object has the suffix `suffix` and belongs to the segment with
    base offset `base`.
    """

    def __init__(
        self,
        suffix: str,
        error: type[StoreError] | None = None,
        storage_class: str | None = None,
        base: int = 82,
    ) -> None:
        super().__init__(objects())
        self._name = f"/{base:020d}-", f".{suffix}"
        self._error = error
        self._storage_class = storage_class
        self.read: list[str] = []

    def head(self, key: str) -> ObjectInfo:
        info = super().head(key)
        return replace(info, storage_class=self._storage_class) if self._is_of(key) else info

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        self.read.append(key)
        if self._is_of(key) and self._error is not None:
            raise self._error("no", uri=self.uri(key))
        return super().get_range(key, start, stop, version=version)

    def _is_of(self, key: str) -> bool:
        return self._name[0] in key and key.endswith(self._name[1])


def run_audit(store: MemoryStore, level: str = "bytes") -> AuditReport:
    options = {"path": "memory://", "subscribe": TOPIC}
    return kts_source.audit(options, level=level, store=store, now_ms=NOW_MS)


@pytest.mark.parametrize("error", [ObjectNotFoundError, ObjectChangedError])
@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_object_deleted_or_changed_during_audit_is_reported(
    suffix: str, error: type[StoreError]
) -> None:
    report = run_audit(FailingStore(suffix, error))
    (finding,) = report.findings
    assert (finding.name, finding.start, finding.stop) == ("object-gone", 82, 123)
    assert report.exit_code == 1
    assert not report.partitions[0].is_whole


def test_denied_access_raises_access_denied_error() -> None:
    for suffix in ("log", "indexes", "rsm-manifest"):
        with pytest.raises(AccessDeniedError):
            run_audit(FailingStore(suffix, AccessDeniedError))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_archived_objects_are_reported_and_not_read(suffix: str, level: str) -> None:
    store = FailingStore(suffix, storage_class="GLACIER")
    report = run_audit(store, level)
    (finding,) = report.findings
    assert (finding.name, finding.start, len(finding.objects)) == ("archived", 82, 1)
    assert finding.objects[0] not in store.read
    assert report.exit_code == 1
    (statement,) = report.partitions
    assert statement.digest is None
    if level != "listing":
        assert (statement.start, statement.stop) == (0, STOP)


def test_audit_of_level_listing_reads_no_object() -> None:
    store = FailingStore("log")
    run_audit(store, "listing")
    assert store.read == []
    run_audit(store, "metadata")
    assert not any(key.endswith(".log") for key in store.read)
    # The audit reads two ranges per segment: the manifest, and all side files together.
    assert len(store.read) == 2 * 5


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(("suffix", "name"), [("log", "crc"), ("indexes", "snapshot-invalid")])
def test_audit_ignores_cached_bytes_and_finds_damage_in_the_store(
    tmp_path: Path, suffix: str, name: str, jobs: int
) -> None:
    tier, cache = tmp_path / "tier", tmp_path / "cache"
    cache.mkdir(mode=0o700)
    write_tier(tier, healthy_segments())
    options = {"path": str(tier), "subscribe": TOPIC}
    cached = {**options, "cacheDir": str(cache), "chunkCacheBytes": "1g"}
    kts_source.scan({**cached, "isolationLevel": "read_committed"}).to_table()
    assert kts_source.audit(cached, level="bytes", jobs=jobs).findings == ()
    damaged = sorted(tier.rglob(f"*.{suffix}"))[-1]
    stat, data = damaged.stat(), bytearray(damaged.read_bytes())
    manifest = json.loads(damaged.with_suffix(".rsm-manifest").read_text())
    snapshot = manifest["segmentIndexes"]["producerSnapshot"]
    data[100 if suffix == "log" else snapshot["position"] + 7] ^= 1
    damaged.write_bytes(data)
    os.utime(damaged, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the store sees the same version
    report = kts_source.audit(cached, level="bytes", jobs=jobs)
    assert [error.name for error in report.errors] == [name]
