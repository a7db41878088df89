"""Tests audits of tiers with topics that were restored with zero copy from Aiven's plugin: the new
topic id has copies of manifests, and its logs and indexes are in the folder of the old topic id.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.planning.metadata_topic import REMOTE_LOG_METADATA
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import empty_log, fake_log
from tests.kts_source.restore.world import SMALL_LOG, serving_cluster, write_small_tier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kts_source.auditing.report import AuditReport
    from tests.kts_source.restore.world import NewCluster

OLD, NEW = "orders", "restored"


@dataclass(frozen=True, slots=True)
class RestoredTier:
    """A tier after a restore with zero copy.

    Attributes:
        new_name: The restored topic. It may have the name of the old topic.
        new_id: Topic id of the restored topic.
        old_folder: Folder of the old partition.
    """

    options: dict[str, str]
    cluster: NewCluster
    new_name: str
    new_id: str
    old_folder: Path

    def audit(self, topics: str, level: str = "metadata", **more: str) -> AuditReport:
        """Audits topics of the tier."""
        options = {**self.options, **more, "subscribe": topics}
        return kts_source.audit(options, level=level, grace_ms=0)

    @property
    def old_id(self) -> str:
        """Returns the topic id of the old topic."""
        return self.old_folder.parent.name.removeprefix(f"{OLD}-")

    @property
    def new_folder(self) -> Path:
        """Returns the folder of the new partition, which has only manifests."""
        return self.old_folder.parents[1] / f"{self.new_name}-{self.new_id}" / "0"

    def old(self, suffix: str) -> list[Path]:
        """Returns the objects of the old topic with this suffix, ascending by offset."""
        return sorted(self.old_folder.glob(f"*.{suffix}"))


def _restored(folder: Path, brokers: FakeCluster, new_name: str) -> RestoredTier:
    options = write_small_tier(folder / "tier", OLD)
    cluster = serving_cluster(folder / "new", brokers, new_name)
    plan = cluster.plan(options, rename={OLD: new_name}, zero_copy=True)
    assert plan.refusals == ()
    assert plan.partitions[0].served == 3
    cluster.write(options, target=cluster.target)
    old_id = plan.partitions[0].topic_id
    old_folder = folder / "tier" / "tiered" / f"{OLD}-{old_id}" / "0"
    return RestoredTier(options, cluster, new_name, plan.target_ids[new_name], old_folder)


@pytest.fixture
def renamed(tmp_path: Path) -> Iterator[RestoredTier]:
    """Returns the tier of a topic that was restored under another name."""
    with FakeCluster(2) as brokers:
        yield _restored(tmp_path, brokers, NEW)


@pytest.fixture
def same_name(tmp_path: Path) -> Iterator[RestoredTier]:
    """Returns the tier of a topic that was restored under its old name."""
    with FakeCluster(2) as brokers:
        yield _restored(tmp_path, brokers, OLD)


def _names(report: AuditReport, topic: str) -> set[str]:
    return {finding.name for finding in report.findings if finding.topic == topic}


@pytest.mark.parametrize("level", ["listing", "metadata", "indexes", "bytes"])
def test_audit_of_restored_topic_finds_no_fault(level: str, renamed: RestoredTier) -> None:
    report = renamed.audit(f"{OLD},{NEW}", level)
    assert report.findings == ()
    old, new = report.partitions
    assert (old.topic, new.topic) == (OLD, NEW)
    assert (new.start, new.stop, new.records, new.digest) == (
        old.start,
        old.stop,
        old.records,
        old.digest,
    )
    assert (new.digest is not None) == (level == "bytes")


@pytest.mark.parametrize("suffix", ["log", "indexes"])
@pytest.mark.parametrize("level", ["listing", "metadata"])
def test_lost_object_of_old_topic_is_missing_in_both_topics(
    level: str, suffix: str, renamed: RestoredTier
) -> None:
    lost = renamed.old(suffix)[1]
    lost.unlink()
    report = renamed.audit(f"{OLD},{NEW}", level)
    for topic in (OLD, NEW):
        (finding,) = (each for each in report.findings if each.topic == topic)
        assert finding.name == "object-missing"
        assert finding.stored_bytes > 0
    assert lost.name in finding.detail


def test_truncated_log_of_old_topic_is_found_in_both_topics(renamed: RestoredTier) -> None:
    log = renamed.old("log")[1]
    log.write_bytes(log.read_bytes()[:-1])
    report = renamed.audit(f"{OLD},{NEW}")
    assert "log-size" in _names(report, OLD)
    assert "log-size" in _names(report, NEW)


def test_changed_log_of_old_topic_is_read_again_despite_state(
    renamed: RestoredTier, tmp_path: Path
) -> None:
    options = {**renamed.options, "subscribe": NEW}
    state = str(tmp_path / "audit.state")
    for _ in range(2):
        assert kts_source.audit(options, level="bytes", state=state).findings == ()
    log = renamed.old("log")[1]
    damaged = bytearray(log.read_bytes())
    damaged[-1] ^= 1
    log.unlink()
    log.write_bytes(damaged)
    assert kts_source.audit(options, level="bytes", state=state).errors


def test_old_objects_without_manifests_are_not_orphans(renamed: RestoredTier) -> None:
    for manifest in renamed.old("rsm-manifest"):
        manifest.unlink()
    assert renamed.audit(f"{OLD},{NEW}").findings == ()


def test_audit_with_brokers_does_not_report_used_objects(renamed: RestoredTier) -> None:
    brokers = renamed.cluster.brokers
    topic_id = brokers.topics[NEW][0]
    brokers.create(NEW, [FakePartition(fake_log(SMALL_LOG), epoch=100)], topic_id)
    options = {**renamed.options, **renamed.cluster.target, "subscribePattern": f"{OLD}|{NEW}"}
    del options["subscribe"]
    report = kts_source.audit(options)
    assert report.findings == ()


def test_audit_of_same_name_reports_only_unused_objects(same_name: RestoredTier) -> None:
    unused = same_name.old_folder / f"{99:020d}-{'A' * 22}.log"
    unused.write_bytes(b"x")
    (finding,) = same_name.audit(OLD, topicId=same_name.new_id).findings
    assert finding.name == "other-topic-id"
    assert finding.objects == ()  # a lost manifest may refer to the object
    assert "Repeat the audit with kafka.bootstrap.servers" in finding.detail
    brokers = same_name.cluster.brokers
    topic_id = brokers.topics[OLD][0]
    brokers.create(OLD, [FakePartition(fake_log(SMALL_LOG), epoch=100)], topic_id)
    report = same_name.audit(OLD, topicId=same_name.new_id, **same_name.cluster.target)
    (finding,) = (each for each in report.findings if each.name == "other-topic-id")
    assert [key.rpartition("/")[2] for key in finding.objects] == [unused.name]


def test_audit_of_old_id_also_audits_the_restored_topic(same_name: RestoredTier) -> None:
    report = same_name.audit(OLD, topicId=same_name.old_id)
    assert report.findings == ()
    assert {each.topic_id for each in report.partitions} == {same_name.old_id, same_name.new_id}


@pytest.mark.parametrize("level", ["listing", "metadata"])
@pytest.mark.parametrize("damage", [b"{", b'{"version":"1"}'])
def test_unreadable_copy_of_manifest_protects_old_objects(
    damage: bytes, level: str, same_name: RestoredTier
) -> None:
    for manifest in same_name.new_folder.iterdir():
        manifest.write_bytes(damage)
    report = same_name.audit(OLD, level)
    assert [each for each in report.findings if each.kind.allows_delete] == []
    for manifest in same_name.new_folder.iterdir():
        about = [each for each in report.errors if str(manifest.name) in str(each.objects)]
        assert any("its manifest cannot be read: delete no object" in each.detail for each in about)


def test_segments_unknown_to_brokers_do_not_list_old_objects(renamed: RestoredTier) -> None:
    brokers = renamed.cluster.brokers
    topic_id = brokers.topics[NEW][0]
    brokers.create(NEW, [FakePartition(fake_log(SMALL_LOG), epoch=100)], topic_id)
    brokers.create(REMOTE_LOG_METADATA, [FakePartition(empty_log()) for _ in range(3)])
    options = {**renamed.options, **renamed.cluster.target, "subscribePattern": f"{OLD}|{NEW}"}
    del options["subscribe"]
    findings = [each for each in kts_source.audit(options).findings if each.kind.allows_delete]
    assert {each.name for each in findings} == {"unknown-to-brokers"}
    keys = [key.rpartition("/")[2] for each in findings for key in each.objects]
    assert sorted(keys) == sorted(path.name for path in renamed.new_folder.iterdir())
    assert all("2 objects are not listed" in each.detail for each in findings)


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("level", ["listing", "metadata"])
@pytest.mark.parametrize("has_announcements", [False, True])
def test_lost_copies_of_manifests_do_not_list_old_objects(
    has_announcements: bool, level: str, lost: int, same_name: RestoredTier
) -> None:
    brokers = same_name.cluster.brokers
    topic_id = brokers.topics[OLD][0]
    brokers.create(OLD, [FakePartition(fake_log(SMALL_LOG), epoch=100)], topic_id)
    if not has_announcements:
        brokers.create(REMOTE_LOG_METADATA, [FakePartition(empty_log()) for _ in range(3)])
    copies = sorted(same_name.new_folder.iterdir())
    for manifest in copies[3 - lost :]:
        manifest.unlink()
    chosen = {"topicId": same_name.new_id} if lost < 3 else {}
    report = same_name.audit(OLD, level, **same_name.cluster.target, **chosen)
    listed = {
        key.rpartition("/")[2].partition(".")[0]
        for finding in report.findings
        if finding.kind.allows_delete
        for key in finding.objects
        if same_name.old_id in key
    }
    if not has_announcements and lost == 1:  # then no trace of the copy is left
        assert listed == {copies[2].stem}
    else:
        assert listed == set()
    missing = [each for each in report.errors if each.name == "named-not-there"]
    assert len(missing) == has_announcements * lost
    assert {each.topic_id for each in missing} <= {same_name.new_id}
    withheld = [each for each in report.findings if "Delete none of them" in each.detail]
    assert [each.topic_id for each in withheld] == [same_name.old_id] * (lost == 3)


def _damage(tier: RestoredTier, rng: random.Random) -> set[str]:
    """Damages manifests and old objects. Returns the names, without suffix, of the segments that
    still have a manifest in the new folder.
    """
    for manifest in tier.new_folder.iterdir():
        data = bytearray(manifest.read_bytes())
        match rng.choice(("keep", "delete", "cut", "flip", "old id")):
            case "delete":
                manifest.unlink()
                continue
            case "cut":
                del data[rng.randrange(len(data)) :]
            case "flip":
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case "old id":
                data = data.replace(b'"orders"', b'"others"')
        manifest.write_bytes(data)
    kept = {path.stem for path in tier.new_folder.iterdir()}
    for path in sorted(tier.old_folder.iterdir()):
        if rng.random() < 0.3:
            path.unlink()
    return kept


@pytest.mark.parametrize("new_name", [OLD, NEW])
def test_no_finding_allows_to_delete_objects_of_a_copied_manifest(
    new_name: str, tmp_path: Path
) -> None:
    rng = random.Random(new_name)
    with FakeCluster(2) as brokers:
        tier = _restored(tmp_path, brokers, new_name)
        pristine = {path: path.read_bytes() for path in (tmp_path / "tier").rglob("*.*")}
        listed = 0
        for _ in range(30):
            for path, data in pristine.items():
                path.write_bytes(data)
            kept = _damage(tier, rng)
            topics = ",".join({OLD, new_name})
            ids = {"topicId": rng.choice((tier.old_id, tier.new_id))} if new_name == OLD else {}
            report = tier.audit(topics, rng.choice(("listing", "metadata")), **ids)
            for finding in report.findings:
                if finding.kind.allows_delete:
                    old = [key for key in finding.objects if tier.old_folder.parent.name in key]
                    listed += len(old)
                    assert {key.rpartition("/")[2].partition(".")[0] for key in old} & kept == set()
        assert listed  # objects of lost manifests
