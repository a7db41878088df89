"""Tests restores with zero copy of the layout of Aiven's plugin: copied manifests, the custom
metadata in the events, and reads of the restored topic.

The plugin itself is not available as a package. These tests use a tier that it has written.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest

from kts_source import scan
from kts_source.errors import CorruptSegmentError, InvalidOptionError
from kts_source.restore import serving
from kts_source.restore.committing import status_restore
from segment_format.kafka_uuid import uuid_to_text
from segment_format.manifest.object_names import parse_custom_metadata
from tests.golden_data import (
    ISOLATION_LEVELS,
    TIER,
    assert_same_rows,
    expected_table,
    partition_summaries,
)
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.restore.world import (
    SMALL_LOG,
    NewCluster,
    copied_tier,
    finished_segments,
    serving_cluster,
    write_small_tier,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kts_source.restore.restore_plan import RestorePlan
    from segment_format.metadata.model import RemoteLogSegmentMetadata
    from tests.s3 import S3Server

NAME = "restored"
TOPICS = ("codecs", "encrypted", "epochs", "trimmed")
"""Topics of the golden tier: all codecs, transactions without a known end, several leader epochs,
and a log start inside a segment. Two of them are encrypted.
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NewCluster]:
    """Returns a cluster whose seed has an empty topic `restored`."""
    with FakeCluster(2) as brokers:
        yield serving_cluster(tmp_path / "new", brokers, NAME)


def _restore(cluster: NewCluster, options: dict[str, str], topic: str) -> RestorePlan:
    """Plans and writes a restore under the name `restored`."""
    plan = cluster.plan(options, undecided="abort", rename={topic: NAME}, zero_copy=True)
    assert plan.refusals == ()
    assert any("experimental" in note for note in plan.notes)
    cluster.write(options, target=cluster.target)
    return plan


def _objects(folder: Path) -> dict[str, bytes]:
    """Returns the content of all objects, by key."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("topic", TOPICS)
def test_restored_topic_has_the_rows_and_objects_of_the_old_topic(
    topic: str, tmp_path: Path, cluster: NewCluster
) -> None:
    options = copied_tier(tmp_path, topic)
    before = _objects(tmp_path / "tier")
    plan = _restore(cluster, options, topic)
    _check_objects(plan, topic, finished_segments(cluster, NAME), before, tmp_path / "tier")
    restored = {
        **options,
        "subscribe": NAME,
        "topicId": plan.target_ids[NAME],
        "tailPath": str(cluster.log_dir),
        "endOfLog": "true",
    }
    for level in ISOLATION_LEVELS:
        expected = expected_table(topic, level)
        expected = expected.filter(pc.equal(expected["partition"], 0)).drop_columns("topic")
        found = scan({**restored, "isolationLevel": level}).to_table().drop_columns("topic")
        if plan.partitions[0].undecided and level == "read_committed":
            # The appended abort markers make the records after the open transactions visible.
            found = found.filter(pc.less_equal(found["offset"], pc.max(expected["offset"])))
        assert_same_rows(found, expected)


def _check_objects(
    plan: RestorePlan,
    topic: str,
    events: list[RemoteLogSegmentMetadata],
    before: dict[str, bytes],
    tier: Path,
) -> None:
    """Checks that the tier has only new manifests, and that the events refer to the old objects."""
    assert events
    old = {each["id"]: each for each in partition_summaries(topic)[0]["remote_segments"]}
    copies = {}
    for event in events:
        number = uuid_to_text(event.segment_id.id)
        # A broker and the plugin have written the old event.
        written = base64.b64decode(old[number]["custom_metadata_base64"])
        plugin, found = parse_custom_metadata(written), parse_custom_metadata(event.custom_metadata)
        assert (found.object_key, found.remote_size) == (plugin.object_key, plugin.remote_size)
        assert found.object_prefix is None
        # The plugin derives the key of a manifest from the topic id, not from the custom metadata.
        name = f"{event.start_offset:020d}-{number}.rsm-manifest"
        manifest = (TIER / f"tiered/{plugin.object_key}.rsm-manifest").read_bytes()
        copies[f"tiered/{NAME}-{plan.target_ids[NAME]}/0/{name}"] = manifest
    assert _objects(tier) == {**before, **copies}


@pytest.fixture
def small_tier(tmp_path: Path) -> dict[str, str]:
    """Returns the options of a tier with three segments of topic `orders`."""
    return write_small_tier(tmp_path / "tier", "orders")


def test_metadata_topic_leads_readers_to_old_objects(
    small_tier: dict[str, str], cluster: NewCluster
) -> None:
    topic_id = _restore(cluster, small_tier, "orders").target_ids[NAME]
    log = fake_log(SMALL_LOG)
    log.holes = [(0, log.end)]  # the brokers cannot serve these offsets
    cluster.brokers.create(NAME, [FakePartition(log, epoch=100)], cluster.brokers.topics[NAME][0])
    restored = {**small_tier, "subscribe": NAME, "topicId": topic_id}
    by_events = {**restored, **cluster.target, "catalog": "metadata-topic"}
    for level in ISOLATION_LEVELS:
        more = {"isolationLevel": level}
        expected = scan({**small_tier, **more}).to_table().drop_columns("topic")
        assert expected.num_rows == (9 if level == "read_uncommitted" else 8)
        for options in (restored, by_events):
            found = scan({**options, **more}).to_table()
            assert set(found["topic"].to_pylist()) == {NAME}
            assert_same_rows(found.drop_columns("topic"), expected)


def test_second_restore_refers_to_the_first_objects(
    small_tier: dict[str, str], tmp_path: Path, cluster: NewCluster
) -> None:
    first_id = _restore(cluster, small_tier, "orders").target_ids[NAME]
    with FakeCluster(2) as brokers:
        second = serving_cluster(tmp_path / "second", brokers, "again")
        options = {**small_tier, "subscribe": NAME, "topicId": first_id}
        plan = second.plan(options, rename={NAME: "again"}, zero_copy=True)
        assert plan.refusals == ()
        second.write(options, target=second.target)
        keys = [
            parse_custom_metadata(event.custom_metadata).object_key or ""
            for event in finished_segments(second, "again")
        ]
    assert len(keys) == 3
    assert all((tmp_path / "tier" / "tiered" / f"{key}.log").exists() for key in keys)


def test_write_over_another_manifest_is_rejected(
    small_tier: dict[str, str], tmp_path: Path, cluster: NewCluster
) -> None:
    plan = cluster.plan(small_tier, rename={"orders": NAME}, zero_copy=True)
    manifest = sorted((tmp_path / "tier").rglob("*.rsm-manifest"))[1]
    folder = tmp_path / "tier" / "tiered" / f"{NAME}-{plan.target_ids[NAME]}" / "0"
    folder.mkdir(parents=True)
    (folder / manifest.name).write_bytes(b"{}")
    with pytest.raises(InvalidOptionError, match="is not a copy of"):
        cluster.write(small_tier, target=cluster.target)
    assert (folder / manifest.name).read_bytes() == b"{}"
    assert finished_segments(cluster, NAME) == []


def test_manifest_above_the_size_limit_is_not_copied(
    small_tier: dict[str, str], tmp_path: Path, cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _objects(tmp_path / "tier")
    cluster.plan(small_tier, rename={"orders": NAME}, zero_copy=True)
    monkeypatch.setattr(serving, "MAX_MANIFEST_BYTES", 100)
    with pytest.raises(CorruptSegmentError, match="may have at most 100 bytes"):
        cluster.write(small_tier, target=cluster.target)
    assert _objects(tmp_path / "tier") == before


class _CrashError(Exception):
    """Ends a write like a crash, because no code catches it."""


def test_write_to_s3_resumes_after_crashed_copy_of_topic_with_same_name(
    tmp_path: Path,
    cluster: NewCluster,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier = write_small_tier(tmp_path / "tier", NAME)
    bucket = s3_server.upload(tmp_path / "tier" / "tiered", prefix="below/tiered/")
    options = {**tier, **s3_server.options, "path": f"s3://{bucket}/below"}
    plan = cluster.plan(options, zero_copy=True)
    with monkeypatch.context() as patch:
        patch.setattr(serving, "CustomMetadata", _crash)
        with pytest.raises(_CrashError):
            cluster.write(options, target=cluster.target)
    assert status_restore(str(cluster.plan_file))[-1].startswith("next: run kts restore write")
    cluster.write(options, target=cluster.target)
    listed = s3_server.client().list_objects_v2(Bucket=bucket)["Contents"]
    folder = f"below/tiered/{NAME}-{plan.target_ids[NAME]}/0/"
    copies = [each["Key"] for each in listed if each["Key"].startswith(folder)]
    assert len(copies) == 3
    assert len(listed) == 9 + 3
    keys = {
        f"below/tiered/{parse_custom_metadata(event.custom_metadata).object_key}.log"
        for event in finished_segments(cluster, NAME)
    }
    assert keys == {each["Key"] for each in listed if each["Key"].endswith(".log")}


def _crash(**_: object) -> None:
    raise _CrashError
