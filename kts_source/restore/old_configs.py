"""Reads the configurations of topics from the metadata log on the disk of an old controller, and
chooses those that restored topics get.

The metadata log is the folder `__cluster_metadata-0`: the newest snapshot (`.checkpoint`), and the
segments after it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.broker.cluster import topic_configs as described_configs
from kts_source.errors import BrokerError, CorruptSegmentError, InvalidOptionError
from kts_source.restore.target import REQUIRED_CONFIGS, ZERO_COPY_CONFIGS
from segment_format.errors import SegmentFormatError
from segment_format.kafka_uuid import uuid_from_text
from segment_format.metadata.topic_configs import topic_configs
from segment_format.record.records import iter_batches
from segment_format.record.recovery import WholeBatches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.broker.cluster import Cluster
    from kts_source.restore.restore_plan import RestorePlan
    from segment_format.record.records import DecodedBatch

METADATA_LOG: Final = "__cluster_metadata-0"
_SNAPSHOT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_SEGMENT: Final = re.compile(r"(\d{20})\.log")
_ELSE: Final = ". Use the disk of another controller, or set the configurations with --config"
_OF_OLD_BROKERS: Final = frozenset(
    {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)


def old_configs(plan: RestorePlan, log_dir: str) -> dict[str, dict[str, str]]:
    """Returns the configurations that were set for the planned topics in the old cluster, by name
    of the target topic. Lists of throttled replicas are not included, because they contain ids of
    old brokers.

    Args:
        plan: The executed plan.
        log_dir: A log directory of an old controller (`metadata.log.dir`), or its metadata log.

    Raises:
        InvalidOptionError: The folder has no metadata log, or the log does not contain a topic of
            the plan.
        CorruptSegmentError: The metadata log is invalid.
    """
    folder = Path(log_dir)
    if folder.name != METADATA_LOG:
        folder /= METADATA_LOG
    try:
        found = topic_configs(_batches(folder))
    except OSError as error:
        raise InvalidOptionError(f"metadata log {folder} cannot be read: {error}") from None
    except SegmentFormatError as error:
        raise CorruptSegmentError(f"metadata log {folder} is invalid: {error}{_ELSE}") from error
    configs = {}
    for each in plan.partitions:
        topic_id = uuid_from_text(each.topic_id)
        if topic_id not in found:
            raise InvalidOptionError(
                f"metadata log {folder} has no topic {each.topic} with id {each.topic_id}: use the"
                " disk of a controller of the old cluster, or --config"
            )
        configs[each.target_topic] = {
            name: value for name, value in found[topic_id].items() if name not in _OF_OLD_BROKERS
        }
    return configs


def known_configs(
    cluster: Cluster,
    plan: RestorePlan,
    old: Mapping[str, Mapping[str, str]],
    overrides: Mapping[str, str],
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Returns the configurations that the new brokers know, by topic, and a line for each topic
    with others. Another line names settings of the restore that the old topic did not have: they
    keep their values, because the default of a new broker could delete records.

    Args:
        cluster: Connections to the new cluster.
        plan: The executed plan.
        old: Configurations of the old topics, by name of the target topic.
        overrides: Configurations that the operator sets.

    Raises:
        BrokerError: The brokers refuse to describe a topic.
    """
    required = ZERO_COPY_CONFIGS if plan.zero_copy else REQUIRED_CONFIGS
    names = sorted({name for values in old.values() for name in values})
    known, report = {}, []
    for topic, found in described_configs(cluster, old, names).items():
        if found.refusal:
            raise BrokerError(f"{topic}: its configurations cannot be read: {found.refusal}")
        values = old[topic]
        known[topic] = {name: text for name, text in values.items() if name in found.values}
        if unknown := sorted(values.keys() - known[topic].keys()):
            report.append(f"{topic}: the new brokers do not know: {', '.join(unknown)}")
        if kept := sorted(required.keys() - values.keys() - overrides.keys()):
            report.append(
                f"{topic}: not changed, because the old topic used the defaults of its brokers:"
                f" {', '.join(kept)}. Set them with --config"
            )
    return known, report


def _batches(folder: Path) -> Iterator[DecodedBatch]:
    """Yields the batches of the newest snapshot, and of the log after it."""
    names = sorted(path.name for path in folder.iterdir())
    snapshots = [match for name in names if (match := _SNAPSHOT.fullmatch(name))]
    segments = [match for name in names if (match := _SEGMENT.fullmatch(name))]
    if not segments:
        raise InvalidOptionError(f"{folder} has no segments: use the disk of an old controller")
    end = 0
    if snapshots:
        end = int(snapshots[-1][1])
        yield from iter_batches((folder / snapshots[-1][0]).read_bytes())
    bases = [int(match[1]) for match in segments]
    for match, base, next_base in zip(segments, bases, [*bases[1:], None], strict=True):
        if next_base is not None and next_base <= end:
            continue
        if base > end:
            raise CorruptSegmentError(f"metadata log {folder} lacks offsets [{end}, {base}){_ELSE}")
        path = folder / match[0]
        data = path.read_bytes()
        whole = _whole_bytes(data, base)
        if whole < len(data) and next_base is not None:
            raise CorruptSegmentError(f"{path} is invalid from byte {whole} on{_ELSE}")
        for batch in iter_batches(memoryview(data)[:whole], check_crcs=False):
            if batch.base_offset >= end:
                yield batch
                end = batch.last_offset + 1


def _whole_bytes(data: bytes, base_offset: int) -> int:
    """Returns the size of the intact batches at the start of a segment. After a crash, the last
    segment may end with an incomplete batch.
    """
    batches = WholeBatches(
        lambda start, stop: data[start:stop], len(data), base_offset, check_crcs=True
    )
    for _ in batches:
        pass
    return batches.position
