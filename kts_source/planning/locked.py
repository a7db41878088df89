"""Partitions that cannot be described for want of a private key, beside those that can."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from kts_source.errors import TieredKafkaError
from kts_source.layout.find_layout import find_layout
from kts_source.options.selection import Assign
from kts_source.planning.discover import discover
from kts_source.planning.segment_catalog import ListedPartition, SegmentCatalog
from kts_source.tier import open_tier
from segment_format.errors import UnknownKeyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kts_source.options import ScanOptions
    from kts_source.tier import Tier

_Made = TypeVar("_Made")
_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class LockedPartition:
    """What manifests alone tell of a partition.

    Attributes:
        keys_needed: Ids of the keys that some of its segments want and the ring lacks.
        segments: Whole segments.
        stored_bytes: Their log objects together.
        original_bytes: The same before compression and encryption.
        orphans: Objects that belong to no segment.
    """

    topic: str
    topic_id: str
    partition: int
    keys_needed: tuple[str, ...]
    segments: int
    stored_bytes: int
    original_bytes: int
    orphans: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Why it is locked, in words."""
        return f"key {', '.join(self.keys_needed)} needed"


def unless_locked(make: Callable[[], _Made]) -> _Made | None:
    """What a call gives; `None` where a private key that is not given is what its error is about.

    Raises:
        TieredKafkaError: Any other error of the call.
    """
    try:
        return make()
    except TieredKafkaError as error:
        cause: BaseException | None = error
        while not isinstance(cause, UnknownKeyError):
            if cause is None:
                raise
            cause = cause.__cause__
    return None


def partitions_with_keys(
    options: ScanOptions, tier: Tier | None = None
) -> list[tuple[ListedPartition, tuple[str, ...]]]:
    """Every partition, and the ids of keys that some of its segments want and the ring lacks."""
    layout = find_layout(
        options.layout, end_of_log=options.end_of_log, paths=1 + len(options.disk_paths)
    )
    held = set(options.key_ring.key_ids)
    with (
        closing(open_tier(options)) if tier is None else nullcontext(tier) as opened,
        ThreadPoolExecutor(_THREADS) as pool,
        ThreadPoolExecutor(_THREADS) as describing,
    ):
        catalog = SegmentCatalog(opened, layout, describing, fail_on_data_loss=False)
        topics = discover(options, catalog, pool)
        parts = [part for topic in topics for part in topic.partitions]
        return [(part, _keys_lacking(part, held)) for part in parts]


def _keys_lacking(part: ListedPartition, held: set[str]) -> tuple[str, ...]:
    encryptions = (segment.objects.encryption for segment in part.all())
    wanted = {found.data_key.key_id for found in encryptions if found is not None}
    return tuple(sorted(key_id for key_id in wanted if key_id.lower() not in held))


def only(options: ScanOptions, parts: Iterable[ListedPartition]) -> ScanOptions:
    """The options of a read of these partitions."""
    numbers: dict[str, tuple[int, ...]] = {}
    for part in parts:
        numbers[part.topic] = (*numbers.get(part.topic, ()), part.partition)
    return replace(options, selection=Assign(numbers))


def locked_partition(part: ListedPartition, keys: tuple[str, ...]) -> LockedPartition:
    """What manifests tell of a partition."""
    segments = part.all()
    return LockedPartition(
        part.topic,
        part.topic_id,
        part.partition,
        keys,
        len(segments),
        sum(segment.objects.log.size for segment in segments),
        sum(segment.objects.size_in_bytes for segment in segments),
        tuple(f"{', '.join(orphan.keys)}: {orphan.reason}" for orphan in part.orphans),
    )
