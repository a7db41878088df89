"""Tests the comparison of brokers with a restore, and the status of a restore."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import InvalidOptionError
from kts_source.restore.committing import status_restore, verify_restore
from kts_source.restore.restore_plan import read_plan
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_log import fake_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kts_source.restore.world import NewCluster


def _verify(cluster: NewCluster) -> list[str]:
    return verify_restore(str(cluster.plan_file), cluster.target)


def test_verify_with_equal_rows_succeeds(restored: NewCluster) -> None:
    assert status_restore(str(restored.plan_file))[-1].startswith("next: start broker 0")
    assert _verify(restored) == []
    assert status_restore(str(restored.plan_file))[-2].startswith("verified")


def test_verify_with_missing_batch_reports_end(restored: NewCluster) -> None:
    partition = restored.brokers.topics["orders"][1][0]
    partition.log = replace(partition.log, batches=partition.log.batches[:-1])
    texts = _verify(restored)
    end = read_plan(str(restored.plan_file)).partitions[0].stop
    assert f"orders-0: end is {end - 1}, but the restore wrote {end}" in texts
    assert not any("verified" in line for line in status_restore(str(restored.plan_file)))


def test_verify_with_changed_value_reports_both_isolation_levels(restored: NewCluster) -> None:
    builder = LogBuilder(leader_epoch=3, codec="zstd")
    builder.append([SimpleRecord(b"VALUE", b"key 0"), SimpleRecord(None, None)])
    changed = fake_log(builder.build()).batches[0]
    partition = restored.brokers.topics["orders"][1][0]
    partition.log = replace(partition.log, batches=[changed, *partition.log.batches[1:]])
    texts = _verify(restored)
    assert [text.split(":")[0] for text in texts] == [
        "orders-0 (read_uncommitted)",
        "orders-0 (read_committed)",
    ]


def test_verify_with_other_log_start_reports_it(restored: NewCluster) -> None:
    restored.brokers.topics["orders"][1][0].log.log_start = 2
    assert "orders-0: log start is 2, but the restore wrote 0" in _verify(restored)


def test_verify_with_low_leader_epoch_reports_it(restored: NewCluster) -> None:
    restored.brokers.topics["orders"][1][0].epoch = 5
    (text,) = _verify(restored)
    assert "leader epoch 5 is not above leader epoch 5 of the old cluster" in text


def test_verify_with_other_topic_id_is_rejected(restored: NewCluster) -> None:
    _, partitions = restored.brokers.topics["orders"]
    restored.brokers.create("orders", partitions)
    with pytest.raises(InvalidOptionError, match="does not have the planned topic id"):
        _verify(restored)


def test_verify_before_write_is_rejected(cluster: NewCluster, restored: NewCluster) -> None:
    (restored.plan_file.parent / "plan.json.journal").unlink()
    with pytest.raises(InvalidOptionError, match="is not complete: next: stop broker 0"):
        _verify(cluster)


def test_partial_last_line_of_journal_is_replaced_by_next_step(restored: NewCluster) -> None:
    journal = restored.plan_file.with_name("plan.json.journal")
    whole, partial = journal.read_bytes(), b'{"step": "veri'
    journal.write_bytes(whole + partial)
    assert status_restore(str(restored.plan_file))[-1].startswith("next: start broker 0")
    assert journal.read_bytes() == whole + partial  # another process may be writing this line
    assert _verify(restored) == []
    assert journal.read_bytes() == whole + b'{"step": "verified"}\n'


@pytest.mark.parametrize(
    "line",
    [
        *("4711", '{"ste": "verified"}', '{"step": "repaired"}', '{"step": "verified", "end": 1}'),
        '{"step": "placed"}',
    ],
)
def test_journal_with_invalid_line_is_rejected(line: str, restored: NewCluster) -> None:
    with restored.plan_file.with_name("plan.json.journal").open("a") as journal:
        journal.write(line + "\n")
    with pytest.raises(InvalidOptionError, match="cannot be read"):
        status_restore(str(restored.plan_file))


def test_journal_with_value_of_another_type_is_rejected(restored: NewCluster) -> None:
    assert _verify(restored) == []
    journal = restored.plan_file.with_name("plan.json.journal")
    whole = [json.loads(line) for line in journal.read_text().splitlines()]
    whole += [{"step": "published", "maxProducerId": 9}, {"step": "committed"}]
    assert {entry["step"] for entry in whole} >= {"begin", "staged", "placed", "checked"}
    assert _is_readable(restored, whole)
    changes = 0
    for number, entry in enumerate(whole):
        for changed in _with_other_types(entry):
            assert not _is_readable(restored, [*whole[:number], changed, *whole[number + 1 :]])
            changes += 1
    assert changes > 100


def _is_readable(cluster: NewCluster, steps: list[Any]) -> bool:
    journal = cluster.plan_file.with_name("plan.json.journal")
    journal.write_text("".join(json.dumps(step) + "\n" for step in steps))
    try:
        status_restore(str(cluster.plan_file))
    except InvalidOptionError:
        return False
    return True


def _with_other_types(value: Any) -> Iterator[Any]:  # noqa: ANN401  # values of JSON
    """Yields the value with itself, or one of the values in it, replaced by each other type."""
    others: list[Any] = [None, True, 7, 1.5, "text", ["text"], {"text": 7}]
    yield from (other for other in others if type(other) is not type(value))
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from ({**value, name: changed} for changed in _with_other_types(inner))


def test_journal_of_another_plan_is_rejected(restored: NewCluster) -> None:
    plan = replace(read_plan(str(restored.plan_file)), plan_id="other")
    restored.plan_file.write_text(plan.to_json())
    with pytest.raises(InvalidOptionError, match="belongs to another plan"):
        status_restore(str(restored.plan_file))
