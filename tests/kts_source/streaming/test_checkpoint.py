"""Tests reading the end offsets of a query's last committed batch from its checkpoint. The files
have the format that Spark 4.3.0 writes for streams of this source.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import fsspec
import pytest

from kts_source.errors import InvalidOptionError, StreamOffsetError
from kts_source.streaming import end_offsets
from tests.kts_source.streaming.test_offsets import SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

HEAD = '{"batchWatermarkMs":0,"batchTimestampMs":1795445836501,"conf":{}}'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def text_of(topics: dict[str, dict[str, int]], name: str = "") -> str:
    document = {
        "v": 1,
        "topics": {topic: {"id": "Bi8n8pz0SRm2_iOC1pcTcg", "p": p} for topic, p in topics.items()},
    }
    return f"{name}:{json.dumps(document)}" if name else json.dumps(document)


def write(
    folder: Path, *lines: str, number: int = 0, version: str = "v1", is_committed: bool = True
) -> str:
    for name, text in (
        ("offsets", "\n".join([version, HEAD, *lines])),
        ("commits", COMMIT),
    ):
        (folder / name).mkdir(parents=True, exist_ok=True)
        if name == "offsets" or is_committed:
            (folder / name / str(number)).write_text(text)
            (folder / name / f".{number}.crc").write_bytes(b"crc")
    return str(folder)


def test_end_offsets_ignore_uncommitted_batches(tmp_path: Path) -> None:
    for number in (8, 9, 10):
        write(tmp_path, text_of({"orders": {"0": 100 + number, "1": 7}}), number=number)
    write(tmp_path, text_of({"orders": {"0": 500, "1": 500}}), number=11, is_committed=False)
    expected = {"orders": {"0": 110, "1": 7}}
    assert json.loads(end_offsets(str(tmp_path))) == expected
    assert json.loads(end_offsets(tmp_path.as_uri())) == expected


def test_end_offset_is_earliest_for_partitions_missing_in_checkpoint(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, text_of({"orders": {"2": 9}, "users": {"0": 1}}))
    offsets = json.loads(end_offsets(checkpoint, partitions={"orders": 4, "other": 2}))
    assert offsets == {"orders": {"0": -2, "1": -2, "2": 9, "3": -2}, "users": {"0": 1}}


@pytest.mark.parametrize(
    "sample", sorted(SAMPLES.glob("v1-*-batch.json")), ids=lambda path: path.stem
)
def test_end_offsets_equal_positions_of_sample_checkpoints(tmp_path: Path, sample: Path) -> None:
    document = json.loads(sample.read_text())
    offsets = json.loads(end_offsets(write(tmp_path, json.dumps(document))))
    assert offsets == {topic: position["p"] for topic, position in document["topics"].items()}


def test_end_offsets_of_several_sources_need_a_source_number(tmp_path: Path) -> None:
    first, second = text_of({"orders": {"0": 1}}), json.dumps({"users": {"0": 2}})
    checkpoint = write(tmp_path, first, second)
    assert json.loads(end_offsets(checkpoint, source=0)) == {"orders": {"0": 1}}
    assert json.loads(end_offsets(checkpoint, source=1)) == {
        "users": {"0": 2}
    }  # Spark's Kafka source
    for invalid in (None, 2, "orders"):
        with pytest.raises(StreamOffsetError, match=r"2 sources; .* 0, 1"):
            end_offsets(checkpoint, source=invalid)


def test_end_offsets_of_named_sources_need_a_source_name(tmp_path: Path) -> None:
    lines = text_of({"orders": {"0": 1}}, "tier"), text_of({"users": {"0": 2}}, "live"), "new:-"
    checkpoint = write(tmp_path, *lines, version="v2")
    assert json.loads(end_offsets(checkpoint, source="live")) == {"users": {"0": 2}}
    with pytest.raises(StreamOffsetError, match="tier, live, new"):
        end_offsets(checkpoint)
    with pytest.raises(StreamOffsetError, match="read nothing yet"):
        end_offsets(checkpoint, source="new")


def test_end_offsets_are_read_from_checkpoint_in_object_store() -> None:
    files = fsspec.filesystem("memory")
    for name, text in (
        ("offsets/9", f"v1\n{HEAD}\n{text_of({'a': {'0': 4}})}"),
        ("offsets/10", f"v1\n{HEAD}\n{text_of({'a': {'0': 5}})}"),
        ("commits/9", COMMIT),
        ("commits/10", COMMIT),
    ):
        files.pipe_file(f"/checkpoint/{name}", text.encode())
    assert json.loads(end_offsets("memory://checkpoint")) == {"a": {"0": 5}}


@pytest.mark.parametrize(
    ("lines", "version", "message"),
    [
        (["{"], "v1", "not JSON"),
        (["[" * 100_000], "v1", "not JSON"),
        (["-"], "v1", "read nothing yet"),
        (['{"v":1,"at":"initial"}'], "v1", "read nothing yet"),
        (['{"v":1,"topics":{}}'], "v1", "read nothing yet"),
        (['{"v":2,"topics":{}}'], "v1", "version 2"),
        (['{"lsn":5}'], "v1", "no offset of this source"),
        ([], "v1", "has 0 sources"),
        (["x"], "v2", "cannot be read"),
        (["x"], "v3", "instead of v1 or v2"),
    ],
)
def test_end_offsets_raises_stream_offset_error_for_invalid_line_in_checkpoint(
    tmp_path: Path, lines: list[str], version: str, message: str
) -> None:
    with pytest.raises(StreamOffsetError, match=message):
        end_offsets(write(tmp_path, *lines, version=version))


def test_end_offsets_of_invalid_checkpoint_raise_error(tmp_path: Path) -> None:
    with pytest.raises(StreamOffsetError, match="no committed batch"):
        end_offsets(str(tmp_path / "nowhere"))
    write(tmp_path, text_of({"a": {"0": 5}}), is_committed=False)
    with pytest.raises(StreamOffsetError, match="no committed batch"):
        end_offsets(str(tmp_path))
    (tmp_path / "commits" / "1").write_text(COMMIT)
    with pytest.raises(StreamOffsetError, match="has no offsets/1"):
        end_offsets(str(tmp_path))
    (tmp_path / "offsets" / "1").write_bytes(b"v1\n\xff")
    with pytest.raises(StreamOffsetError, match="offsets/1 is not text"):
        end_offsets(str(tmp_path))
    with pytest.raises(StreamOffsetError, match="no committed batch"):
        end_offsets(str(tmp_path / "offsets" / "1"))
    with pytest.raises(InvalidOptionError, match="holds credentials"):
        end_offsets("s3://key:hunter2@bucket/checkpoint")
