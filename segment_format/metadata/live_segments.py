"""Computes which segments exist after all events of `__remote_log_metadata`, without a Python loop
over the events.

A stable sort groups the events by segment. Each event is represented as a function from the
segment's state before the event to the state after it. The composition of all functions up to an
event returns the state after this event. If no segment has more than n events, log2(n) steps
compute the compositions for all events. Depending on the state before an event, Kafka applies or
ignores the event. A segment's fields come from its last applied events.

An event of type 0 announces a segment. Kafka ignores these events:

* Announcements with a state other than COPY_SEGMENT_STARTED.
* Repeated announcements of a segment that has left the state COPY_SEGMENT_STARTED.
* Updates of unknown segments.
* Updates with a state that may not follow the segment's previous state.
* Snapshots (type 3).

Source: `org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataCache`, and
`RemotePartitionMetadataStore` for deletions of partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from segment_format.metadata.columns import (
    PARTITION_DELETE,
    UPDATE,
    concatenated,
    int64_array,
    no_rows,
)
from segment_format.metadata.model import (
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from segment_format.metadata.columns import Integers, MetadataColumns


_STARTED, _FINISHED, _DELETING, _ABSENT = RemoteLogSegmentState
_STATES = len(RemoteLogSegmentState)
"""Number of states. A segment without events is in DELETE_SEGMENT_FINISHED."""

_ANNOUNCED, _BEGUN_OTHERWISE, _KNOWN, _UPDATED = 0, 1, 2, 2 + _STATES
"""Kinds of events: a segment that begins in COPY_SEGMENT_STARTED, a segment that begins in another
state, a segment known from earlier events (one kind per state), an update (one kind per new state).
"""
_KINDS = _UPDATED + _STATES
_DROPPED_KEPT = 10


@dataclass(frozen=True, slots=True)
class DroppedEvents:
    """Events that Kafka does not apply.

    Attributes:
        unknown_segment: Number of updates of segments that do not exist, because they were not
            announced or were deleted. Retention on `__remote_log_metadata` may have removed the
            announcement.
        forbidden_transition: Number of other dropped announcements and updates: Kafka does not
            allow the new state after the segment's state.
        first: The first ten dropped events of both kinds, in the order of the events.
    """

    unknown_segment: int
    forbidden_transition: int
    first: MetadataColumns


class LiveSegments:
    """Collects events, and returns the segments that have not reached DELETE_SEGMENT_FINISHED.

    The events of each partition of `__remote_log_metadata` must be added in their order. Events of
    different partitions may be mixed. Memory depends on the number of live segments and the largest
    batch of events that is added, not on the number of events.
    """

    def __init__(self) -> None:
        self._known = no_rows()
        self._waiting: list[MetadataColumns] = []
        self._rows_waiting = 0
        self._deleted = 0
        self._dropped = DroppedEvents(0, 0, no_rows())

    def add(self, events: MetadataColumns) -> None:
        """Adds the next events. Snapshots (type 3) are ignored, as in Kafka.

        Args:
            events: Result of `parse_metadata_columns`, or all rows of it that belong to the wanted
                user partitions.
        """
        self._waiting.append(events)
        self._rows_waiting += len(events)
        if self._rows_waiting >= max(_FOLDED_AT_ONCE, len(self._known)):
            self._fold()

    def segments(self, *states: RemoteLogSegmentState) -> MetadataColumns:
        """Returns the segments in the given states. Broker id, event time and custom metadata are
        from the last event of each segment.

        Args:
            states: COPY_SEGMENT_FINISHED for segments that may be read, including duplicates,
                overlaps and segments of abandoned leader epochs; COPY_SEGMENT_STARTED for
                unfinished copies; DELETE_SEGMENT_STARTED for unfinished deletions. By default all
                states.

        Returns:
            Rows of type 0, sorted by topic, topic id, partition, start offset and event time.
        """
        self._fold()
        known_segments = self._known
        chosen = np.flatnonzero(
            np.isin(known_segments.state, states or tuple(RemoteLogSegmentState))
        )
        keys = (
            *_halves(known_segments.segment_id),
            known_segments.event_timestamp_ms,
            known_segments.start_offset,
            known_segments.partition,
            *_halves(known_segments.topic_id),
            _ranks(known_segments.topic),
        )
        return known_segments.rows(chosen[np.lexsort([key[chosen] for key in keys])])

    @property
    def deleted(self) -> int:
        """Number of segments that reached DELETE_SEGMENT_FINISHED."""
        self._fold()
        return self._deleted

    @property
    def dropped(self) -> DroppedEvents:
        """Events that Kafka does not apply. If there are many, earlier events are probably
        missing.
        """
        self._fold()
        return self._dropped

    def _fold(self) -> None:
        if not self._waiting:
            return
        events = concatenated([self._known, *self._waiting])
        before = len(self._known)
        self._waiting, self._rows_waiting = [], 0
        generation, last_generation = _generations(events)
        about_segments = np.flatnonzero(events.record_type <= UPDATE)
        keys = (
            *_halves(events.segment_id),
            events.partition,
            *_halves(events.topic_id),
            generation,
        )
        rows, starts = _grouped([key[about_segments] for key in keys])
        order = about_segments[rows]
        kinds = _kinds(events, before)[order]
        rank = np.arange(len(order)) - starts
        after = _states_after(kinds, rank)
        state_before = np.where(rank == 0, _ABSENT, np.concatenate(([_ABSENT], after[:-1])))
        applied = _tables()[0][kinds, state_before]

        self._deleted += int((applied & (after == _ABSENT)).sum())
        self._note_dropped(events, order[~applied], state_before[~applied])
        rows = np.arange(len(order))
        base = np.maximum.accumulate(np.where(applied & (kinds < _UPDATED), rows, -1))
        last = np.maximum.accumulate(np.where(applied, rows, -1))
        ends = np.flatnonzero(np.append(rank[1:] == 0, True)) if len(order) else rows
        ends = ends[(after[ends] != _ABSENT) & (generation == last_generation)[order[ends]]]
        ends = ends[np.argsort(order[base[ends]])]  # in the order of their events
        last_event = order[last[ends]]
        self._known = replace(
            events.rows(order[base[ends]]),
            state=after[ends],
            broker_id=events.broker_id[last_event],
            event_timestamp_ms=events.event_timestamp_ms[last_event],
            custom_metadata=events.custom_metadata.take(int64_array(last_event)),
        )

    def _note_dropped(
        self, events: MetadataColumns, rows: Integers, state_before: NDArray[np.int64]
    ) -> None:
        unknown = (state_before == _ABSENT) & (events.record_type[rows] == UPDATE)
        first = self._dropped.first
        if len(first) < _DROPPED_KEPT and len(rows):
            some = np.sort(rows)[: _DROPPED_KEPT - len(first)]
            first = concatenated([first, events.rows(some)])
        self._dropped = DroppedEvents(
            self._dropped.unknown_segment + int(unknown.sum()),
            self._dropped.forbidden_transition + int((~unknown).sum()),
            first,
        )


_FOLDED_AT_ONCE = 1 << 16
_ODD = np.uint64(0x9E3779B97F4A7C15)


def _halves(ids: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return ids[:, 1], ids[:, 0]


def _ranks(names: pa.LargeStringArray) -> Integers:
    """Returns the rank of each name: its index in the sorted list of the distinct names."""
    encoded = names.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    rank = {name: number for number, name in enumerate(sorted(distinct))}
    ranks_of_distinct = np.array([rank[name] for name in distinct], np.int64)
    ranks: Integers = ranks_of_distinct[np.asarray(encoded.indices)]
    return ranks


def _grouped(keys: list[NDArray[Any]]) -> tuple[Integers, Integers]:
    """Groups rows that have equal keys. Returns two arrays with one entry per row in the new order:
    the old row number, and the position in the new order where the row's group starts. Rows of a
    group keep their order.
    """
    mixed = np.zeros(len(keys[0]), np.uint64)
    for key in keys:
        mixed = (mixed ^ (mixed >> np.uint64(32)) ^ key.astype(np.uint64)) * _ODD
    order = np.argsort(mixed, kind="stable")  # six times as fast as a sort by all keys
    starts = _first_of_group([key[order] for key in keys])
    if (starts != _first_of_group([mixed[order]])).any():  # a hash collision
        order = np.lexsort(keys)
        starts = _first_of_group([key[order] for key in keys])
    return order, starts


def _first_of_group(keys: list[NDArray[np.generic]]) -> Integers:
    """Returns for each row the first row of its group. A group consists of consecutive rows with
    equal keys.
    """
    new = np.ones(len(keys[0]), np.bool_)
    new[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    first: Integers = np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
    return first


def _generations(events: MetadataColumns) -> tuple[Integers, Integers]:
    """Returns two counts for each event: how often its partition was deleted up to this event, and
    how often its partition was deleted in all events.
    """
    finished = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
    deleted = (events.record_type == PARTITION_DELETE) & (events.state == finished)
    none = np.zeros(len(events), np.int64)
    if not deleted.any():
        return none, none
    keys = (events.partition, *_halves(events.topic_id))
    order, starts = _grouped([*keys])
    so_far = np.cumsum(deleted[order])
    before_group = (so_far - deleted[order])[starts]
    ends = np.append(np.flatnonzero(starts[1:] != starts[:-1]), len(starts) - 1)
    group = np.cumsum(np.append(0, starts[1:] != starts[:-1]))
    generation, last = none.copy(), none.copy()
    generation[order] = so_far - before_group
    last[order] = (so_far[ends])[group] - before_group
    return generation, last


def _kinds(events: MetadataColumns, known_count: int) -> Integers:
    kinds = np.where(
        events.record_type == UPDATE,
        _UPDATED + events.state,
        np.where(events.state == _STARTED, _ANNOUNCED, _BEGUN_OTHERWISE),
    )
    kinds[:known_count] = _KNOWN + events.state[:known_count]
    return kinds


@cache
def _tables() -> tuple[NDArray[np.bool_], NDArray[np.uint8], NDArray[np.uint8]]:
    """Returns the tables `applied`, `functions` and `composed`.

    * `applied`: whether Kafka applies an event. Indexes: kind of the event, state before it.
    * `functions`: the function of each kind of event.
    * `composed`: the composition of two functions. Indexes: later function, earlier function.

    A function maps each of the four states to the state that follows. It is stored as a byte with
    two bits for each state; the lowest two bits are for state 0.
    """
    applied = np.zeros((_KINDS, _STATES), np.bool_)
    applied[_ANNOUNCED, [_STARTED, _ABSENT]] = True
    applied[_KNOWN : _KNOWN + _STATES] = True
    for state in (_STARTED, _FINISHED, _DELETING):
        for target in RemoteLogSegmentState:
            applied[_UPDATED + target, state] = state.may_become(target)
    targets = np.concatenate(([_STARTED, _STARTED], np.tile(np.arange(_STATES), 2)))
    numbers = np.arange(_STATES)
    becomes = np.where(applied, targets[:, None], numbers)
    functions = (becomes << 2 * numbers).sum(axis=1).astype(np.uint8)
    result = np.arange(256)[:, None] >> 2 * numbers & 3  # of each function, for each state
    composed = np.zeros((256, 256), np.int64)  # [later, earlier]
    for number in range(_STATES):
        composed |= result[:, result[:, number]] << 2 * number
    return applied, functions, composed.astype(np.uint8)


def _states_after(kinds: Integers, rank: Integers) -> Integers:
    """Returns for each event the state of its segment after the event. The events of a segment are
    consecutive in `kinds`, the kinds of the events. `rank` is the number of an event within its
    segment.
    """
    _, functions, composed = _tables()
    function = functions[kinds]
    longest = int(rank.max(initial=0))
    step = 1
    while step <= longest:
        later = np.flatnonzero(rank >= step)
        function[later] = composed[function[later], function[later - step]]
        step *= 2
    return (function >> 2 * _ABSENT & 3).astype(np.int64)
