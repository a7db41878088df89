"""Tests the content of a restore plan, and every reason to refuse one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import CorruptSegmentError, InvalidOptionError
from kts_source.restore import restore_plan
from kts_source.restore.committing import status_restore
from kts_source.restore.restore_plan import RestorePlan, read_plan
from kts_source.restore.target import describe_target
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import GOLDEN_44, partition_summaries, tier_options, topic_summary
from tests.kts_source.broker.fake_broker import FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.broker.fake_node import METADATA, Fault
from tests.kts_source.restore.world import SMALL_LOG, copied_tier, state_of, write_small_tier

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.restore.target import Target
    from tests.kts_source.restore.world import NewCluster

EPOCHS = tier_options("epochs")
EPOCH = max(
    entry["epoch"]
    for segment in partition_summaries("epochs")[0]["remote_segments"]
    for entry in [{"epoch": int(epoch)} for epoch in dict(segment["leader_epochs"])]
)


def test_plan_contains_offsets_of_tier_and_ids_of_new_topics(cluster: NewCluster) -> None:
    cluster.add_topic("new-trimmed")
    plan = cluster.plan(tier_options("trimmed"), rename={"trimmed": "new-trimmed"})
    assert plan.refusals == ()
    (partition,) = plan.partitions
    summary = partition_summaries("trimmed")[0]
    assert (partition.name, partition.topic_id) == (
        "new-trimmed-0",
        topic_summary("trimmed")["topicId"],
    )
    assert partition.log_start == summary["log_start_offset"]
    assert partition.stop == partition.resume_at == summary["tier_end_offset"]
    assert plan.target_ids == {"new-trimmed": _topic_id(cluster, "new-trimmed")}
    assert read_plan(str(cluster.plan_file)) == plan


def test_plan_and_journal_contain_no_credentials(cluster: NewCluster) -> None:
    cluster.add_topic("epochs")
    options = {**EPOCHS, "s3.access-key-id": "public", "s3.secret-access-key": "confidential"}
    cluster.plan(options)
    cluster.write(options)
    files = [path for path in cluster.plan_file.parent.iterdir() if path.is_file()]
    assert len(files) == 2
    assert all(b"confidential" not in path.read_bytes() for path in files)


@pytest.mark.parametrize(
    ("resume_at", "message"),
    [
        ({"epochs": {7: 900}}, "names epochs-7, of which the tier has no segment"),
        ({"other": {0: 900}}, "names other-0, of which the tier has no segment"),
        ({"epochs": {0: -1}}, "not an offset: -1"),
        ({"epochs": {0: 1 << 63}}, "not an offset: 9223372036854775808"),
        ({"epochs": {0: True}}, "not an offset: True"),
    ],
)
def test_resume_at_that_no_partition_can_have_is_rejected(
    cluster: NewCluster, resume_at: dict[str, dict[int, int]], message: str
) -> None:
    cluster.add_topic("epochs")
    with pytest.raises(InvalidOptionError, match=f"resume-at.*{message}"):
        cluster.plan(EPOCHS, resume_at=resume_at)


def _topic_id(cluster: NewCluster, topic: str) -> str:
    folder = cluster.log_dir / f"{topic}-0"
    return (folder / "partition.metadata").read_text().split()[-1]


def test_plan_without_target_topic_is_refused(cluster: NewCluster) -> None:
    assert cluster.plan(EPOCHS).refusals == (
        "topic epochs does not exist in the new cluster: create it",
    )


def test_leader_epoch_not_above_tier_is_refused(cluster: NewCluster) -> None:
    cluster.add_topic("epochs", epoch=EPOCH)
    (text,) = cluster.plan(EPOCHS).refusals
    assert f"leader epoch {EPOCH} of the new cluster is not above leader epoch {EPOCH}" in text
    cluster.brokers.topics["epochs"][1][0].epoch = EPOCH + 1
    assert cluster.plan(EPOCHS).refusals == ()


def test_target_topic_with_records_is_refused(cluster: NewCluster) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"value", b"key")])
    cluster.add_topic("epochs")
    cluster.brokers.create("epochs", [FakePartition(fake_log(builder.build()), epoch=100)])
    (text,) = cluster.plan(EPOCHS).refusals
    assert "epochs-0 of the new cluster is not empty: it has offsets [0, 1)" in text


def test_target_topic_with_fewer_partitions_is_refused_and_with_more_noted(
    cluster: NewCluster,
) -> None:
    cluster.add_topic("wide", partitions=5)
    (text,) = cluster.plan(tier_options("wide")).refusals
    assert "wide-5 does not exist in the new cluster, which has 5 partitions" in text
    cluster.brokers.topics["wide"][1].append(cluster.brokers.topics["wide"][1][0])
    plan = cluster.plan(tier_options("wide"))
    assert plan.refusals == ()
    assert plan.notes == ("wide: the tier has no data of partitions [2, 3]; they stay empty",)


def test_second_plan_checks_only_its_own_partitions_of_the_target_topic(
    tmp_path: Path, cluster: NewCluster
) -> None:
    whole = write_small_tier(tmp_path / "tier", "orders", 0, 1)
    tier = {name: text for name, text in whole.items() if name != "subscribe"}
    cluster.add_topic("orders", partitions=2)
    first = cluster.plan({**tier, "assign": '{"orders": [0]}'})
    assert (first.refusals, first.notes) == ((), ())
    cluster.brokers.topics["orders"][1][0].log = fake_log(SMALL_LOG)
    second = cluster.plan({**tier, "assign": '{"orders": [1]}'})
    assert (second.refusals, second.notes) == ((), ())
    for again in ({**tier, "assign": '{"orders": [0]}'}, whole):
        (text,) = cluster.plan(again).refusals
        assert text.startswith("orders-0 of the new cluster is not empty")


@pytest.mark.parametrize("replicas", [(0, 1), (1, 0, 2)])
def test_target_topic_with_several_replicas_is_refused(
    replicas: tuple[int, ...], cluster: NewCluster
) -> None:
    cluster.add_topic("epochs")
    cluster.brokers.topics["epochs"][1][0].replicas = replicas
    (text,) = cluster.plan(EPOCHS).refusals
    assert f"epochs-0 of the new cluster has replicas on brokers {list(replicas)}" in text


def test_target_topics_on_different_brokers_are_refused(cluster: NewCluster) -> None:
    cluster.add_topic("wide", partitions=6)
    cluster.brokers.topics["wide"][1][4].replicas = (1,)
    plan = cluster.plan(tier_options("wide"))
    assert len(plan.refusals) == 6
    assert plan.node_id == -1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("retention.ms", "604800000"),
        ("retention.bytes", "1"),
        ("remote.storage.enable", "true"),
    ],
)
def test_unsafe_topic_configuration_is_refused(name: str, value: str, cluster: NewCluster) -> None:
    cluster.add_topic("epochs")
    cluster.brokers.configs[name] = value
    (text,) = cluster.plan(EPOCHS).refusals
    assert text.startswith(f"epochs: set {name}=")
    assert text.endswith(f"it is {value}")


def test_undecided_transactions_are_refused_by_default(cluster: NewCluster) -> None:
    cluster.add_topic("txn", partitions=2)
    (text,) = cluster.plan(tier_options("txn")).refusals
    assert "txn-0: 2 transactions have no known end; the first is of producer 6" in text
    plan = cluster.plan(tier_options("txn"), undecided="abort")
    assert plan.refusals == ()
    assert plan.partitions[0].undecided == tuple(
        (each["producerId"], each["first"])
        for each in partition_summaries("txn")[0]["undecided_in_tier"]
    )


def test_topic_with_several_ids_is_refused_unless_one_is_chosen(cluster: NewCluster) -> None:
    cluster.add_topic("recreated")
    options = tier_options("recreated")
    plan = cluster.plan(options)
    assert [text for text in plan.refusals if "--topic-id" in text] == list(plan.refusals)
    assert len(plan.refusals) == 1
    chosen = plan.partitions[0].topic_id
    assert chosen in plan.refusals[0]
    assert cluster.plan({**options, "topicId": chosen}).refusals == ()


def test_tier_with_hole_is_refused(tmp_path: Path, cluster: NewCluster) -> None:
    options = copied_tier(tmp_path, "codecs", lost=1)
    cluster.add_topic("codecs")
    cluster.add_topic("renamed")
    # These options name the topic. They must not hide the hole.
    for more in ({}, {"rename": {"codecs": "renamed"}}, {"resume_at": {"codecs": {0: 999}}}):
        refusals = cluster.plan(options, **more).refusals
        assert any("no segment in the tier holds offsets" in text for text in refusals)


def test_tier_with_segments_in_iceberg_table_is_refused(
    tmp_path: Path, cluster: NewCluster
) -> None:
    # The plugin wrote offsets [420, 980) into an Iceberg table, with a Puffin file per segment.
    tier = shutil.copytree(GOLDEN_44 / "iceberg-mixed" / "tier", tmp_path / "tier")
    folder = tier / "warehouse" / "events" / "metadata"
    folder.mkdir(parents=True)
    (folder / "adh9f8BMS4anaUnD8KWfWg.puffin").write_bytes(b"PFA1")
    cluster.add_topic("events")
    plan = cluster.plan({"path": str(tier), "keyPrefix": "tiered/", "subscribe": "events"})
    (text,) = plan.refusals
    assert "offsets [420, 980)" in text
    assert "segment.format=iceberg" in text
    with pytest.raises(InvalidOptionError, match="the plan is refused"):
        cluster.write({"path": str(tier), "keyPrefix": "tiered/", "subscribe": "events"})


@pytest.mark.parametrize("producer", [100_000_001, 2**63 - 1])
@pytest.mark.parametrize("has_snapshot", [True, False])
def test_producer_id_that_commit_cannot_raise_is_refused_before_anything_is_placed(
    has_snapshot: bool, producer: int, tmp_path: Path, cluster: NewCluster
) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"value")])
    builder.send(producer, [SimpleRecord(b"in a transaction")])
    builder.commit(producer)
    builder.roll()
    segment = builder.build().segments[0]
    LocalTierWriter(tmp_path / "tier", topic="orders").write_segment(segment)
    path = tmp_path / "tier"
    if not has_snapshot:  # only the batches have the id
        for snapshot in path.rglob("*.snapshot"):
            snapshot.write_bytes(b"")
    options = {"path": str(path), "layout": "local-tiered-storage", "subscribe": "orders"}
    cluster.add_topic("orders")
    refusals = cluster.plan(options).refusals
    text = f"producer id {producer} is above 100,000,000"
    if has_snapshot:
        assert [each.partition(",")[0] for each in refusals] == ["orders-0"]
        assert f"orders-0, offset 1: {text}" in refusals[0]
        return
    assert refusals == ()
    with pytest.raises(CorruptSegmentError, match=f"{text}.*topic orders, partition 0, offset 1"):
        cluster.write(options)
    assert all(not data for name, data in cluster.files().items() if name.endswith(".log"))
    refused = "refused: orders has a producer id above 100,000,000"
    assert state_of(cluster)[-2:] == (refused, "next: plan again without topic orders")


@pytest.mark.parametrize(
    ("host", "service"),
    [
        ("b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com", "Amazon MSK"),
        ("boot-x1.c1.kafka-serverless.us-east-1.amazonaws.com", "Amazon MSK"),
        ("b7-pkc-1234.eu-central-1.aws.confluent.cloud", "Confluent Cloud"),
        ("demo-kafka.project.aivencloud.com", "Aiven"),
        ("demo.servicebus.windows.net", "Azure Event Hubs"),
        ("broker-0.c.europe-west1.managedkafka.project.cloud.goog", "Google Cloud"),
        ("demo.servicebus.chinacloudapi.cn", "Azure Event Hubs"),
        ("seed-1.abc.fmc.prd.cloud.redpanda.com", "Redpanda Cloud"),
        ("cell-1.streaming.us-phoenix-1.oci.oraclecloud.com", "Oracle Cloud"),
        ("kafka-do-user-1-0.f.db.ondigitalocean.com", "DigitalOcean"),
        ("kafka-0.abc.svc01.us-south.eventstreams.cloud.ibm.com", "IBM Event Streams"),
        ("myorders.snio.cloud.example.org", None),
        ("ec2-3-4-5-6.eu-west-1.compute.amazonaws.com", None),
        ("kafka.eu.confluent.cloud.example.com", None),
    ],
)
def test_managed_brokers_are_refused(host: str, service: str | None, cluster: NewCluster) -> None:
    def rename(response: Any) -> None:  # noqa: ANN401
        for broker in response.brokers:
            broker.host = host

    cluster.add_topic("epochs")
    # The first two responses are about permissions and addresses.
    cluster.brokers.fail(METADATA, Fault(), Fault(), Fault(edit=rename))
    refusals = cluster.plan(EPOCHS).refusals
    texts = [f"broker {host} is managed by {service}, but a restore writes"] if service else []
    assert [text.split(" to the log")[0] for text in refusals] == texts


def test_tier_that_changes_during_the_plan_is_refused(
    tmp_path: Path, cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = LogBuilder()
    for _ in range(3):
        builder.append([SimpleRecord(b"value")])
        builder.roll()
    first, *later = [files for files in builder.build().segments if files.log]
    writer = LocalTierWriter(tmp_path / "tier", topic="orders")
    writer.write_segment(first)

    def describe(*args: Any, **more: Any) -> Target:  # noqa: ANN401
        if later:
            writer.write_segment(later.pop(0))  # the old cluster still runs
        return describe_target(*args, **more)

    monkeypatch.setattr(restore_plan, "describe_target", describe)
    cluster.add_topic("orders")
    path = str(tmp_path / "tier")
    options = {"path": path, "layout": "local-tiered-storage", "subscribe": "orders"}
    for _ in range(2):
        (text,) = cluster.plan(options).refusals
        assert "the tier changed after the restore was planned, perhaps because the old" in text
    assert cluster.plan(options).refusals == ()


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"where": "offset > 1"},
        {"isolationLevel": "read_uncommitted"},
        {"kafka.bootstrap.servers": "old:9092"},
        {"failOnDataLoss": "false"},
    ],
)
def test_option_that_limits_offsets_is_rejected(
    options: dict[str, str], cluster: NewCluster
) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(options))):
        cluster.plan({**EPOCHS, **options})


def test_rename_of_unknown_topic_is_rejected(cluster: NewCluster) -> None:
    with pytest.raises(InvalidOptionError, match="'other'"):
        cluster.plan(EPOCHS, rename={"other": "new"})


def test_rename_to_same_name_is_rejected(cluster: NewCluster) -> None:
    with pytest.raises(InvalidOptionError, match="same name"):
        cluster.plan(tier_options("epochs,trimmed"), rename={"epochs": "trimmed"})


def test_plan_of_another_version_is_rejected(cluster: NewCluster) -> None:
    cluster.add_topic("epochs")
    facts = json.loads(cluster.plan(EPOCHS).to_json())
    with pytest.raises(InvalidOptionError, match="has version 6"):
        RestorePlan.from_json(json.dumps({**facts, "version": 6}))
    for broken in ("", "[]", "{}"):
        with pytest.raises(InvalidOptionError, match="not a restore plan"):
            RestorePlan.from_json(broken)


@pytest.mark.parametrize(
    ("name", "value"), [("partitions", []), ("undecided", "abort"), ("node_id", "0"), ("more", 1)]
)
def test_plan_that_was_changed_by_hand_is_rejected(
    name: str, value: object, cluster: NewCluster
) -> None:
    cluster.add_topic("epochs")
    plan = cluster.plan(EPOCHS)
    facts = json.loads(plan.to_json())
    assert RestorePlan.from_json(json.dumps(facts)) == plan  # only the spaces differ
    with pytest.raises(InvalidOptionError, match="was changed after it was created"):
        RestorePlan.from_json(json.dumps({**facts, name: value}))


def test_deeply_nested_json_is_rejected_as_plan_and_journal(cluster: NewCluster) -> None:
    cluster.add_topic("epochs")
    cluster.plan(EPOCHS)
    plan, nested = cluster.plan_file.read_text(), "[" * 200_000
    cluster.plan_file.with_name("plan.json.journal").write_text(f"{nested}\n")
    with pytest.raises(InvalidOptionError, match=r"journal .* cannot be read"):
        status_restore(str(cluster.plan_file))
    cluster.plan_file.write_text(plan.replace("[", nested, 1))
    with pytest.raises(InvalidOptionError, match="the file is not a restore plan"):
        status_restore(str(cluster.plan_file))


def test_explanation_contains_partitions_notes_and_refusals(cluster: NewCluster) -> None:
    cluster.add_topic("epochs")
    plan = replace(cluster.plan(EPOCHS), notes=("a note",), refusals=("a reason",))
    text = plan.explain()
    assert "epochs-0: offsets [0, 865)" in text
    assert text.endswith("note: a note\nREFUSED: a reason")
