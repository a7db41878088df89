"""Writes a log to a tier in memory, and reads its offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.tier import Tier
from segment_format.testing import AivenTierWriter, LocalTierWriter
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.reading import without_threads
from tests.kts_source.planning.scanning import run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from segment_format.testing import BuiltLog


def write_log(log: BuiltLog, *, local: bool, lost_segment: int | None = None) -> dict[str, bytes]:
    """Writes a log as topic `t` and returns the objects of the tier by key. If `local` is true,
    uses the layout of LocalTieredStorage, else Aiven's. Does not write the segment with number
    `lost_segment`.
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
    """Returns the key of the object that contains an index of the segment with base offset
    `base_offset`.

    `suffix` is the suffix of the index in LocalTieredStorage, such as `.timeindex`. If `local` is
    false, this is the object of Aiven's layout that contains all indexes of the segment.
    """
    ending = suffix if local else ".indexes"
    name = f"/{base_offset:020d}-"
    return next(key for key in objects if key.endswith(ending) and name in key)


def read(objects: dict[str, bytes], local: bool, **options: str) -> list[int]:
    """Returns the offsets that a scan of topic `t` in the tier `objects` reads. `local` selects the
    layout of LocalTieredStorage instead of Aiven's.
    """
    layout = {"layout": "local-tiered-storage"} if local else {}
    option_texts = {"path": "/", "subscribe": "t", **layout, **options}
    tier = Tier(MemoryStore(objects))
    with without_threads():
        rows = run(plan_scan(parse_options(option_texts), tier), option_texts, tier)
    return [int(offset) for offset in rows["offset"].to_pylist()]
