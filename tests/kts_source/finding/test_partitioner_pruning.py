"""Partitions that keys do not belong to are left out, when the user says so, and certified so."""

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
    """By another client's code."""
    hashed: int = murmur2_of_kafka_python(key)
    return (hashed & 0x7FFFFFFF) % count


def write(root: Path, *, last: int = PARTITIONS) -> None:
    for partition in range(last):
        builder = LogBuilder()
        mine = [SimpleRecord(b"v", key) for key in KEYS if partition_of(key) == partition]
        builder.append([*mine, SimpleRecord(b"no key")])
        builder.roll()
        writer = AivenTierWriter(
            str(root), topic="t", topic_id="AAAAAAAAAAAAAAAAAAAAIQ", partition=partition
        )
        for segment in builder.build().segments:
            writer.write_segment(segment)


def search(root: Path, **conditions: Any) -> Any:  # noqa: ANN401
    options = {"path": str(root), "subscribe": "t", "columns": "key,partition"}
    return kts_source.find(options, partitioner_pruning=True, **conditions)


def test_partitions_are_those_of_kafka_python() -> None:
    chance = random.Random(3)
    for _ in range(300):
        key, count = chance.randbytes(chance.randrange(40)), chance.randint(1, 50)
        assert partitions_of(KeySet.of([key]), count) == {partition_of(key, count)}


def test_only_the_partitions_of_the_keys_are_read(tmp_path: Path) -> None:
    write(tmp_path)
    for keys in ([KEYS[0]], KEYS[5:8], KEYS):
        found = search(tmp_path, keys=keys)
        assert sorted(found.to_table()["key"].to_pylist()) == sorted(keys)
        proof = found.certificate
        read = {part.partition for part in proof.partitions if part.left_out is None}
        assert read == {partition_of(key) for key in keys}
        assert proof.complete
        assert len(proof.partitions) == PARTITIONS
        for part in proof.partitions:
            if part.left_out is not None:
                assert "partitionerPruning" in part.left_out
                assert (part.start, part.records, part.segments) == (part.stop, 0, 0)
        assert any("murmur2" in text and "t 6" in text for text in proof.assumptions)


def test_a_fault_elsewhere_does_not_matter(tmp_path: Path) -> None:
    write(tmp_path)
    other = next(number for number in range(PARTITIONS) if number != partition_of(KEYS[0]))
    (log,) = tmp_path.glob(f"*/{other}/*.log")
    log.write_bytes(bytes(log.stat().st_size))
    found = search(tmp_path, keys=[KEYS[0]])
    assert found.to_table().num_rows == 1
    assert found.certificate.complete
    whole = kts_source.find({"path": str(tmp_path), "subscribe": "t"}, keys=[KEYS[0]])
    whole.to_table()
    assert not whole.certificate.complete


def test_the_number_of_partitions(tmp_path: Path) -> None:
    """The last partitions may have nothing in the tier yet."""
    write(tmp_path, last=PARTITIONS - 1)
    key = next(key for key in KEYS if partition_of(key) != partition_of(key, PARTITIONS - 1) < 5)
    found = search(tmp_path, keys=[key], num_partitions=PARTITIONS)
    there = partition_of(key) < PARTITIONS - 1
    assert found.to_table().num_rows == there
    assert any("t 6" in text for text in found.certificate.assumptions)
    with pytest.raises(InvalidOptionError, match="5 partitions in the tier"):
        search(tmp_path, keys=[key], num_partitions=4).to_table()


@pytest.mark.parametrize(
    "conditions",
    [{}, {"keys": [None, b"x"]}, {"keys": [b"x"], "num_partitions": 0}, {"value_contains": "x"}],
)
def test_what_it_needs(tmp_path: Path, conditions: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        search(tmp_path, **conditions)


def test_chosen_partitions_do_not_tell_how_many_there_are(tmp_path: Path) -> None:
    write(tmp_path)
    options = {"path": str(tmp_path), "assign": '{"t":[0,1]}'}
    with pytest.raises(InvalidOptionError, match="number of partitions"):
        kts_source.find(options, keys=[b"x"], partitioner_pruning=True).to_table()


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path)
    flags = ("--key", "user-7", "--partitionerPruning", "--num-partitions", "6", "--offsets")
    assert main(["find", str(tmp_path), "t", *flags]) == 0
    assert f'"partition": {partition_of(b"user-7")}' in capsys.readouterr().out
    assert main(["find", str(tmp_path), "t", "--key", "a", "--num-partitions", "6"]) == 2
