"""Tests audits with a state file.

Such an audit reads only objects that are new, changed or damaged. It must return the same report as
an audit without a state file.
"""

from __future__ import annotations

import hashlib
import logging
import random
import stat
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.auditing.report import LEVELS
from kts_source.auditing.state import VERSION, AuditState
from kts_source.errors import InvalidOptionError, TieredKafkaError
from segment_format.testing import AivenTierWriter
from tests.golden_data import KEYS
from tests.kts_source.auditing.damaged_tier import (
    BASES,
    NOW_MS,
    TOPIC,
    TOPIC_ID,
    encryption,
    healthy_segments,
    write_tier,
)
from tests.kts_source.auditing.test_audit_histories import without_damage
from tests.kts_source.planning.history import TOPIC as HISTORY_TOPIC
from tests.kts_source.planning.history import World, random_history
from tests.kts_source.planning.memory_store import MemoryStore
from tests.quick import only

if TYPE_CHECKING:
    from kts_source.auditing.report import AuditReport
    from kts_source.store.object_store import ObjectInfo
    from segment_format.testing import SegmentFiles


class CountingStore(MemoryStore):
    """Store that counts reads by object suffix.

    If `limit` is set, interrupts the audit after this number of reads. If `versioned` is false,
    objects have no version.
    """

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.objects = objects
        self.read: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.limit: int | None = None
        self.versioned = True

    def head(self, key: str) -> ObjectInfo:
        info = super().head(key)
        version = hashlib.sha1(self.objects[key]).hexdigest() if self.versioned else None
        return replace(info, version=version)

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        if self.limit is not None and sum(self.read.values()) >= self.limit:
            raise KeyboardInterrupt
        self.read[key.rpartition(".")[2]] += 1
        self.keys.add(key)
        version = version if self.versioned else None
        return super().get_range(key, start, stop, version=version)


def write_store(segments: list[SegmentFiles]) -> CountingStore:
    objects: dict[str, bytes] = {}
    writer = AivenTierWriter(
        objects,
        topic=TOPIC,
        topic_id=TOPIC_ID,
        chunk_size=512,
        random_bytes=random.Random(5).randbytes,
    )
    for segment in segments:
        writer.write_segment(segment)
    return CountingStore(objects)


def run_audit(store: CountingStore, state: Path | None, level: str = "bytes") -> AuditReport:
    options = {"path": "memory://", "subscribe": TOPIC}
    state_path = None if state is None else str(state)
    store.read.clear()
    store.keys.clear()
    return kts_source.audit(options, level=level, store=store, now_ms=NOW_MS, state=state_path)


@pytest.mark.parametrize("level", LEVELS)
def test_audit_with_state_skips_proven_segments(level: str, tmp_path: Path) -> None:
    store, state = write_store(healthy_segments()), tmp_path / "state"
    first = run_audit(store, state, level)
    assert bool(store.read) == (level != "listing")
    assert run_audit(store, state, level) == first
    assert not store.read
    assert run_audit(store, None, level) == first


def test_audit_of_lower_level_uses_state_of_higher_level(tmp_path: Path) -> None:
    store, state = write_store(healthy_segments()), tmp_path / "state"
    run_audit(store, state, "bytes")
    for level in LEVELS:
        assert run_audit(store, state, level) == run_audit(store, None, level)
        run_audit(store, state, level)
        assert not store.read
    # An audit of a lower level does not remove the proofs of level `bytes` from the state.
    run_audit(store, state, "bytes")
    assert not store.read


def test_audit_with_state_of_lower_level_does_not_read_manifests_again(tmp_path: Path) -> None:
    store, state = write_store(healthy_segments()), tmp_path / "state"
    run_audit(store, state, "metadata")
    assert store.read == {"rsm-manifest": 5, "indexes": 5}
    report = run_audit(store, state, "bytes")
    assert not store.read["rsm-manifest"]
    assert store.read["log"]
    assert report == run_audit(store, None)


def test_audit_with_state_reads_only_new_segments(tmp_path: Path) -> None:
    full_store, state = write_store(healthy_segments()), tmp_path / "state"
    store = CountingStore({})
    for number in range(len(BASES)):
        for key, data in full_store.objects.items():
            if f"/{BASES[number]:020d}-" in key:
                store.objects[key] = data
        report = run_audit(store, state)
        assert {key for key in store.keys if f"/{BASES[number]:020d}-" not in key} == set()
        assert report == run_audit(store, None)
    # After retention deletes segments, no remaining segment is read again.
    for number in range(len(BASES) - 1):
        for key in [key for key in store.objects if f"/{BASES[number]:020d}-" in key]:
            del store.objects[key]
        report = run_audit(store, state)
        assert not store.read
        assert report == run_audit(store, None)


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_audit_with_state_reads_changed_object_again(suffix: str, tmp_path: Path) -> None:
    store, state = write_store(healthy_segments()), tmp_path / "state"
    assert not run_audit(store, state).errors
    (key,) = (k for k in store.objects if f"/{BASES[2]:020d}-" in k and k.endswith(suffix))
    sound = store.objects[key]
    position = 0 if suffix == "rsm-manifest" else len(sound) - 9
    store.objects[key] = sound[:position] + bytes([sound[position] ^ 4]) + sound[position + 1 :]
    report = run_audit(store, state)
    assert report.errors
    assert report == run_audit(store, None)
    assert report == run_audit(store, state)  # a damaged object is checked in each audit
    assert key in store.keys
    store.objects[key] = sound
    assert not run_audit(store, state).errors


def test_interrupted_audit_continues_from_its_state(tmp_path: Path) -> None:
    segments = healthy_segments()
    expected = run_audit(write_store(segments), None)
    total = sum(store.read.values()) if (store := _read_all(segments)) else 0
    for limit in range(1, total, 7):
        store, state = write_store(segments), tmp_path / f"state {limit}"
        store.limit = limit
        with pytest.raises(KeyboardInterrupt):
            run_audit(store, state)
        store.limit = None
        proven = AuditStateView(state).logs
        assert run_audit(store, state) == expected
        read = {key for key in store.keys if key.endswith(".log")}
        assert len(read) == len(BASES) - proven
    assert proven >= 3


def _read_all(segments: list[SegmentFiles]) -> CountingStore:
    store = write_store(segments)
    run_audit(store, None)
    return store


class AuditStateView:
    """Counts the logs with a proof in a state file. Audits that use the file do not read these
    logs.
    """

    def __init__(self, path: Path) -> None:
        lines = [line.split("\t") for line in path.read_text().splitlines()]
        newest = {line[3]: line[5] for line in lines if line[1] == "S"}
        self.logs = sum(not text.endswith(",null]") for text in newest.values())


def test_state_ignores_truncated_or_damaged_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, state = write_store(healthy_segments()), tmp_path / "state"
    expected = run_audit(store, state)
    content = state.read_bytes()
    rng = random.Random(2)
    for _ in range(60):
        data = bytearray(content)
        position = rng.randrange(content.index(b"\n") + 1, len(data))
        if rng.random() < 0.5:
            data[position] ^= 1 << rng.randrange(8)
        else:
            del data[position:]
        state.write_bytes(data)
        assert run_audit(store, state) == expected
        assert run_audit(store, state) == expected
        assert not store.read
    assert "truncated or damaged" in caplog.text


def test_audit_with_state_reads_objects_without_version_each_time(tmp_path: Path) -> None:
    store, state = write_store(healthy_segments()), tmp_path / "state"
    store.versioned = False
    first = run_audit(store, state)
    assert run_audit(store, state) == first
    assert store.read["log"]


def test_state_file_is_private_to_the_user(tmp_path: Path) -> None:
    state = tmp_path / "state"
    run_audit(write_store(healthy_segments()), state)
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    link = tmp_path / "link"
    link.symlink_to(state)
    with pytest.raises(InvalidOptionError, match="cannot be opened"):
        run_audit(write_store(healthy_segments()), link)
    with pytest.raises(InvalidOptionError, match="cannot be opened"):
        run_audit(write_store(healthy_segments()), tmp_path / "no folder" / "state")


def test_invalid_state_or_state_of_another_tier_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, state = write_store(healthy_segments()), tmp_path / "state"
    state.write_text("my notes\n")
    with pytest.raises(InvalidOptionError, match="not the state of an audit"):
        run_audit(store, state)
    assert state.read_text() == "my notes\n"
    state.unlink()
    AuditState(str(state), "another").__exit__(None, None, None)
    with pytest.raises(InvalidOptionError, match="belongs to tier"):
        run_audit(store, state)
    state.unlink()
    expected = run_audit(store, state)
    caplog.clear()
    state.write_bytes(state.read_bytes().replace(VERSION.encode(), b"kts-audit-state 1"))
    with caplog.at_level(logging.WARNING):
        assert run_audit(store, state) == expected
    assert "another version" in caplog.text
    assert store.read["log"]
    run_audit(store, state)
    assert not store.read


def test_state_in_use_by_another_audit_is_refused(tmp_path: Path) -> None:
    store, state = write_store(healthy_segments()), tmp_path / "state"
    with (
        AuditState(str(state), "x"),
        pytest.raises(InvalidOptionError, match="another audit uses"),
    ):
        run_audit(store, state)


def test_state_file_size_is_bounded(tmp_path: Path) -> None:
    store, state = write_store(healthy_segments()), tmp_path / "state"
    manifests = [key for key in store.objects if key.endswith("manifest")]
    sizes = []
    for number in range(20):
        store.objects[manifests[number % 5]] += b" "  # another version with the same content
        assert not run_audit(store, state).findings
        sizes.append(state.stat().st_size)
    assert max(sizes) < 3 * sizes[0]
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [state]
    assert not run_audit(store, state).findings
    assert not store.read


def test_audit_with_state_reports_a_missing_encryption_key(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments(), encryption=encryption())
    options = {"path": str(tier.root), "subscribe": TOPIC}
    key = {"encryption.key.pairs.key1.private.key.file": str(KEYS / "key1.private.pem")}
    state = str(tmp_path / "state")
    for _ in range(2):
        report = kts_source.audit({**options, **key}, level="bytes", now_ms=NOW_MS, state=state)
        assert not report.errors
    assert "PRIVATE" not in Path(state).read_text()
    report = kts_source.audit(options, level="bytes", now_ms=NOW_MS, state=state)
    assert [error.name for error in report.errors] == ["key-missing"]


def audit_history(store: CountingStore, state: str | None) -> AuditReport | str:
    options = {"path": "memory://", "subscribe": HISTORY_TOPIC}
    try:
        return kts_source.audit(options, level="bytes", store=store, now_ms=NOW_MS, state=state)
    except TieredKafkaError as error:
        return str(error)


@pytest.mark.parametrize("seeds", only(1, [range(4), range(12)]))
def test_state_does_not_change_audit_reports_of_random_histories(
    tmp_path: Path, seeds: range
) -> None:
    saved_reads = compared = 0
    for seed in seeds:
        history = random_history(random.Random(f"state {seed}"))
        history = history if seed % 3 else without_damage(history)
        history = replace(history, shape=replace(history.shape, local=False))
        steps = len(history.steps)
        for count in range(max(1, steps // 3), steps + 1, max(1, steps // 6)):
            world = World(replace(history, steps=history.steps[:count]))
            plain, stateful = CountingStore(world.store), CountingStore(world.store)
            expected = audit_history(plain, None)
            assert audit_history(stateful, str(tmp_path / f"{seed}")) == expected
            saved_reads += sum(plain.read.values()) - sum(stateful.read.values())
            compared += 1
    assert compared > 40 * len(seeds) // 12
    assert saved_reads > 100 * len(seeds) // 12
