"""Checks that written tiers are read back as the original segments, under the right names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segment_format.manifest.object_names import parse_local_partition_directory
from segment_format.manifest.segment_manifest import SegmentManifest
from segment_format.testing import (
    AivenTierWriter,
    EncryptionKey,
    LocalTierWriter,
    LogBuilder,
    SegmentFiles,
    SimpleRecord,
)
from tests.golden_data import KEYS
from tests.log_strategies import (
    segments,
)
from tests.object_names import parse_local_file_name, parse_object_key
from tests.segment_format.testing.restored import restore

if TYPE_CHECKING:
    from pathlib import Path

KEY = EncryptionKey("key1", (KEYS / "key1.public.pem").read_bytes())

# Drawing full logs takes a while on a busy machine.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(UNHURRIED, max_examples=60)
@given(
    segment=segments(),
    chunk_size=st.sampled_from([50, 61, 300, 1 << 20]),
    compression=st.booleans(),
    encryption=st.sampled_from([None, KEY]),
    key_prefix=st.sampled_from(["", "tiered/", "no-slash"]),
)
def test_aiven_objects_restore_to_the_segment(
    segment: SegmentFiles,
    chunk_size: int,
    compression: bool,
    encryption: EncryptionKey | None,
    key_prefix: str,
) -> None:
    objects: dict[str, bytes] = {}
    writer = AivenTierWriter(
        objects,
        topic="my-topic.1",
        partition=3,
        key_prefix=key_prefix,
        chunk_size=chunk_size,
        compression=compression,
        encryption=encryption,
    )
    written = writer.write_segment(segment)
    assert list(objects) == list(written.keys)
    log, indexes, manifest_json = objects.values()
    for key in written.keys:
        parsed = parse_object_key(key, prefix=key_prefix)
        assert (parsed.topic, parsed.partition) == ("my-topic.1", 3)
        assert parsed.base_offset == segment.base_offset
    assert restore(log, indexes, manifest_json) == (
        segment.log,
        [
            segment.index,
            segment.timeindex,
            segment.snapshot,
            segment.leader_epoch_checkpoint,
            segment.txnindex,
        ],
    )
    manifest = SegmentManifest.from_json(manifest_json)
    assert manifest.metadata is not None
    assert manifest.metadata.end_offset == segment.end_offset
    assert manifest.metadata.event_timestamp_ms == written.event_timestamp_ms
    assert segment.epochs == tuple(
        (entry.epoch, entry.start_offset) for entry in manifest.metadata.segment_leader_epochs
    )


def test_local_tier_has_kafka_file_names(tmp_path: Path) -> None:
    builder = LogBuilder()
    builder.send(7, [SimpleRecord(b"undone")])
    builder.abort(7)
    builder.roll()
    builder.append([SimpleRecord(b"kept")])
    writer = LocalTierWriter(tmp_path, topic="my-topic", partition=12)
    log = builder.build()
    written = [writer.write_segment(segment) for segment in log.segments]
    (root,) = tmp_path.iterdir()
    (folder,) = root.iterdir()
    assert root.name == "kafka-tiered-storage"
    partition = parse_local_partition_directory(folder.name)
    assert partition is not None
    assert (partition.topic, partition.partition) == ("my-topic", 12)
    names = [parse_local_file_name(path.name) for path in sorted(folder.iterdir())]
    assert [name.base_offset for name in names if name is not None] == [0] * 6 + [2] * 5
    assert {str(path.relative_to(tmp_path)) for path in folder.iterdir()} == {
        key for segment in written for key in segment.keys
    }
    first = folder / written[0].keys[0].rsplit("/", 1)[1]
    assert first.read_bytes() == log.segments[0].log
