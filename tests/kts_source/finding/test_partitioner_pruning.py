"""Checks searches with `partitioner_pruning`. They skip all partitions to which Kafka's default
partitioner never assigns the keys.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

import kts_source
from kts_source.cli.app import main
from kts_source.errors import InvalidOptionError
from kts_source.finding.query import partitions_of
from segment_format.key_set import KeySet
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord

if TYPE_CHECKING:
    from pathlib import Path

PARTITIONS = 6
KEYS = [b"user-%d" % number for number in range(300)]


def partition_of(key: bytes, count: int = PARTITIONS) -> int:
    """Returns the partition that kafka-python chooses for a key."""
    hashed: int = murmur2_of_kafka_python(key)
    return (hashed & 0x7FFFFFFF) % count


def write(root: Path, *, last: int = PARTITIONS) -> None:
    for partition in range(last):
        builder = LogBuilder()
        records = [SimpleRecord(b"v", key) for key in KEYS if partition_of(key) == partition]
        builder.append([*records, SimpleRecord(b"no key")])
        builder.roll()
        writer = AivenTierWriter(
            str(root), topic="t", topic_id="AAAAAAAAAAAAAAAAAAAAIQ", partition=partition
        )
        for segment in builder.build().segments:
            writer.write_segment(segment)


def search(root: Path, **conditions: Any) -> Any:  # noqa: ANN401
    options = {"path": str(root), "subscribe": "t", "columns": "key,partition"}
    return kts_source.find(options, partitioner_pruning=True, **conditions)


def test_partitions_of_keys_equal_those_of_kafka_python() -> None:
    chance = random.Random(3)
    for _ in range(300):
        key, count = chance.randbytes(chance.randrange(40)), chance.randint(1, 50)
        assert partitions_of(KeySet.of([key]), count) == {partition_of(key, count)}


def test_find_reads_only_partitions_of_the_keys(tmp_path: Path) -> None:
    write(tmp_path)
    for keys in ([KEYS[0]], KEYS[5:8], KEYS):
        result = search(tmp_path, keys=keys)
        assert sorted(result.to_table()["key"].to_pylist()) == sorted(keys)
        certificate = result.certificate
        read = {
            partition.partition
            for partition in certificate.partitions
            if partition.left_out is None
        }
        assert read == {partition_of(key) for key in keys}
        assert certificate.complete
        assert len(certificate.partitions) == PARTITIONS
        for partition in certificate.partitions:
            if partition.left_out is not None:
                assert "partitionerPruning" in partition.left_out
                assert partition.start == partition.stop
                assert (partition.records, partition.segments) == (0, 0)
        assert any("murmur2" in text and "t 6" in text for text in certificate.assumptions)


def test_damage_in_skipped_partition_is_ignored(tmp_path: Path) -> None:
    write(tmp_path)
    other = next(number for number in range(PARTITIONS) if number != partition_of(KEYS[0]))
    (log,) = tmp_path.glob(f"*/{other}/*.log")
    log.write_bytes(bytes(log.stat().st_size))
    result = search(tmp_path, keys=[KEYS[0]])
    assert result.to_table().num_rows == 1
    assert result.certificate.complete
    unpruned = kts_source.find({"path": str(tmp_path), "subscribe": "t"}, keys=[KEYS[0]])
    unpruned.to_table()
    assert not unpruned.certificate.complete


def test_option_num_partitions_counts_partitions_without_segments(tmp_path: Path) -> None:
    """The tier may not have segments of the last partitions of a topic yet."""
    write(tmp_path, last=PARTITIONS - 1)
    key = next(key for key in KEYS if partition_of(key) != partition_of(key, PARTITIONS - 1) < 5)
    result = search(tmp_path, keys=[key], num_partitions=PARTITIONS)
    is_in_tier = partition_of(key) < PARTITIONS - 1
    assert result.to_table().num_rows == is_in_tier
    assert any("t 6" in text for text in result.certificate.assumptions)
    with pytest.raises(InvalidOptionError, match="5 partitions in the tier"):
        search(tmp_path, keys=[key], num_partitions=4).to_table()


@pytest.mark.parametrize(
    "conditions",
    [{}, {"keys": [None, b"x"]}, {"keys": [b"x"], "num_partitions": 0}, {"value_contains": "x"}],
)
def test_pruning_with_invalid_conditions_is_refused(
    tmp_path: Path, conditions: dict[str, Any]
) -> None:
    with pytest.raises(InvalidOptionError):
        search(tmp_path, **conditions)


def test_pruning_with_assign_needs_num_partitions(tmp_path: Path) -> None:
    write(tmp_path)
    options = {"path": str(tmp_path), "assign": '{"t":[0,1]}'}
    with pytest.raises(InvalidOptionError, match="number of partitions"):
        kts_source.find(options, keys=[b"x"], partitioner_pruning=True).to_table()


def test_find_command_prunes_partitions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path)
    flags = ("--key", "user-7", "--partitioner-pruning", "--num-partitions", "6", "--offsets")
    assert main(["find", str(tmp_path), "t", *flags]) == 0
    assert f'"partition": {partition_of(b"user-7")}' in capsys.readouterr().out
    assert main(["find", str(tmp_path), "t", "--key", "a", "--num-partitions", "6"]) == 2
