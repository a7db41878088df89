"""Looks at the topics of a stream through their brokers: their leaders say what the log is.

The tier is listed for offsets that leaders may no longer have on their own disks. What was produced
since the last batch they still have, and it comes from there, whether it was tiered meanwhile or
not: a stream that keeps up lists nothing.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kts_source.errors import DataLossError, LeaderChangedError, TopicNotFoundError
from kts_source.options.selection import EarliestBound, LatestBound, SubscribePattern
from kts_source.planning.cluster_view import ClusterView
from kts_source.planning.segment_catalog import PLANNING_THREADS
from kts_source.streaming.admission import Place
from kts_source.streaming.broker_look import BrokerLook
from kts_source.streaming.log_look import NewerTopic, TopicLook
from kts_source.streaming.tier_listing import TierListing
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kts_source.broker.cluster import TopicPartition
    from kts_source.broker.settings import BrokerSettings
    from kts_source.options import ScanOptions
    from kts_source.streaming.log_look import LogLook, Look, Looker
    from kts_source.streaming.offsets import StreamPosition, TopicPosition
    from kts_source.tier import Tier

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
"""A look begins anew where a leader changes under it."""


class ClusterLooker:
    """Looks at the topics of one stream through brokers.

    Args:
        options: What is read. The tier is opened from them.
        settings: How brokers are reached.

    Attributes:
        tier: See `Looker`.
        pool: Likewise.
        interval_ms: Likewise.
    """

    def __init__(self, options: ScanOptions, settings: BrokerSettings) -> None:
        self._options = replace(options, key_ring=options.key_ring.loaded())
        self._settings = settings
        self.interval_ms = options.stream.poll_interval_ms
        self.tier = open_tier(options)
        self.pool = ThreadPoolExecutor(PLANNING_THREADS, "kts-look")
        self._now = _Asked(self._options, settings, self.tier)
        self._is_seen = False  # what the cluster last said
        self._replayed: _Asked | None = None
        self._tier_alone: Looker | None = None
        self._old_listed_at = float("-inf")
        self._replaced: set[str] = set()

    def close(self) -> None:
        """Hangs up, and lets threads go."""
        self._now.close()
        if self._replayed is not None:
            self._replayed.close()
        if self._tier_alone is not None:
            self._tier_alone.close()
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.tier.close()

    def look(self, position: StreamPosition, before: Look | None) -> Look:
        """Asks brokers for all selected topics; see `Looker`.

        Raises:
            TopicNotFoundError: The cluster has not a topic that was named.
            DataLossError: It has not a topic any more that the stream has read from.
            BrokerError: Brokers refuse, or do not answer.
        """
        try:
            # A look that fails behind this must not make it old.
            is_new = self._now.renew(_unread(position, before or {}), _counts(position))
            self._is_seen = self._is_seen and not is_new
        except TopicNotFoundError as error:
            if self._options.fail_on_data_loss or not position.topics:
                raise
            log.warning("waiting for topics that were there: %s", error)
            self._now.close()
            return {}
        if before is not None and self._is_seen and not self._must_list(before):
            return before
        view = self._now.view
        if view is None:
            log.info("waiting for topics: the cluster has none that matches")
            self._check_gone(position, ())
            self._is_seen = True
            return {}
        self._check_gone(position, view.topics)
        found: Look = {}
        for topic, now in view.topics.items():
            known = position.topics.get(topic)
            if known is None or known.topic_id in (None, now.topic_id):
                looks = self._now.looks(topic, known)
                found[topic] = TopicLook(topic, now.topic_id, looks, None)
                continue
            assert known.topic_id is not None
            self._check_newer(topic, known.topic_id, now.topic_id)
            looks = self._now.looks(topic, None)
            newer = NewerTopic(now.topic_id, looks.copy)
            old = self._in_tier(
                {
                    Place(topic, number): (known.topic_id, offset)
                    for number, offset in known.offsets.items()
                }
            )
            left = {place.partition: look for place, look in old.items()}
            found[topic] = TopicLook(topic, known.topic_id, left, newer)
        self._is_seen = True
        return found

    def again(self, ranges: Mapping[Place, tuple[str, int]]) -> Mapping[Place, LogLook]:
        """Looks at partitions of a batch that was planned before; see `Looker`."""
        if self._replayed is not None:
            self._replayed.close()
        options = replace(
            self._options, topic_ids={}, starting=EarliestBound(), ending=LatestBound()
        )
        batch = {
            (place.topic, place.partition): topic_id for place, (topic_id, _) in ranges.items()
        }
        self._replayed = _Asked(options, self._settings, self.tier, batch)
        self._replayed.renew()
        view = self._replayed.view
        found: dict[Place, LogLook] = {}
        in_tier = {}
        for place, (topic_id, start) in ranges.items():
            now = None if view is None else view.topics.get(place.topic)
            if now is None or now.topic_id != topic_id:
                in_tier[place] = topic_id, start
                continue
            look = self._replayed.looks(place.topic, None).get(place.partition)
            if look is not None:
                found[place] = look
        return found | self._in_tier(in_tier)

    def _check_newer(self, topic: str, before: str, now: str) -> None:
        """Refuses metadata of a broker that has not heard yet that a topic was created again.

        Raises:
            LeaderChangedError: They are of an id that another one has replaced in this process.
        """
        if now in self._replaced:
            raise LeaderChangedError(
                f"a broker still describes topic id {now}, which {before} has replaced", topic=topic
            )
        self._replaced.add(before)

    def _must_list(self, before: Look) -> bool:
        """Whether the tier may have news although brokers have none: `tail=false` ends where the
        tier ends, and a topic that was created again leaves its earlier records in the tier alone.
        """
        if not self._options.tail:
            return True
        age_ms = (time.monotonic() - self._old_listed_at) * 1000
        is_old = age_ms >= self._options.stream.listing_interval_ms
        return is_old and any(topic.newer is not None for topic in before.values())

    def _in_tier(self, ranges: Mapping[Place, tuple[str, int]]) -> dict[Place, LogLook]:
        """What is left in the tier of incarnations that the cluster no longer has."""
        if not ranges or not self._options.path:
            return {}
        if self._tier_alone is None:
            from kts_source.streaming.tier_look import Lister

            self._tier_alone = Lister(self._options, time.monotonic)
        self._old_listed_at = time.monotonic()
        return dict(self._tier_alone.again(ranges))

    def _check_gone(self, position: StreamPosition, topics: Collection[str]) -> None:
        """A topic that the user still selects and the cluster no longer has, was deleted."""
        gone = [name for name in position.topics if name not in topics]
        for topic in self._options.selection.wanted(gone):
            if topic not in gone:
                continue
            text = "the cluster has no such topic any more, and the stream has read from it"
            if self._options.fail_on_data_loss:
                raise DataLossError(
                    f"{text}: it was deleted; failOnDataLoss=false waits for it", topic=topic
                )
            log.warning("topic %s: %s", topic, text)


class _Asked:
    """A view of the cluster that is renewed, and the listing of the tier beside it.

    Args:
        options: What is read.
        settings: How brokers are reached.
        tier: Listed beside them.
        batch: See `ClusterView`.

    Attributes:
        view: `None` while a pattern matches no topic.
    """

    def __init__(
        self,
        options: ScanOptions,
        settings: BrokerSettings,
        tier: Tier,
        batch: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        self._options = options
        self._settings = settings
        self._tier = tier
        self._batch = batch
        self._counts: dict[str, int] = {}
        self.view: ClusterView | None = None
        self._listing: TierListing | None = None

    def close(self) -> None:
        """Hangs up, and lets threads go."""
        if self.view is not None:
            self._counts |= self.view.partition_counts
        for opened in (self.view, self._listing):
            if opened is not None:
                opened.close()
        self.view = self._listing = None

    def renew(
        self, unread: Collection[TopicPartition] = (), counts: Mapping[str, int] | None = None
    ) -> bool:
        """Whether something is new in the cluster.

        Args:
            unread: See `ClusterView.renew`.
            counts: See `ClusterView`.

        Raises:
            TieredKafkaError: See `ClusterView`.
        """
        self._counts |= counts or {}
        is_new = False
        for attempt in range(_ATTEMPTS):
            try:
                if self.view is not None:
                    is_new |= self.view.renew(unread)
                else:
                    is_new = True
                    self.view = ClusterView(
                        self._settings, self._options, counts=self._counts, batch=self._batch
                    )
                    self._listing = TierListing(self._options, self._tier, self.view)
                if is_new:
                    # Leaders are asked by name: after the topic was created again, their answers
                    # are about the new one.
                    self.view.check_topics()
            except LeaderChangedError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise
                log.info("asking again: %s", error)
            except TopicNotFoundError:
                if not isinstance(self._options.selection, SubscribePattern):
                    raise
                was_there = self.view is not None
                self.close()
                return was_there
            else:
                return is_new
        raise AssertionError

    def looks(self, topic: str, known: TopicPosition | None) -> dict[int, LogLook]:
        """The partitions of a topic."""
        view, listing = self.view, self._listing
        assert view is not None
        assert listing is not None
        found: dict[int, LogLook] = {}
        for (name, number), brokers in view.logs.items():
            if name == topic:
                found[number] = BrokerLook(
                    self._options, brokers, view, listing, _last_read(known, number)
                )
        return found


def _counts(position: StreamPosition) -> dict[str, int]:
    """Topic id to the number of partitions that a stream knows the topic to have."""
    return {
        topic.topic_id: max(topic.offsets) + 1
        for topic in position.topics.values()
        if topic.topic_id is not None and topic.offsets
    }


def _unread(position: StreamPosition, look: Look) -> list[TopicPartition]:
    """Partitions of which a look shows more than the stream has read."""
    found = []
    for topic, one in look.items():
        known = position.topics.get(topic)
        if one.newer is not None:  # what is left to read of the old one is in the tier
            continue
        offsets = {} if known is None else known.offsets
        for number, part in one.partitions.items():
            if offsets.get(number, part.log.log_start) < part.end():
                found.append((topic, number))
    return found


def _last_read(known: TopicPosition | None, partition: int) -> tuple[int, int] | None:
    """The last offset that the stream has read, and the leader epoch that owned it."""
    if known is None or partition not in known.epochs:
        return None
    return known.offsets[partition] - 1, known.epochs[partition]
