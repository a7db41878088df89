"""Tests that the JSON text of a position never changes, and that invalid documents are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kts_source.errors import StreamOffsetError
from kts_source.streaming.offsets import (
    INITIAL,
    StreamPosition,
    TopicBegin,
    TopicPosition,
    position_from_json,
    position_to_json,
)

SAMPLES = Path(__file__).parent / "samples"
ORDERS = TopicPosition("lZ6vvmajTWKDBUTV6SQAtQ", {0: 123, 10: 7, 2: 9}, {10: 3, 0: 7})


def text(position: StreamPosition) -> str:
    return json.dumps(position_to_json(position))


def test_position_to_json_writes_the_documented_text() -> None:
    position = StreamPosition(
        {"payments": TopicPosition(None, {1: 2}), "orders": ORDERS},
        {"orders": TopicBegin("lZ6vvmajTWKDBUTV6SQAtQ", {10: 5, 2: 0})},
    )
    assert text(position) == (
        '{"v": 1, "topics": {"orders": {"id": "lZ6vvmajTWKDBUTV6SQAtQ", "p": {"0": 123, "2": 9,'
        ' "10": 7}, "e": {"0": 7, "10": 3}}, "payments": {"id": null, "p": {"1": 2}}}, "from":'
        ' {"orders": {"id": "lZ6vvmajTWKDBUTV6SQAtQ", "p": {"2": 0, "10": 5}}}}'
    )
    assert text(INITIAL) == '{"v": 1, "at": "initial"}'


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("v1-*.json")), ids=lambda path: path.stem)
def test_sample_positions_round_trip(sample: Path) -> None:
    written = sample.read_text().rstrip("\n")
    assert text(position_from_json(json.loads(written))) == written


def test_sample_positions_of_every_version_exist() -> None:
    assert len(list(SAMPLES.glob("v1-*.json"))) >= 4


offsets = st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=5)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@st.composite
def positions(draw: st.DrawFn) -> StreamPosition:
    topics, begins = {}, {}
    for name in draw(st.sets(names, max_size=4)):
        offset_by_partition = draw(offsets)
        epochs = {
            number: draw(st.integers(0, 9)) for number in offset_by_partition if draw(st.booleans())
        }
        topic_id = draw(st.none() | names)
        topics[name] = TopicPosition(topic_id, offset_by_partition, epochs)
        begin_by_partition = {
            number: draw(st.integers(0, offset_by_partition[number]))
            for number in offset_by_partition
        }
        if topic_id is not None and begin_by_partition and draw(st.booleans()):
            begins[name] = TopicBegin(topic_id, begin_by_partition)
    return StreamPosition(topics, begins)


@given(positions(), st.randoms())
def test_position_and_its_canonical_text_round_trip(position: StreamPosition, random: Any) -> None:  # noqa: ANN401
    written = text(position)
    assert position_from_json(json.loads(written)) == position
    # The order of topics does not change the text.
    topics = list(position.topics.items())
    random.shuffle(topics)
    assert text(StreamPosition(dict(topics), position.begins)) == written


def test_position_of_sparks_kafka_source_is_read() -> None:
    written = json.loads('{"orders":{"1":5,"0":123},"v":{"0":1}}')
    assert position_from_json(written) == StreamPosition(
        {"orders": TopicPosition(None, {0: 123, 1: 5}), "v": TopicPosition(None, {0: 1})}
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"v": 2, "topics": {}}, "version 2, and this release of tiered-kafka reads version 1"),
        ({"v": 0, "topics": {}}, "version 0"),
        ({"v": 1, "at": "end"}, "it has 'at': 'end'"),
        ({"v": 1}, "the position has members"),
        ({"v": 1, "topics": {}, "to": {}}, "the position has members"),
        ({"v": 1, "topics": []}, "topics is not an object"),
        ({"v": 1, "topics": {"t": {"id": "", "p": {}}}}, "topic 't' has an invalid id ''"),
        ({"v": 1, "topics": {"t": {"id": "x"}}}, "topic 't' has members"),
        ({"v": 1, "topics": {"t": {"id": "x", "p": {"00": 1}}}}, "an invalid partition '00'"),
        ({"v": 1, "topics": {"t": {"id": "x", "p": {"2147483648": 1}}}}, "an invalid partition"),
        ({"v": 1, "topics": {"t": {"id": "x", "p": {"0": -1}}}}, "t-0 has an invalid offset -1"),
        ({"v": 1, "topics": {"t": {"id": "x", "p": {"0": True}}}}, "has an invalid offset True"),
        ({"v": 1, "topics": {"t": {"id": "x", "p": {"0": 2**63}}}}, "t-0 has an invalid offset"),
        ({"v": 1, "topics": {"t": {"id": "x", "p": {}, "e": {"0": 1}}}}, "epoch for a partition"),
        (
            {
                "v": 1,
                "topics": {"t": {"id": "x", "p": {"0": 1}}},
                "from": {"t": {"id": "y", "p": {"0": 1}}},
            },
            "partitions of topic 't' without end offset",
        ),
        ({"v": 1, "topics": {}, "from": {"t": {"id": "y", "p": {}}}}, "without end offset"),
        ({"logOffset": 3}, "topic 'logOffset' is not an object"),
        ([1], "it is not an object"),
        (5, "it is not an object"),
    ],
)
def test_position_from_invalid_json_raises_stream_offset_error(
    document: object, message: str
) -> None:
    with pytest.raises(StreamOffsetError) as error:
        position_from_json(document)
    assert message in str(error.value)
    assert "new checkpoint" in str(error.value) or "new\n checkpoint" in str(error.value)
