"""Whatever happens to a tier and to the file of a state, an audit says what it says without one."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import kts_source
from kts_source.auditing.report import LEVELS
from kts_source.auditing.state import AuditState, _with_checksum
from kts_source.errors import InvalidOptionError
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from segment_format.testing.tiers import EncryptionKey
from tests.golden_data import KEYS
from tests.kts_source.auditing.damaged_tier import (
    NOW_MS,
    TOPIC,
    TOPIC_ID,
    encryption,
    healthy_segments,
)
from tests.kts_source.auditing.test_state import CountingStore, store_of

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.auditing.report import AuditReport
    from kts_source.store.object_store import ObjectInfo


class ToldStore(CountingStore):
    """Tells versions and storage classes as the test says; those of other objects as usual."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.versions: dict[str, str | None] = {}
        self.classes: dict[str, str] = {}

    def head(self, key: str) -> ObjectInfo:
        found = super().head(key)
        version = self.versions.get(key, found.version)
        return replace(found, version=version, storage_class=self.classes.get(key))


def audited(
    store: CountingStore,
    state: Path | None,
    *,
    level: str = "bytes",
    now_ms: int = NOW_MS,
    more: dict[str, str] | None = None,
) -> AuditReport:
    options = {"path": "memory://", "subscribe": TOPIC, **(more or {})}
    kept = None if state is None else str(state)
    store.read.clear()
    store.keys.clear()
    return kts_source.audit(options, level=level, store=store, now_ms=now_ms, state=kept)


def test_a_folder_that_was_copied_for_another_topic(tmp_path: Path) -> None:
    store, state = store_of(healthy_segments()), tmp_path / "state"
    assert not audited(store, state).findings
    for key, data in list(store.objects.items()):
        store.objects[f"u{key.removeprefix(TOPIC)}"] = data
    expected = audited(store, None, more={"subscribe": "t,u"})
    assert {one.name for one in expected.findings} == {"manifest-foreign"}
    for _ in range(2):
        assert audited(store, state, more={"subscribe": "t,u"}) == expected


def test_another_private_key_of_the_same_id(tmp_path: Path) -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem, info = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    other = tmp_path / "other.pem"
    form = serialization.PrivateFormat.PKCS8
    other.write_bytes(private.private_bytes(pem, form, serialization.NoEncryption()))
    public = private.public_key().public_bytes(pem, info)
    objects: dict[str, bytes] = {}
    for key, part in (
        (encryption(), healthy_segments()[:2]),
        (EncryptionKey("key1", public), healthy_segments()[2:]),
    ):
        rng = random.Random(len(part))
        writer = AivenTierWriter(
            objects,
            topic=TOPIC,
            topic_id=TOPIC_ID,
            chunk_size=512,
            encryption=key,
            random_bytes=rng.randbytes,
        )
        for one in part:
            writer.write_segment(one)
    store, state = CountingStore(objects), tmp_path / "state"
    option = "encryption.key.pairs.key1.private.key.file"
    for level in ("metadata", "bytes"):
        for path in (KEYS / "key1.private.pem", other) * 2:
            report = audited(store, state, level=level, more={option: str(path)})
            assert report == audited(store, None, level=level, more={option: str(path)})
            assert "key-missing" in {one.name for one in report.errors}
    assert "PRIVATE" not in state.read_text()


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    store, state = store_of(healthy_segments()), tmp_path / "state"
    assert not audited(store, state).findings
    report = audited(store, state, now_ms=1)
    assert {one.name for one in report.findings} == {"clock"}
    assert not audited(store, state).findings
    assert not store.read


def rewritten(state: Path, change: dict[str, str]) -> None:
    """The lines of segments with texts changed; those of partitions are taken away."""
    head, *lines = state.read_text().splitlines()
    kept = [head + "\n"]
    for line in lines:
        text = line[9:]
        for old, new in change.items():
            text = text.replace(old, new)
        if text.startswith("S"):
            kept.append(_with_checksum(text))
    state.write_text("".join(kept))


def test_what_is_at_fault_now_is_not_proven_any_more(tmp_path: Path) -> None:
    # A disk that gives wrong bytes once, in a segment that must be read again though its objects
    # are the same: what it serves is not what it did.
    objects = store_of(healthy_segments()).objects
    store, state = ToldStore(objects), tmp_path / "state"
    expected = audited(store, state)
    sound = state.read_bytes()
    (key,) = (key for key in objects if "/00000000000000000123-" in key and key.endswith("log"))
    data = objects[key]
    store.versions[key] = hashlib.sha1(data).hexdigest()
    objects[key] = data[:-1] + bytes([data[-1] ^ 1])
    rewritten(state, {"[123,163,": "[124,163,"})
    assert state.read_bytes() != sound
    for _ in range(2):
        assert [one.name for one in audited(store, state).findings] == ["crc"]
        assert key in store.keys
    rewritten(state, {"[124,163,": "[123,163,"})  # serves again what it did
    assert [one.name for one in audited(store, state).findings] == ["crc"]
    objects[key] = data
    assert audited(store, state) == expected
    assert key in store.keys


def test_a_file_of_which_the_first_line_is_cut(tmp_path: Path) -> None:
    store, state = store_of(healthy_segments()), tmp_path / "state"
    expected = audited(store, state, level="metadata")
    head = state.read_bytes().partition(b"\n")[0]
    for size in range(len(head) + 1):
        state.write_bytes(head[:size])
        assert audited(store, state, level="metadata") == expected
        assert store.read
        assert audited(store, state, level="metadata") == expected
        assert not store.read
    state.write_bytes(b"x" + head[9:])
    with pytest.raises(InvalidOptionError, match="not the state"):
        audited(store, state)


def test_files_that_were_put_together(tmp_path: Path) -> None:
    # Of a replica with the same ids and versions, of which the log is damaged here.
    store, state = store_of(healthy_segments()), tmp_path / "state"
    audited(store, state)
    text = state.read_text()
    other = tmp_path / "other"
    with AuditState(str(other), "another"):
        head = other.read_text()
    state.write_text(text.splitlines()[0] + "\n" + head + text.partition("\n")[2])
    audited(store, state)
    assert store.read["log"] >= 5
    state.write_text(head + text)
    with pytest.raises(InvalidOptionError, match="of another tier"):
        audited(store, state)
    state.write_text(text + text)
    audited(store, state)
    assert not store.read


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_from_below_the_log_start(goes_on: bool, tmp_path: Path) -> None:
    # An abort of what is not served any more was missed in the index by the audit that had seen it.
    builder = LogBuilder()
    builder.send(7, [SimpleRecord(b"first")])
    builder.roll()
    builder.append([SimpleRecord(b"between")])
    if goes_on:
        builder.send(7, [SimpleRecord(b"second")])
    builder.roll()
    builder.abort(7)
    builder.roll()
    first, between, last = builder.build().segments
    store, state = store_of([first, between]), tmp_path / "state"
    audited(store, state)
    bad = store_of([first, between, replace(last, txnindex=None)]).objects
    store.objects.update(
        {key: data for key, data in bad.items() if f"/{last.base_offset:020d}-" in key}
    )
    for key in [key for key in store.objects if f"/{0:020d}-" in key]:
        del store.objects[key]
    expected = audited(store, None)
    assert {one.name for one in expected.errors} == ({"aborted-not-indexed"} if goes_on else set())
    assert audited(store, state) == expected
    assert not {key for key in store.keys if f"/{1:020d}-" in key}


class Adversary:
    """Random mischief to a tier and to the state of its audits."""

    def __init__(self, seed: str, state: Path) -> None:
        self.rng = random.Random(seed)
        self.store = ToldStore(dict(store_of(healthy_segments()).objects))
        self.sound = dict(self.store.objects)
        self.state = state

    def harm_tier(self) -> None:
        store, rng = self.store, self.rng
        key = rng.choice(sorted(self.sound))
        before = store.objects.get(key)
        what = rng.randrange(8)
        if what == 0 or before is None:
            store.objects[key] = self.sound[key]
        elif what == 1:
            del store.objects[key]
        elif what == 2:
            at = rng.randrange(len(before))
            store.objects[key] = before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :]
        elif what == 3 and before:  # another size under the same version
            store.versions[key] = store.head(key).version
            store.objects[key] = before[:-1] or b"xx"
        elif what == 4:
            store.classes[key] = rng.choice(["GLACIER", "STANDARD", "DEEP_ARCHIVE"])
        elif what == 5:
            store.classes.pop(key, None)
            store.versions.pop(key, None)
        elif what == 6:
            store.versions[key] = None
        else:  # the object of another segment
            suffix = key.rpartition(".")[2]
            other = rng.choice([one for one in sorted(self.sound) if one.endswith(suffix)])
            store.objects[key] = self.sound[other]
        if rng.random() < 0.3:
            store.objects.update(self.sound)
            store.versions.clear()

    def harm_state(self) -> None:
        rng = self.rng
        if not self.state.exists() or rng.random() < 0.5:
            return
        head, *lines = self.state.read_text().splitlines(keepends=True)
        what = rng.randrange(5)
        if what == 0:
            rng.shuffle(lines)
        elif what == 1:
            lines += rng.choices(lines, k=3) if lines else []
        elif what == 2 and lines:
            del lines[rng.randrange(len(lines))]
        elif what == 3 and lines:
            at = rng.randrange(len(lines))
            lines[at] = lines[at][: rng.randrange(len(lines[at]))]
        else:
            lines.reverse()
        self.state.write_text(head + "".join(lines))


def play(seed: str, state: Path, rounds: int = 12) -> int:
    """Reads that were spared."""
    spared = 0
    adversary = Adversary(seed, state)
    rng, store = adversary.rng, adversary.store
    for _ in range(rounds):
        for _ in range(rng.randrange(3)):
            adversary.harm_tier()
        adversary.harm_state()
        level = rng.choice([*LEVELS, "bytes"])
        if rng.random() < 0.2:  # killed
            store.limit = rng.randrange(1, 20)
            try:
                audited(store, state, level=level)
            except KeyboardInterrupt:
                pass
            finally:
                store.limit = None
        expected = audited(store, None, level=level)
        spared += sum(store.read.values())
        assert audited(store, state, level=level) == expected, seed
        spared -= sum(store.read.values())
    return spared


def test_mischief(tmp_path: Path) -> None:
    assert sum(play(f"mischief {seed}", tmp_path / f"{seed}") for seed in range(15)) > 500
