"""What is kept between audits: only what is new, changed or at fault is read; nothing that is kept
makes a report differ.
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
from tests.kts_source.auditing.test_audit_histories import without_harm
from tests.kts_source.planning.history import TOPIC as HISTORY_TOPIC
from tests.kts_source.planning.history import World, random_history
from tests.kts_source.planning.memory_store import MemoryStore

if TYPE_CHECKING:
    from kts_source.auditing.report import AuditReport
    from kts_source.store.object_store import ObjectInfo
    from segment_format.testing import SegmentFiles


class CountingStore(MemoryStore):
    """Counts reads by suffix; may end the audit after some."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.objects = objects
        self.read: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.limit: int | None = None
        self.versioned = True

    def head(self, key: str) -> ObjectInfo:
        version = hashlib.sha1(self.objects[key]).hexdigest() if self.versioned else None
        return replace(super().head(key), version=version)

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        if self.limit is not None and sum(self.read.values()) >= self.limit:
            raise KeyboardInterrupt
        self.read[key.rpartition(".")[2]] += 1
        self.keys.add(key)
        version = version if self.versioned else None
        return super().get_range(key, start, stop, version=version)


def store_of(segments: list[SegmentFiles]) -> CountingStore:
    found: dict[str, bytes] = {}
    writer = AivenTierWriter(
        found,
        topic=TOPIC,
        topic_id=TOPIC_ID,
        chunk_size=512,
        random_bytes=random.Random(5).randbytes,
    )
    for one in segments:
        writer.write_segment(one)
    return CountingStore(found)


def audited(store: CountingStore, state: Path | None, level: str = "bytes") -> AuditReport:
    options = {"path": "memory://", "subscribe": TOPIC}
    kept = None if state is None else str(state)
    store.read.clear()
    store.keys.clear()
    return kts_source.audit(options, level=level, store=store, now_ms=NOW_MS, state=kept)


@pytest.mark.parametrize("level", LEVELS)
def test_what_was_proven_is_not_read_again(level: str, tmp_path: Path) -> None:
    store, state = store_of(healthy_segments()), tmp_path / "state"
    first = audited(store, state, level)
    assert bool(store.read) == (level != "listing")
    assert audited(store, state, level) == first
    assert not store.read
    assert audited(store, None, level) == first


def test_a_lower_level_is_proven_too(tmp_path: Path) -> None:
    store, state = store_of(healthy_segments()), tmp_path / "state"
    audited(store, state, "bytes")
    for level in LEVELS:
        assert audited(store, state, level) == audited(store, None, level)
        audited(store, state, level)
        assert not store.read
    # And the proof of the bytes was not lost over it.
    audited(store, state, "bytes")
    assert not store.read


def test_a_higher_level_reads_what_it_lacks(tmp_path: Path) -> None:
    store, state = store_of(healthy_segments()), tmp_path / "state"
    audited(store, state, "metadata")
    assert store.read == {"rsm-manifest": 5, "indexes": 5}
    report = audited(store, state, "bytes")
    assert not store.read["rsm-manifest"]
    assert store.read["log"]
    assert report == audited(store, None)


def test_only_new_segments_are_read(tmp_path: Path) -> None:
    whole, state = store_of(healthy_segments()), tmp_path / "state"
    store = CountingStore({})
    for number in range(len(BASES)):
        for key, data in whole.objects.items():
            if f"/{BASES[number]:020d}-" in key:
                store.objects[key] = data
        report = audited(store, state)
        assert {key for key in store.keys if f"/{BASES[number]:020d}-" not in key} == set()
        assert report == audited(store, None)
    # As retention deletes, nothing is read but what a transaction from before reaches into.
    for number in range(len(BASES) - 1):
        for key in [key for key in store.objects if f"/{BASES[number]:020d}-" in key]:
            del store.objects[key]
        report = audited(store, state)
        assert not store.read
        assert report == audited(store, None)


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_a_changed_object_is_read_again(suffix: str, tmp_path: Path) -> None:
    store, state = store_of(healthy_segments()), tmp_path / "state"
    assert not audited(store, state).errors
    (key,) = (k for k in store.objects if f"/{BASES[2]:020d}-" in k and k.endswith(suffix))
    sound = store.objects[key]
    at = 0 if suffix == "rsm-manifest" else len(sound) - 9
    store.objects[key] = sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :]
    report = audited(store, state)
    assert report.errors
    assert report == audited(store, None)
    assert report == audited(store, state)  # a fault is looked at each time
    assert key in store.keys
    store.objects[key] = sound
    assert not audited(store, state).errors


def test_an_audit_that_was_killed_goes_on(tmp_path: Path) -> None:
    segments = healthy_segments()
    expected = audited(store_of(segments), None)
    total = sum(store.read.values()) if (store := _read_all(segments)) else 0
    for limit in range(1, total, 7):
        store, state = store_of(segments), tmp_path / f"state {limit}"
        store.limit = limit
        with pytest.raises(KeyboardInterrupt):
            audited(store, state)
        store.limit = None
        proven = AuditStateView(state).logs
        assert audited(store, state) == expected
        read = {key for key in store.keys if key.endswith(".log")}
        assert len(read) == len(BASES) - proven
    assert proven >= 3


def _read_all(segments: list[SegmentFiles]) -> CountingStore:
    store = store_of(segments)
    audited(store, None)
    return store


class AuditStateView:
    """What a state says in its lines."""

    def __init__(self, path: Path) -> None:
        lines = [line.split("\t") for line in path.read_text().splitlines()]
        newest = {line[3]: line[5] for line in lines if line[1] == "S"}
        self.logs = sum(not text.endswith(",null]") for text in newest.values())


def test_lines_that_are_cut_or_damaged_do_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, state = store_of(healthy_segments()), tmp_path / "state"
    expected = audited(store, state)
    whole = state.read_bytes()
    rng = random.Random(2)
    for _ in range(60):
        data = bytearray(whole)
        at = rng.randrange(whole.index(b"\n") + 1, len(data))
        if rng.random() < 0.5:
            data[at] ^= 1 << rng.randrange(8)
        else:
            del data[at:]
        state.write_bytes(data)
        assert audited(store, state) == expected
        assert audited(store, state) == expected
        assert not store.read
    assert "truncated or damaged" in caplog.text


def test_objects_without_versions_are_read_each_time(tmp_path: Path) -> None:
    store, state = store_of(healthy_segments()), tmp_path / "state"
    store.versioned = False
    first = audited(store, state)
    assert audited(store, state) == first
    assert store.read["log"]


def test_the_file_is_the_users_own(tmp_path: Path) -> None:
    state = tmp_path / "state"
    audited(store_of(healthy_segments()), state)
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    link = tmp_path / "link"
    link.symlink_to(state)
    with pytest.raises(InvalidOptionError, match="cannot be opened"):
        audited(store_of(healthy_segments()), link)
    with pytest.raises(InvalidOptionError, match="cannot be opened"):
        audited(store_of(healthy_segments()), tmp_path / "no folder" / "state")


def test_what_is_no_state_or_of_another_tier_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, state = store_of(healthy_segments()), tmp_path / "state"
    state.write_text("my notes\n")
    with pytest.raises(InvalidOptionError, match="not the state of an audit"):
        audited(store, state)
    assert state.read_text() == "my notes\n"
    state.unlink()
    AuditState(str(state), "another").__exit__(None, None, None)
    with pytest.raises(InvalidOptionError, match="of another tier"):
        audited(store, state)
    state.unlink()
    expected = audited(store, state)
    caplog.clear()
    state.write_bytes(state.read_bytes().replace(VERSION.encode(), b"kts-audit-state 1"))
    with caplog.at_level(logging.WARNING):
        assert audited(store, state) == expected
    assert "another version" in caplog.text
    assert store.read["log"]
    audited(store, state)
    assert not store.read


def test_one_audit_at_a_time(tmp_path: Path) -> None:
    store, state = store_of(healthy_segments()), tmp_path / "state"
    with (
        AuditState(str(state), "x"),
        pytest.raises(InvalidOptionError, match="another audit uses"),
    ):
        audited(store, state)


def test_the_file_does_not_grow_without_end(tmp_path: Path) -> None:
    store, state = store_of(healthy_segments()), tmp_path / "state"
    manifests = [key for key in store.objects if key.endswith("manifest")]
    sizes = []
    for number in range(20):
        store.objects[manifests[number % 5]] += b" "  # another version, which says the same
        assert not audited(store, state).findings
        sizes.append(state.stat().st_size)
    assert max(sizes) < 3 * sizes[0]
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [state]
    assert not audited(store, state).findings
    assert not store.read


def test_a_key_that_is_gone_is_missed(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments(), encryption=encryption())
    options = {"path": str(tier.root), "subscribe": TOPIC}
    key = {"encryption.key.pairs.key1.private.key.file": str(KEYS / "key1.private.pem")}
    state = str(tmp_path / "state")
    for _ in range(2):
        report = kts_source.audit({**options, **key}, level="bytes", now_ms=NOW_MS, state=state)
        assert not report.errors
    assert "PRIVATE" not in Path(state).read_text()
    report = kts_source.audit(options, level="bytes", now_ms=NOW_MS, state=state)
    assert [one.name for one in report.errors] == ["key-missing"]


def audited_history(store: CountingStore, state: str | None) -> AuditReport | str:
    options = {"path": "memory://", "subscribe": HISTORY_TOPIC}
    try:
        return kts_source.audit(options, level="bytes", store=store, now_ms=NOW_MS, state=state)
    except TieredKafkaError as error:
        return str(error)


def test_histories_step_by_step(tmp_path: Path) -> None:
    """Every audit of a tier in use says the same with a state as without one."""
    spared = compared = 0
    for seed in range(12):
        history = random_history(random.Random(f"state {seed}"))
        history = history if seed % 3 else without_harm(history)
        history = replace(history, shape=replace(history.shape, local=False))
        steps = len(history.steps)
        for count in range(max(1, steps // 3), steps + 1, max(1, steps // 6)):
            world = World(replace(history, steps=history.steps[:count]))
            plain, stateful = CountingStore(world.store), CountingStore(world.store)
            expected = audited_history(plain, None)
            assert audited_history(stateful, str(tmp_path / f"{seed}")) == expected
            spared += sum(plain.read.values()) - sum(stateful.read.values())
            compared += 1
    assert compared > 40
    assert spared > 100
