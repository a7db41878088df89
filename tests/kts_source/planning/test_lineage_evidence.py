"""Checks that a changed digit in a leader-epoch checkpoint never drops rows without an error."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import CorruptSegmentError, DataLossError, TieredKafkaError
from kts_source.options import parse_options
from kts_source.planning.lineage_evidence import difference
from kts_source.planning.planner import plan_scan
from kts_source.tier import Tier
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import EpochEntry
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.scanning import run

if TYPE_CHECKING:
    from kts_source.auditing.report import AuditReport
    from segment_format.testing import BuiltLog

TOPIC_ID = "lZ6vvmajTWKDBUTV6SQAtQ"
NOW_MS = 1 << 45
# Leader epochs of each segment, with the record count of each epoch. An epoch that begins with a
# segment is not in the checkpoints of the earlier segments.
SHAPES = (
    (((3, 10),), ((3, 5), (5, 5)), ((5, 10),)),
    (((3, 10),), ((5, 10),), ((5, 10),), ((12, 10),)),
    (((3, 10),), ((5, 10),)),
    (((3, 10),), ((3, 10),), ((5, 5), (7, 5)), ((7, 10),)),
    (((3, 10),), ((4, 4), (5, 4)), ((17, 10),), ((17, 10),)),
)


def build_log(shape: tuple[tuple[tuple[int, int], ...], ...], start: int = 100) -> BuiltLog:
    newest = shape[0][0][0]
    builder = LogBuilder(start_offset=start, leader_epoch=newest)
    for segment in shape:
        for epoch, records in segment:
            if epoch > newest:
                builder.set_leader_epoch(epoch)
                newest = epoch
            builder.append([SimpleRecord(b"v")] * records)
        builder.roll()
    return builder.build()


class World:
    """A tier in memory whose leader-epoch checkpoints can be replaced."""

    def __init__(self, log: BuiltLog, *, local: bool) -> None:
        self.objects: dict[str, bytes] = {}
        self.local = local
        self.rows = [row.offset for row in log.all_rows]
        self.checkpoints: list[tuple[str, bytes]] = []
        writer: AivenTierWriter | LocalTierWriter
        if local:
            writer = LocalTierWriter(self.objects, topic="t", topic_id=TOPIC_ID)
        else:
            writer = AivenTierWriter(self.objects, topic="t", topic_id=TOPIC_ID)
        suffix = ".leader_epoch_checkpoint" if local else ".indexes"
        for files in log.segments:
            if files.log:
                before = set(self.objects)
                writer.write_segment(files)
                (key,) = (k for k in set(self.objects) - before if k.endswith(suffix))
                self.checkpoints.append((key, files.leader_epoch_checkpoint))

    @property
    def options(self) -> dict[str, str]:
        layout = {"layout": "local-tiered-storage"} if self.local else {}
        return {"path": "/", "subscribe": "t", **layout}

    def read(self, **extra: str) -> list[int]:
        option_texts = {**self.options, **extra}
        tier = Tier(MemoryStore(self.objects))
        rows = run(plan_scan(parse_options(option_texts), tier), option_texts, tier)
        return [int(offset) for offset in rows["offset"].to_pylist()]

    def audit(self, level: str = "bytes") -> AuditReport:
        store = MemoryStore(self.objects)
        return kts_source.audit(self.options, level=level, store=store, now_ms=NOW_MS)

    def write(self, number: int, checkpoint: bytes) -> None:
        """Replaces the checkpoint of segment `number` with a checkpoint of the same length."""
        key, old = self.checkpoints[number]
        data = self.objects[key]
        start = data.rindex(old)
        self.objects[key] = data[:start] + checkpoint + data[start + len(old) :]
        self.checkpoints[number] = key, checkpoint


def is_log_start(checkpoint: bytes, position: int) -> bool:
    """Returns whether the byte at `position` is a digit of the start offset of the first epoch.

    The request DeleteRecords can raise this offset.
    """
    lines = checkpoint.split(b"\n")
    begin = len(lines[0]) + len(lines[1]) + 2 + lines[2].index(b" ") + 1
    return begin <= position < begin + len(lines[2].split(b" ")[1])


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_changed_digit_in_checkpoint_never_drops_rows_silently(
    shape: tuple[tuple[tuple[int, int], ...], ...],
    local: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(build_log(shape), local=local)
    assert world.read() == world.rows
    assert world.audit().findings == ()
    newest = len(world.checkpoints) - 1
    changes = [
        (number, position, digit)
        for number, (_, checkpoint) in enumerate(world.checkpoints)
        for position in range(len(checkpoint))
        for digit in b"0123456789"
        if chr(checkpoint[position]).isdigit() and digit != checkpoint[position]
    ]
    error_count = 0
    for number, position, digit in random.Random(7).sample(changes, 60):
        old = world.checkpoints[number][1]
        world.write(number, old[:position] + bytes([digit]) + old[position + 1 :])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            try:
                rows = world.read()
            except (TieredKafkaError, SegmentFormatError):
                error_count += 1
                assert world.audit().errors, (number, world.checkpoints[number])
                rows = world.rows
        if rows != world.rows:
            # DeleteRecords also raises a start offset, so the scan only logs the log start.
            assert (number, is_log_start(old, position)) == (newest, True)
            assert rows == [row for row in world.rows if row >= rows[0]]
            assert any("the log starts at" in record.message for record in caplog.records)
            finding_names = {finding.name for finding in world.audit().findings}
            assert finding_names & {"log-start-unconfirmed", "below-log-start"}
        world.write(number, old)
    assert error_count > 5


@pytest.mark.parametrize("local", [False, True])
def test_contradicting_checkpoints_raise_error_and_audit_advises_against_deletion(
    local: bool,
) -> None:
    world = World(build_log(SHAPES[0], start=0), local=local)
    world.write(2, world.checkpoints[2][1].replace(b"\n3 0\n", b"\n1 0\n"))
    with pytest.raises(DataLossError, match="follows epoch 1 in the former and epoch 3") as error:
        world.read()
    assert "set failOnDataLoss=false" in str(error.value)
    with pytest.raises(DataLossError, match="contradicts"):
        world.read(startingOffsets='{"t":{"0":5}}')
    for level in ("metadata", "indexes", "bytes"):
        report = world.audit(level)
        (finding,) = report.errors
        assert (finding.name, finding.start, finding.stop) == ("lineage-disagrees", 0, 20)
        assert {reported.name for reported in report.findings} == {"lineage-disagrees"}
        assert "delete no segment" in finding.kind.advice
        assert not report.partitions[0].is_whole
        assert report.partitions[0].digest is None
    assert world.read(failOnDataLoss="false") == list(range(20, 30))


def test_checkpoint_contradicting_its_manifest_raises_corrupt_segment_error() -> None:
    world = World(build_log(SHAPES[0], start=0), local=False)
    world.write(2, world.checkpoints[2][1].replace(b"\n5 15\n", b"\n7 15\n"))
    with pytest.raises(CorruptSegmentError, match=r"epoch 7 from 20 .* epoch 5 from 20") as error:
        world.read()
    assert str(error.value).count(".log") == 1
    assert [finding.name for finding in world.audit("metadata").errors] == ["epochs-disagree"]


def test_offsets_below_a_raised_log_start_are_skipped_in_both_layouts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for local in (False, True):
        world = World(build_log(SHAPES[0], start=100), local=local)
        for number in (1, 2):
            world.write(number, world.checkpoints[number][1].replace(b"\n3 100\n", b"\n3 104\n"))
        with caplog.at_level(logging.WARNING):
            assert world.read() == list(range(104, 130))
        assert "the log starts at" not in caplog.text  # two checkpoints confirm it
        assert not world.audit().errors


def make_entries(*pairs: tuple[int, int]) -> list[EpochEntry]:
    return [EpochEntry(*pair) for pair in pairs]


def test_checkpoints_after_unclean_election_or_moved_log_start_do_not_contradict() -> None:
    lineage = make_entries((1, 0), (3, 50), (6, 90))
    for other in (
        make_entries((1, 0), (3, 50)),  # before the last election
        make_entries((3, 70), (6, 90)),  # a later log start, or only the epochs of a segment
        make_entries((1, 0), (2, 40)),  # a dead branch
        make_entries((1, 0), (3, 50), (4, 80), (5, 85)),
        make_entries((6, 95)),
        make_entries(),
    ):
        assert difference(lineage, other) is difference(other, lineage) is None


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (((1, 0), (2, 40), (3, 50)), "follows epoch 1 in the former and epoch 2 in the latter"),
        (((1, 0), (3, 51)), "begins at offset 50 in the former and at 51 in the latter"),
        (((3, 49), (6, 90)), "begins at offset 50 in the former and at 49 in the latter"),
        (((0, 0), (1, 10)), "begins at offset 0 in the former and at 10 in the latter"),
    ],
)
def test_checkpoints_that_differ_before_a_shared_epoch_contradict(
    other: tuple[tuple[int, int], ...], text: str
) -> None:
    reason = difference(make_entries((1, 0), (3, 50), (6, 90)), make_entries(*other))
    assert reason is not None
    assert text in reason
