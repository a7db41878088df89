"""What the tier has of the topics of a cluster, listed when a stream needs it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kts_source.planning.hybrid import check_tier, list_tier
from kts_source.planning.segment_catalog import PLANNING_THREADS
from kts_source.planning.side_files import SideFiles
from kts_source.planning.tiered_part import TieredPart, tiered_part
from kts_source.read.segment_source import SegmentSource

if TYPE_CHECKING:
    from kts_source.broker.cluster import TopicPartition
    from kts_source.options import ScanOptions
    from kts_source.planning.cluster_view import BrokerLog, ClusterView
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.tier import Tier


class TierListing:
    """Lists the tier beside brokers. From any thread.

    Args:
        options: What is read.
        tier: Where it is.
        view: Names the topics.
    """

    def __init__(self, options: ScanOptions, tier: Tier, view: ClusterView) -> None:
        self._options = options
        self._tier = tier
        self._view = view
        self._describing = ThreadPoolExecutor(PLANNING_THREADS, "kts-describe")
        self._lock = threading.Lock()
        self._ids: dict[TopicPartition, str] = {}
        self._parts: dict[TopicPartition, TieredPart] = {}
        self._listed_at = float("-inf")

    def close(self) -> None:
        """Lets its threads go."""
        self._describing.shutdown(wait=False, cancel_futures=True)

    def part(self, brokers: BrokerLog, offset: int, *, refresh: bool = False) -> TieredPart:
        """What the tier has of a partition from an offset on; nothing where brokers have all of
        that on their own disks, and none of it was tiered when the tier was last listed.

        Args:
            brokers: The partition as its leader describes it.
            offset: The first offset that is wanted.
            refresh: Whether to list the tier anew, however young the last listing is.

        Raises:
            TopicNotFoundError: The tier has nothing of a topic of which brokers say it is tiered.
            TieredKafkaError: It cannot be listed.
        """
        place = brokers.topic, brokers.partition
        if self._options.path:
            with self._lock:
                is_new = refresh or self._ids.get(place) != brokers.topic_id
                if is_new or (not self._will_do(brokers, offset) and self._is_old()):
                    self._list()
        known = self._parts.get(place)
        if known is None or self._ids[place] != brokers.topic_id:
            return TieredPart((), self._side_files(None))
        if self._options.tail and all(one.stop_offset <= offset for one in known.segments):
            return TieredPart((), known.side_files)
        return known

    def _will_do(self, brokers: BrokerLog, offset: int) -> bool:
        """Whether nothing that was tiered since the last listing is wanted."""
        if not self._options.tail:  # every new segment moves the end of the tier
            return False
        known = self._parts.get((brokers.topic, brokers.partition))
        if known is not None and any(one.stop_offset > offset for one in known.segments):
            return True
        return brokers.local_start is not None and offset >= brokers.local_start

    def _is_old(self) -> bool:
        age_ms = (time.monotonic() - self._listed_at) * 1000
        return age_ms >= self._options.stream.listing_interval_ms

    def _list(self) -> None:
        logs = self._view.logs
        options, tier = self._options, self._tier
        with ThreadPoolExecutor(PLANNING_THREADS, "kts-list") as pool:
            listing = list_tier(options, tier, self._view, self._describing, pool)
            check_tier(options, tier, listing, self._view)

            def described(part: ListedPartition) -> TieredPart:
                side_files = self._side_files(part)
                place = part.topic, part.partition
                try:
                    return tiered_part(
                        part, side_files, listing.named, place, needs_end=not options.tail
                    )
                finally:
                    part.save()

            found = pool.map(described, listing.partitions.values())
            self._parts = dict(zip(listing.partitions, found, strict=True))
        self._ids = {place: one.topic_id for place, one in logs.items()}
        self._listed_at = time.monotonic()

    def _side_files(self, part: ListedPartition | None) -> SideFiles:
        pack = None if part is None else part.side_files
        source = SegmentSource(self._tier, self._options.key_ring, pack=pack)
        return SideFiles(source, max_batch_bytes=self._options.max_batch_bytes)
