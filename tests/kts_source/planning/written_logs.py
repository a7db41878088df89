"""Writes a log to a tier in memory, and reads its offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.tier import Tier
from segment_format.testing import AivenTierWriter, LocalTierWriter
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.scanning import run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from segment_format.testing import BuiltLog


def write_log(log: BuiltLog, *, local: bool, lost_segment: int | None = None) -> dict[str, bytes]:
    """Writes a log as topic `t` and returns the objects of the tier by key.

    Args:
        log: Log to write.
        local: Whether to use the layout of LocalTieredStorage instead of Aiven's layout.
        lost_segment: Number of a segment that is not written.
    """
    objects: dict[str, bytes] = {}
    writer = LocalTierWriter(objects, topic="t") if local else AivenTierWriter(objects, topic="t")
    for number, files in enumerate(log.segments):
        if files.log and number != lost_segment:
            writer.write_segment(files)
    return objects


def find_index_key(
    objects: Mapping[str, bytes], base_offset: int, suffix: str, *, local: bool
) -> str:
    """Returns the key of the object that contains an index of a segment.

    Aiven's layout stores all indexes of a segment in one object.

    Args:
        objects: Objects of the tier by key.
        base_offset: Base offset of the segment.
        suffix: Suffix of the index in LocalTieredStorage, such as `.timeindex`.
        local: Whether the layout is LocalTieredStorage.
    """
    ending = suffix if local else ".indexes"
    name = f"/{base_offset:020d}-"
    return next(key for key in objects if key.endswith(ending) and name in key)


def read(objects: dict[str, bytes], local: bool, **options: str) -> list[int]:
    """Returns the offsets that a scan of topic `t` in the tier `objects` reads.

    Args:
        objects: Objects of the tier by key.
        local: Whether the layout is LocalTieredStorage.
        options: Additional options of the scan.
    """
    layout = {"layout": "local-tiered-storage"} if local else {}
    option_texts = {"path": "/", "subscribe": "t", **layout, **options}
    tier = Tier(MemoryStore(objects))
    rows = run(plan_scan(parse_options(option_texts), tier), option_texts, tier)
    return [int(offset) for offset in rows["offset"].to_pylist()]
