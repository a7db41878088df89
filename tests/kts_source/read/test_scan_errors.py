"""Checks that bad input raises an error with topic, partition, offset, object and byte. No scan may
lose rows without an error.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import (
    CorruptSegmentError,
    DataLossError,
    InvalidOptionError,
    OffsetOutOfRangeError,
    StoreError,
    TierNotFoundError,
    TopicNotFoundError,
    UnknownKeyError,
)
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.tier import Tier
from segment_format.record.framing import iter_entries
from tests.golden_data import (
    KEY_PREFIX,
    TIER,
    assert_same_rows,
    expected_table,
    tier_options,
)
from tests.kts_source.planning.history import TOPIC as HISTORY_TOPIC
from tests.kts_source.planning.history import History, Shape, Step, World
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.scanning import run, scan
from tests.quick import only

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """Returns a copy of the golden tier that a test may damage."""
    return shutil.copytree(TIER, tmp_path / "tier")


def options_for(tier: Path, topic: str, **more: str) -> dict[str, str]:
    return {**tier_options(topic, **more), "path": str(tier)}


def objects(tier: Path, topic: str, suffix: str) -> list[Path]:
    return sorted((tier / KEY_PREFIX).glob(f"{topic}-*/*/*.{suffix}"))


def flip(path: Path, position: int, bits: int = 0x40) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bits
    path.write_bytes(data)


def test_crc_mismatch_error_names_location(tier: Path) -> None:
    log = objects(tier, "codecs", "log")[1]
    flip(log, 500_000)
    with pytest.raises(CorruptSegmentError) as error:
        scan(options_for(tier, "codecs"))
    text = str(error.value)
    for words in ("CRC", "topic codecs", "partition 0", "offset ", str(log), "byte "):
        assert words in text
    assert error.value.offset is not None
    assert 5841 <= error.value.offset <= 10633
    assert error.value.position is not None
    assert error.value.position <= 500_000


def test_crc_is_ignored_with_check_crcs_false(tier: Path) -> None:
    # The checksum itself is wrong; the rows are valid.
    log = objects(tier, "appendtime", "log")[0]
    flip(log, 17)
    with pytest.raises(CorruptSegmentError, match="CRC"):
        scan(options_for(tier, "appendtime"))
    table = scan(options_for(tier, "appendtime", checkCrcs="false"))
    assert table.num_rows == expected_table("appendtime", "read_committed").num_rows


def test_unknown_magic_byte_raises_unsupported_format_error(tier: Path) -> None:
    log = objects(tier, "codecs", "log")[0]
    data = bytearray(log.read_bytes())
    data[16] = 7
    log.write_bytes(data)
    with pytest.raises(CorruptSegmentError, match=r"magic 7.*topic codecs, partition 0.*byte"):
        scan(options_for(tier, "codecs"))


@pytest.mark.parametrize("missing", [1, 1000, 20000])
def test_truncated_object_fails_the_plan(tier: Path, missing: int) -> None:
    log = objects(tier, "codecs", "log")[2]
    log.write_bytes(log.read_bytes()[:-missing])
    with pytest.raises(CorruptSegmentError) as error:
        plan_scan(parse_options(options_for(tier, "codecs")))
    assert "truncated" in str(error.value)
    assert log.name in str(error.value)


def test_object_changed_after_planning_raises_object_changed_error(tier: Path) -> None:
    options = options_for(tier, "codecs")
    plan = plan_scan(parse_options(options))
    log = objects(tier, "codecs", "log")[2]
    log.write_bytes(log.read_bytes()[:-1000])
    with pytest.raises(StoreError, match=r"topic codecs, partition 0"):
        run(plan, options)


def test_object_deleted_after_planning_raises_error(tier: Path) -> None:
    options = options_for(tier, "codecs")
    plan = plan_scan(parse_options(options))
    log = objects(tier, "codecs", "log")[2]
    log.unlink()
    with pytest.raises(DataLossError) as error:
        run(plan, options)
    assert log.name in str(error.value)
    assert "topic codecs" in str(error.value)


def test_chunk_with_wrong_authentication_tag_raises_error(tier: Path) -> None:
    log = objects(tier, "encrypted", "log")[0]
    flip(log, 40_000)
    with pytest.raises(CorruptSegmentError) as error:
        scan(options_for(tier, "encrypted"))
    text = str(error.value)
    for words in ("chunk", "key id 'key1'", "topic encrypted", log.name, "byte "):
        assert words in text


def test_missing_key_error_names_the_key_id() -> None:
    options = {
        name: text for name, text in tier_options("encrypted").items() if "key.pairs" not in name
    }
    with pytest.raises(UnknownKeyError, match=r"key id 'key1'.*no private key"):
        plan_scan(parse_options(options))
    options["encryption.key.pairs.other.private.key.file"] = "/nowhere.pem"
    with pytest.raises(UnknownKeyError, match=r"key id 'key1'.*the key ring has other"):
        plan_scan(parse_options(options))
    options["encryption.key.pairs.key1.private.key.file"] = "/nowhere.pem"
    with pytest.raises(UnknownKeyError, match=r"does not exist on the driver"):
        plan_scan(parse_options(options))


def test_unknown_topic_error_lists_topics() -> None:
    with pytest.raises(TopicNotFoundError, match=r"'codexx'.*appendtime, codecs, compacted"):
        scan(tier_options("codexx"))
    options = tier_options("codecs")
    del options["subscribe"]
    with pytest.raises(TopicNotFoundError, match=r"no topic matches 'nosuch\.\*'"):
        scan({**options, "subscribePattern": "nosuch.*"})


def test_error_of_missing_tier_names_the_searched_location(tmp_path: Path) -> None:
    with pytest.raises(TierNotFoundError, match=r"<topic>-<topic id>.*keyPrefix"):
        scan(options_for(tmp_path, "codecs"))
    # No object of the golden tier has a key with this misspelled prefix.
    with pytest.raises(TierNotFoundError, match="keyPrefix"):
        scan({**tier_options("codecs"), "keyPrefix": "tierd/"})


def test_tier_in_iceberg_mode_raises_error_that_names_iceberg(tmp_path: Path) -> None:
    folder = tmp_path / "tiered" / "codecs" / "metadata"
    folder.mkdir(parents=True)
    (folder / "adh9f8BMS4anaUnD8KWfWg.puffin").write_bytes(b"PFA1")
    with pytest.raises(TierNotFoundError, match=r"segment\.format=iceberg"):
        scan(options_for(tmp_path, "codecs"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[: len(text) // 2], "manifest"),
        (lambda text: text.replace('"version":"1"', '"version":"9"'), "version"),
        (lambda text: text.replace('"type":"fixed"', '"type":"odd"'), "odd"),
        (lambda text: json.dumps({**json.loads(text), "segmentIndexes": None}), "segmentIndexes"),
    ],
)
def test_unreadable_manifest_raises_error(tier: Path, change: object, words: str) -> None:
    manifest = objects(tier, "codecs", "rsm-manifest")[1]
    assert callable(change)
    manifest.write_text(change(manifest.read_text()))
    with pytest.raises(CorruptSegmentError) as error:
        plan_scan(parse_options(options_for(tier, "codecs")))
    text = str(error.value)
    assert words in text
    assert manifest.name in text
    assert "topic codecs" in text


def remove_segment(tier: Path, topic: str, number: int) -> None:
    stem = objects(tier, topic, "log")[number].stem
    for path in (tier / KEY_PREFIX).glob(f"{topic}-*/*/{stem}.*"):
        path.unlink()


def test_hole_error_names_its_offsets(tier: Path, caplog: pytest.LogCaptureFixture) -> None:
    remove_segment(tier, "codecs", 1)
    with pytest.raises(DataLossError) as error:
        scan(options_for(tier, "codecs"))
    text = str(error.value)
    assert "[5841, 10634)" in text
    assert "failOnDataLoss=false" in text
    with caplog.at_level(logging.WARNING):
        table = scan(options_for(tier, "codecs", failOnDataLoss="false"))
    assert "[5841, 10634)" in caplog.text
    offsets = expected_table("codecs", "read_committed")["offset"].to_pylist()
    assert table["offset"].to_pylist() == [o for o in offsets if not 5841 <= o < 10634]


def test_hole_error_lists_neighboring_segments(tier: Path) -> None:
    logs = objects(tier, "timeline", "log")
    names = [log.name for log in logs]
    facts = [
        json.loads(path.read_text())["remoteLogSegmentMetadata"]
        for path in objects(tier, "timeline", "rsm-manifest")
    ]
    for number in (9, 4, 3):
        remove_segment(tier, "timeline", number)
    options = options_for(tier, "timeline")
    with pytest.raises(DataLossError) as caught:
        plan_scan(parse_options(options))
    text = str(caught.value)
    assert "timeline-0" in text
    for first, last in ((3, 4), (9, 9)):
        missing = f"[{facts[first]['startOffset']}, {facts[last]['endOffset'] + 1})"
        position = text.index(missing)
        assert text.index(names[first - 1]) > position
        assert text.index(names[last + 1]) > text.index(names[first - 1])
    assert text.count(" between ") == 2
    advice = plan_scan(parse_options({**options, "failOnDataLoss": "false"})).explain()
    assert advice.count("hole: offsets") == 2
    for number in (2, 5, 8, 10):
        assert names[number] in advice
    # A range that overlaps a hole lists only the overlapping part.
    start, stop = facts[4]["startOffset"], facts[6]["startOffset"]
    bounds = {
        "startingOffsets": json.dumps({"timeline": {"0": start}}),
        "endingOffsets": json.dumps({"timeline": {"0": stop}}),
    }
    with pytest.raises(DataLossError) as caught:
        plan_scan(parse_options({**options, **bounds}))
    assert f"[{start}, {facts[4]['endOffset'] + 1})" in str(caught.value)
    assert str(caught.value).count(" between ") == 1


def test_missing_segments_below_log_start_are_not_a_hole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    segment = (Step("append", b=2), Step("roll", a=7), Step("upload", a=15))
    delete_under_way = Step("retain", a=1, b=7, c=1)
    history = History(
        Shape(),
        (*segment * 5, delete_under_way, delete_under_way, *segment, Step("lose", a=1, b=0)),
    )
    world = World(history)
    options = {"path": "/", "subscribe": HISTORY_TOPIC}
    with caplog.at_level(logging.INFO, "kts_source"):
        plan = plan_scan(parse_options(options), Tier(MemoryStore(world.store)))
    (partition,) = plan.partitions
    assert not partition.surviving.holes
    bases = sorted(span.segment.start_offset for span in partition.surviving.ranges)
    assert partition.start == partition.surviving.log_start == min(bases) > 0
    skipped = [interval.segment for interval in partition.surviving.skipped]
    # The segment with base offset 3 was deleted, so it is not listed as skipped.
    assert [segment.start_offset for segment in skipped] == [0, 6, 9]
    for skipped_segment in skipped:
        line = f"segment {skipped_segment.segment_id} not read: below the log start"
        assert line in caplog.text
        assert (
            f"skipped segment {skipped_segment.segment_id}: below the log start" in plan.explain()
        )


def test_hole_outside_the_requested_offsets_is_ignored(tier: Path) -> None:
    remove_segment(tier, "codecs", 1)
    table = scan(options_for(tier, "codecs", startingOffsets='{"codecs":{"0":11000}}'))
    assert table.num_rows == 23962 - 11000


def test_segment_log_without_manifest_is_reported_as_orphan(tier: Path) -> None:
    objects(tier, "codecs", "rsm-manifest")[3].unlink()
    table = scan(options_for(tier, "codecs"))
    assert table["offset"].to_pylist()[-1] == 18660
    (partition,) = plan_scan(parse_options(options_for(tier, "codecs"))).partitions
    (orphan,) = partition.orphans
    assert "no .rsm-manifest" in orphan.reason
    assert {key.rsplit(".", 1)[1] for key in orphan.keys} == {"indexes", "log"}


def test_manifest_without_segment_log_is_reported_as_orphan_and_hole(tier: Path) -> None:
    gone = objects(tier, "codecs", "log")[1]
    gone.unlink()
    with pytest.raises(DataLossError, match=r"\[5841, 10634\)"):
        plan_scan(parse_options(options_for(tier, "codecs")))
    lenient_options = options_for(tier, "codecs", failOnDataLoss="false")
    plan = plan_scan(parse_options(lenient_options))
    (orphan,) = plan.partitions[0].orphans
    assert "no .log" in orphan.reason
    assert gone.stem in orphan.keys[0]
    assert gone.stem in plan.explain()


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"endingOffsets": '{"codecs":{"0":99999}}'}, "99999, which is not tiered yet"),
        ({"startingOffsets": '{"codecs":{"0":99999}}'}, "99999, which is not tiered yet"),
    ],
)
def test_offsets_outside_the_tier_raise_error(bounds: dict[str, str], words: str) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=words):
        scan(tier_options("codecs", **bounds))
    scan(tier_options("codecs", failOnDataLoss="false", **bounds))


def test_offsets_below_the_log_start_raise_error() -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"5, which is below the log start.*\[676"):
        scan(tier_options("trimmed", startingOffsets='{"trimmed":{"0":5}}'))


def test_starting_offsets_of_unknown_partition_raise_invalid_option_error() -> None:
    with pytest.raises(InvalidOptionError, match="not read: txn-9"):
        scan(tier_options("txn", startingOffsets='{"txn":{"0":5,"9":0}}'))


def test_wrong_offset_index_raises_error(tier: Path) -> None:
    manifest = json.loads(objects(tier, "codecs", "rsm-manifest")[0].read_text())
    section = manifest["segmentIndexes"]["offset"]
    indexes = objects(tier, "codecs", "indexes")[0]
    data = bytearray(indexes.read_bytes())
    # Each index entry has a lower offset than the batch at its position. A reader that trusted the
    # entries would skip rows.
    first = int.from_bytes(data[section["position"] : section["position"] + 4], "big")
    for position in range(section["position"], section["position"] + section["size"], 8):
        relative = int.from_bytes(data[position : position + 4], "big")
        data[position : position + 4] = (relative - first + 1).to_bytes(4, "big")
    indexes.write_bytes(data)
    with pytest.raises(CorruptSegmentError, match="offset index does not match"):
        scan(options_for(tier, "codecs", startingOffsets='{"codecs":{"0":2000}}'))


@pytest.mark.parametrize("target", ["64k", "1g"])
@pytest.mark.parametrize("bounds", only(1, [{"startingOffsets": 1500, "endingOffsets": 9000}, {}]))
def test_scan_with_flipped_base_offset_bit_never_returns_wrong_rows(
    tier: Path, bounds: dict[str, int], target: str
) -> None:
    # No checksum covers the base offset. A wrong one may seem to be outside the requested range.
    source = random.Random(f"{bounds} {target}")
    bounds_of_topic = {
        name: json.dumps({"codecs": {"0": offset}}) for name, offset in bounds.items()
    }
    options = options_for(tier, "codecs", targetPartitionBytes=target, **bounds_of_topic)
    all_rows = scan(options)
    refused: list[str] = []
    for _ in range(60):
        log = source.choice(objects(tier, "codecs", "log"))
        intact = log.read_bytes()
        entry = source.choice(list(iter_entries(intact)))
        bit = source.randrange(64)
        flip(log, entry.position + bit // 8, 1 << bit % 8)
        try:
            assert_same_rows(scan(options), all_rows)
        except CorruptSegmentError as error:
            refused.append(str(error))
        log.write_bytes(intact)
    assert all("/codecs-" in text for text in refused)
    assert len(refused) == 60 if not bounds else refused
