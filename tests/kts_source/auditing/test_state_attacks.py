"""Tests that an audit with a state file reports the same as an audit without one.

Between the audits, the tier or the state file is changed on purpose.
"""

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
from tests.kts_source.auditing.test_state import CountingStore, write_store
from tests.quick import only

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.auditing.report import AuditReport
    from kts_source.store.object_store import ObjectInfo


class ForgedStore(CountingStore):
    """Store in which tests can replace the version and the storage class of each object."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.versions: dict[str, str | None] = {}
        self.classes: dict[str, str] = {}

    def head(self, key: str) -> ObjectInfo:
        info = super().head(key)
        version = self.versions.get(key, info.version)
        return replace(info, version=version, storage_class=self.classes.get(key))


def run_audit(
    store: CountingStore,
    state: Path | None,
    *,
    level: str = "bytes",
    now_ms: int = NOW_MS,
    extra_options: dict[str, str] | None = None,
) -> AuditReport:
    options = {"path": "memory://", "subscribe": TOPIC, **(extra_options or {})}
    state_path = None if state is None else str(state)
    store.read.clear()
    store.keys.clear()
    return kts_source.audit(options, level=level, store=store, now_ms=now_ms, state=state_path)


def test_topic_folder_copied_under_another_topic_name_is_reported(tmp_path: Path) -> None:
    store, state = write_store(healthy_segments()), tmp_path / "state"
    assert not run_audit(store, state).findings
    for key, data in list(store.objects.items()):
        store.objects[f"u{key.removeprefix(TOPIC)}"] = data
    expected = run_audit(store, None, extra_options={"subscribe": "t,u"})
    assert {finding.name for finding in expected.findings} == {"manifest-foreign"}
    for _ in range(2):
        assert run_audit(store, state, extra_options={"subscribe": "t,u"}) == expected


def test_audit_with_state_and_wrong_private_key_reports_missing_key(tmp_path: Path) -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem, info = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    other = tmp_path / "other.pem"
    form = serialization.PrivateFormat.PKCS8
    other.write_bytes(private.private_bytes(pem, form, serialization.NoEncryption()))
    public = private.public_key().public_bytes(pem, info)
    objects: dict[str, bytes] = {}
    for key, segments in (
        (encryption(), healthy_segments()[:2]),
        (EncryptionKey("key1", public), healthy_segments()[2:]),
    ):
        rng = random.Random(len(segments))
        writer = AivenTierWriter(
            objects,
            topic=TOPIC,
            topic_id=TOPIC_ID,
            chunk_size=512,
            encryption=key,
            random_bytes=rng.randbytes,
        )
        for segment in segments:
            writer.write_segment(segment)
    store, state = CountingStore(objects), tmp_path / "state"
    option = "encryption.key.pairs.key1.private.key.file"
    for level in ("metadata", "bytes"):
        for path in (KEYS / "key1.private.pem", other) * 2:
            report = run_audit(store, state, level=level, extra_options={option: str(path)})
            assert report == run_audit(store, None, level=level, extra_options={option: str(path)})
            assert "key-missing" in {error.name for error in report.errors}
    assert "PRIVATE" not in state.read_text()


def test_clock_that_was_set_back_is_reported(tmp_path: Path) -> None:
    store, state = write_store(healthy_segments()), tmp_path / "state"
    assert not run_audit(store, state).findings
    report = run_audit(store, state, now_ms=1)
    assert {finding.name for finding in report.findings} == {"clock"}
    assert not run_audit(store, state).findings
    assert not store.read


def rewrite(state: Path, change: dict[str, str]) -> None:
    """Replaces texts in the segment lines of a state file and updates the checksums of these lines.
    Removes the partition lines. `change` maps each text to its replacement.
    """
    head, *lines = state.read_text().splitlines()
    kept = [head + "\n"]
    for line in lines:
        text = line[9:]
        for old, new in change.items():
            text = text.replace(old, new)
        if text.startswith("S"):
            kept.append(_with_checksum(text))
    state.write_text("".join(kept))


def test_audit_removes_proof_from_state_if_segment_is_damaged(tmp_path: Path) -> None:
    # The store returns wrong bytes for a segment whose object versions are unchanged. The audit
    # reads the segment again because its served offsets differ from those in the proof.
    objects = write_store(healthy_segments()).objects
    store, state = ForgedStore(objects), tmp_path / "state"
    expected = run_audit(store, state)
    sound = state.read_bytes()
    (key,) = (key for key in objects if "/00000000000000000123-" in key and key.endswith("log"))
    data = objects[key]
    store.versions[key] = hashlib.sha1(data).hexdigest()
    objects[key] = data[:-1] + bytes([data[-1] ^ 1])
    rewrite(state, {"[123,163,": "[124,163,"})
    assert state.read_bytes() != sound
    for _ in range(2):
        assert [finding.name for finding in run_audit(store, state).findings] == ["crc"]
        assert key in store.keys
    rewrite(state, {"[124,163,": "[123,163,"})  # the proven offsets again
    assert [finding.name for finding in run_audit(store, state).findings] == ["crc"]
    objects[key] = data
    assert run_audit(store, state) == expected
    assert key in store.keys


def test_state_with_truncated_header_is_ignored(tmp_path: Path) -> None:
    store, state = write_store(healthy_segments()), tmp_path / "state"
    expected = run_audit(store, state, level="metadata")
    head = state.read_bytes().partition(b"\n")[0]
    for size in range(len(head) + 1):
        state.write_bytes(head[:size])
        assert run_audit(store, state, level="metadata") == expected
        assert store.read
        assert run_audit(store, state, level="metadata") == expected
        assert not store.read
    state.write_bytes(b"x" + head[9:])
    with pytest.raises(InvalidOptionError, match="not the state"):
        run_audit(store, state)


def test_concatenated_state_files_are_ignored_or_refused(tmp_path: Path) -> None:
    # The second state belongs to a replica with the same segment ids and object versions.
    store, state = write_store(healthy_segments()), tmp_path / "state"
    run_audit(store, state)
    text = state.read_text()
    other = tmp_path / "other"
    with AuditState(str(other), "another"):
        head = other.read_text()
    state.write_text(text.splitlines()[0] + "\n" + head + text.partition("\n")[2])
    run_audit(store, state)
    assert store.read["log"] >= 5
    state.write_text(head + text)
    with pytest.raises(InvalidOptionError, match="belongs to tier"):
        run_audit(store, state)
    state.write_text(text + text)
    run_audit(store, state)
    assert not store.read


@pytest.mark.parametrize("is_continued", [False, True])
def test_state_does_not_change_report_about_transaction_below_log_start(
    is_continued: bool, tmp_path: Path
) -> None:
    # The index need not contain an aborted transaction whose records were all deleted. The state
    # still contains these records, but must not change the report.
    builder = LogBuilder()
    builder.send(7, [SimpleRecord(b"first")])
    builder.roll()
    builder.append([SimpleRecord(b"between")])
    if is_continued:
        builder.send(7, [SimpleRecord(b"second")])
    builder.roll()
    builder.abort(7)
    builder.roll()
    first, between, last = builder.build().segments
    store, state = write_store([first, between]), tmp_path / "state"
    run_audit(store, state)
    bad = write_store([first, between, replace(last, txnindex=None)]).objects
    store.objects.update(
        {key: data for key, data in bad.items() if f"/{last.base_offset:020d}-" in key}
    )
    for key in [key for key in store.objects if f"/{0:020d}-" in key]:
        del store.objects[key]
    expected = run_audit(store, None)
    assert {error.name for error in expected.errors} == (
        {"aborted-not-indexed"} if is_continued else set()
    )
    assert run_audit(store, state) == expected
    assert not {key for key in store.keys if f"/{1:020d}-" in key}


class Adversary:
    """Randomly changes the objects of a tier, and the lines of the state file of its audits."""

    def __init__(self, seed: str, state: Path) -> None:
        self.rng = random.Random(seed)
        self.store = ForgedStore(dict(write_store(healthy_segments()).objects))
        self.sound = dict(self.store.objects)
        self.state = state

    def harm_tier(self) -> None:
        store, rng = self.store, self.rng
        key = rng.choice(sorted(self.sound))
        before = store.objects.get(key)
        action = rng.randrange(8)
        if action == 0 or before is None:
            store.objects[key] = self.sound[key]
        elif action == 1:
            del store.objects[key]
        elif action == 2:
            position = rng.randrange(len(before))
            store.objects[key] = (
                before[:position] + bytes([before[position] ^ 1]) + before[position + 1 :]
            )
        elif action == 3 and before:  # another size under the same version
            store.versions[key] = store.head(key).version
            store.objects[key] = before[:-1] or b"xx"
        elif action == 4:
            store.classes[key] = rng.choice(["GLACIER", "STANDARD", "DEEP_ARCHIVE"])
        elif action == 5:
            store.classes.pop(key, None)
            store.versions.pop(key, None)
        elif action == 6:
            store.versions[key] = None
        else:  # replace with the object of another segment
            suffix = key.rpartition(".")[2]
            others = [name for name in sorted(self.sound) if name.endswith(suffix)]
            store.objects[key] = self.sound[rng.choice(others)]
        if rng.random() < 0.3:
            store.objects.update(self.sound)
            store.versions.clear()

    def harm_state(self) -> None:
        rng = self.rng
        if not self.state.exists() or rng.random() < 0.5:
            return
        head, *lines = self.state.read_text().splitlines(keepends=True)
        action = rng.randrange(5)
        if action == 0:
            rng.shuffle(lines)
        elif action == 1:
            lines += rng.choices(lines, k=3) if lines else []
        elif action == 2 and lines:
            del lines[rng.randrange(len(lines))]
        elif action == 3 and lines:
            line = rng.randrange(len(lines))
            lines[line] = lines[line][: rng.randrange(len(lines[line]))]
        else:
            lines.reverse()
        self.state.write_text(head + "".join(lines))


def compare_audits(seed: str, state: Path, rounds: int = 12) -> int:
    """Repeatedly changes a tier and its state file, and audits the tier with and without the state
    file.

    Asserts that both reports are equal. Returns how many reads the state file saved.
    """
    saved_reads = 0
    adversary = Adversary(seed, state)
    rng, store = adversary.rng, adversary.store
    for _ in range(rounds):
        for _ in range(rng.randrange(3)):
            adversary.harm_tier()
        adversary.harm_state()
        level = rng.choice([*LEVELS, "bytes"])
        if rng.random() < 0.2:  # interrupt an audit
            store.limit = rng.randrange(1, 20)
            try:
                run_audit(store, state, level=level)
            except KeyboardInterrupt:
                pass
            finally:
                store.limit = None
        expected = run_audit(store, None, level=level)
        saved_reads += sum(store.read.values())
        assert run_audit(store, state, level=level) == expected, seed
        saved_reads -= sum(store.read.values())
    return saved_reads


@pytest.mark.parametrize("seeds", only(1, [range(5), range(5, 15)]))
def test_state_does_not_change_audit_reports_of_randomly_changed_tiers(
    tmp_path: Path, seeds: range
) -> None:
    saved = sum(compare_audits(f"mischief {seed}", tmp_path / f"{seed}") for seed in seeds)
    assert saved > 33 * len(seeds)
