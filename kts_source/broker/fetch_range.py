"""Fetches a range of offsets of one partition from the leader or a follower.

Brokers usually truncate the last batch of a response. The bytes after the last complete batch are
dropped. The next request is sent before the complete batches are returned. So the broker prepares
the next response while the caller decodes. An empty response does not mean that the range is
complete: a broker that waits for its tier, or throttles the client, also returns no records and no
error.

Source: `FetchRequest`, `FetchResponse` (KIP-227, KIP-392, KIP-516), `CompletedFetch`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.broker.cluster import (
    EARLIEST,
    EARLIEST_LOCAL,
    LEAK,
    node_reports_all_aborted,
    reports_aborted_from,
    reports_local_start,
)
from kts_source.broker.connection import (
    OFFSET_OUT_OF_RANGE,
    PASSING,
    TOPIC_GONE,
    LostConnectionError,
    error_name,
    refusal,
)
from kts_source.errors import (
    BrokerError,
    BrokerUnavailableError,
    CorruptSegmentError,
    DataLossError,
    LeaderChangedError,
    OldBrokerError,
)
from segment_format.errors import SegmentFormatError
from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import NO_ABORTED, AbortedIntervals
from segment_format.kafka_uuid import uuid_from_text, uuid_to_text
from segment_format.record.batch_header import MAGIC_2, RecordBatchHeader
from segment_format.record.control_record import ControlRecordType, batch_control_type
from segment_format.record.framing import iter_entries, read_entry
from segment_format.record.records import iter_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.broker.cluster import Cluster
    from kts_source.broker.connection import Connection, Pending


_MAX_OFFSET: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Complete batches of one response.

    Attributes:
        data: Bytes of the batches. They are valid until the next response is received.
        start_offset: First offset that was requested. Brokers return whole batches, so the caller
            must skip rows below this offset.
        next_offset: One past the last offset of the last batch.
        aborted: Offset intervals of aborted transactions, whose records must be skipped; empty for
            `read_uncommitted`.
        listed: Producer id and first offset of each aborted transaction that the response lists.
    """

    data: memoryview
    start_offset: int
    next_offset: int
    aborted: AbortedIntervals
    listed: frozenset[tuple[int, int]]


def whole_batches(data: memoryview) -> tuple[int, int]:
    """Returns two values: the total size in bytes of the complete batches in `data`, and one past
    their last offset. An incomplete batch at the end of `data` is ignored.

    Raises:
        CorruptRecordError: The bytes are not valid batches, or the offsets of the batches do not
            ascend.
    """
    from segment_format.arrow import RecordDecoder

    # No columns are requested, so the kernel reads only the headers of the batches.
    walk = RecordDecoder(
        columns=(),
        start_offset=_MAX_OFFSET - 1,
        offset_bounds=(0, _MAX_OFFSET),
        check_crcs=False,
        max_rows=1,
    )
    for _ in walk.feed(data):
        pass
    return walk.counters.bytes, walk.next_offset


def begins_at_or_after(data: memoryview, offset: int) -> bool:
    """Returns True if the first batch of a response has no record below `offset`. Returns False if
    the first batch has such a record, or cannot be read.

    In formats 0 and 1, the offset field of a compressed message set contains the offset of its last
    record. So its records are decoded to find the first offset.
    """
    try:
        entry = read_entry(data, 0)
        if entry.magic == MAGIC_2:
            return entry.offset >= offset
        (message_set,) = iter_batches(data[: entry.size])
        return message_set.base_offset >= offset
    except SegmentFormatError:
        return False


def aborted_intervals(
    listed: frozenset[tuple[int, int]], data: memoryview, next_offset: int
) -> AbortedIntervals:
    """Returns the offset intervals of the aborted transactions that a response lists.

    Args:
        listed: Producer id and first offset of each aborted transaction. Brokers do not return the
            end of a transaction: it is the abort marker in `data`, or `next_offset` if `data` does
            not contain the marker.
        data: The complete batches of the response.
        next_offset: One past the last offset of these batches.
    """
    producers = {producer for producer, _ in listed}
    markers: list[tuple[int, int]] = []
    for entry in iter_entries(data):
        if entry.magic != MAGIC_2:
            continue
        header = RecordBatchHeader.from_bytes(data, entry.position)
        if header.is_control_batch and header.producer_id in producers:
            (batch,) = iter_batches(data[entry.position : entry.stop])
            if batch_control_type(batch) is ControlRecordType.ABORT:
                markers.append((batch.producer_id, batch.base_offset))
    txns = []
    for producer, first in listed:
        ends = (
            position
            for producer_id, position in markers
            if producer_id == producer and position > first
        )
        last = min(ends, default=next_offset)
        txns.append(AbortedTxn(producer, first, last, last))
    return AbortedIntervals.from_txns(txns, start_offset=0, stop_offset=_MAX_OFFSET)


log = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 120.0
"""Maximum time without a new batch, after which the fetch fails."""
_FIRST_PAUSE_SECONDS: Final = 0.02
_MAX_PAUSE_SECONDS: Final = 1.0
_MAX_SILENT: Final = 3
"""Consecutive empty responses before the fetcher checks whether any batch is left."""
_ANSWER_SLACK: Final = 1 << 20
"""Maximum bytes of a response in addition to its records. Lists of aborted transactions need most
of them.
"""
_MAX_PROBES: Final = 1024
"""Maximum number of steps in the search for the end of a hole in the brokers' tier."""
_NO_SESSION: Final = (0, -1)


@dataclass(frozen=True, slots=True)
class _Pending:
    """State of the fetcher: a fetch request was sent, and its response has not been received."""

    connection: Connection
    pending: Pending


@dataclass(frozen=True, slots=True)
class _Waiting:
    """State of the fetcher: it must request the same offset again after a pause.

    Attributes:
        reason: Reason of the pause, for the error after too many attempts.
        is_empty: True if the broker sent neither an error nor records.
    """

    reason: str
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class _Lost:
    """State of the fetcher: the brokers have lost the offsets from the requested offset to `stop`
    (exclusive).
    """

    stop: int
    error: DataLossError


_State = _Pending | _Waiting | _Lost | FetchedBatches


class _Patience:
    """Pauses between attempts, and measures the time since the last received batch."""

    def __init__(self) -> None:
        self.silent = 0
        self._progress = time.monotonic()
        self._pause = _FIRST_PAUSE_SECONDS

    def is_exhausted(self) -> bool:
        """Returns True if the last batch arrived more than `_PATIENCE_SECONDS` ago."""
        return time.monotonic() - self._progress > _PATIENCE_SECONDS

    def sleep(self) -> None:
        """Sleeps twice as long as the previous call did, up to a maximum."""
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _MAX_PAUSE_SECONDS)


class RangeFetcher:
    """Fetches one range of offsets. Used by one thread.

    Args:
        cluster: The client of the cluster. No other thread may use it at the same time.
        max_batch_bytes: Maximum size of one batch in bytes.
        on_loss: Called with three values for each range of lost offsets: its start, its end
            (exclusive) and the error. If it returns True, the fetch ends. Otherwise the fetch
            continues after the lost offsets. If `on_loss` is `None`, the error is raised.

    Attributes:
        bytes: Number of bytes in the complete batches that were received so far.
        requests: Number of fetch requests that were sent so far.
        lost_offsets: True if the brokers have lost offsets of the range.
        met_hole: True if offsets of the range are missing in the brokers' own tier.
    """

    def __init__(
        self,
        cluster: Cluster,
        wanted: BrokerRange,
        *,
        max_batch_bytes: int,
        on_loss: Callable[[int, int, DataLossError], bool | None] | None = None,
    ) -> None:
        self._on_loss = on_loss
        self._cluster = cluster
        self._wanted = wanted
        self._settings = cluster.settings
        self._max_bytes = max(self._settings.partition_fetch_bytes, max_batch_bytes)
        self._rack = self._settings.rack
        self._epoch = wanted.leader_epoch
        self._leader = -1
        self._node = -1
        self._asked = False
        self.bytes = 0
        self.requests = 0
        self.lost_offsets = False
        self.met_hole = False
        self._refused_at = -1

    def batches(self) -> Generator[FetchedBatches]:
        """Yields the batches of the range, in order.

        Raises:
            DataLossError: Retention deleted offsets of the range, the topic was deleted, or a new
                leader does not have the planned offsets.
            BrokerError: Brokers refuse a request, or do not respond for too long.
        """
        offset, stop = self._wanted.start_offset, self._wanted.stop_offset
        if offset >= stop:
            return
        state: _State = self._ask(offset)
        wait = _Patience()
        try:
            while True:
                match state:
                    case _Pending() as asked:
                        state = _Waiting("no response")  # nothing is pending if an error is raised
                        state = self._receive(asked, offset)
                    case _Waiting(reason, is_empty):
                        wait.silent += is_empty
                        if wait.silent >= _MAX_SILENT:
                            wait.silent = 0
                            if self._has_no_more_batches(offset):
                                return
                        if wait.is_exhausted():
                            raise BrokerUnavailableError(
                                f"brokers returned no batch for {_PATIENCE_SECONDS:.0f} s:"
                                f" {reason}",
                                **self._location(offset),
                            )
                        wait.sleep()
                        state = self._ask(offset)
                    case _Lost():
                        offset = self._skip(offset, state)
                        if offset >= stop:
                            return
                        state = self._ask(offset)
                    case FetchedBatches() as batches:
                        offset = batches.next_offset
                        # The broker works on the next response while the caller decodes this one.
                        state = self._ask(offset) if offset < stop else batches
                        yield batches
                        if offset >= stop:
                            return
                        wait = _Patience()
        finally:
            if isinstance(state, _Pending):  # its response would be matched with a later request
                state.connection.close()

    def _skip(self, offset: int, lost: _Lost) -> int:
        """Calls `on_loss` with the lost offsets. Returns the offset at which the fetch continues:
        the end of the lost offsets, or the end of the range if the fetch must end.
        """
        self.lost_offsets = True
        stop = min(lost.stop, self._wanted.stop_offset)
        if self._on_loss is None or stop <= offset:
            raise lost.error
        return self._wanted.stop_offset if self._on_loss(offset, stop, lost.error) else stop

    def _ask(self, offset: int) -> _Pending | _Waiting | _Lost:
        """Sends a fetch request for `offset` to the leader, or to the follower that the leader
        recommended. Returns the next state of the fetcher.
        """
        try:
            if self._leader < 0 and not self._use_known_leader():
                problem = self._find_leader()
                if problem is not None:
                    return problem
            if self._node < 0:
                self._node = self._leader
            if self._rack and self._wanted.read_committed:
                # An old leader reports aborted transactions from its local log start on. The local
                # log of a follower may start at another offset, and an old follower also misses
                # some transactions.
                nodes = {self._leader, self._node}
                if not all(node_reports_all_aborted(self._cluster, node) for node in nodes):
                    self._node, self._rack = self._leader, ""
            connection = self._cluster.connection(self._node)
            self.requests += 1
            patience = self._settings.fetch_max_wait_ms / 1000
            pending = connection.send(self._request(offset), patience_seconds=patience)
            return _Pending(connection, pending)
        except (LostConnectionError, LeaderChangedError) as error:
            return self._handle_lost_node(error)

    def _receive(self, asked: _Pending, offset: int) -> FetchedBatches | _Waiting | _Lost:
        """Receives the response to a fetch request and returns the next state of the fetcher."""
        try:
            limit = self._max_bytes + _ANSWER_SLACK
            answer = asked.connection.receive(asked.pending, max_bytes=limit)
            return self._check_answer(answer, offset)
        except (LostConnectionError, LeaderChangedError) as error:
            return self._handle_lost_node(error)

    def _handle_lost_node(self, error: LostConnectionError | LeaderChangedError) -> _Waiting:
        """Handles a lost connection or a new leader. The next attempt finds the current leader, or
        uses the leader instead of the follower.
        """
        if isinstance(error, LeaderChangedError):
            self._leader = -1
        else:
            self._drop_node()
        return _Waiting(str(error))

    def _drop_node(self) -> None:
        """Stops using a broker that does not respond. The next request goes to the current
        leader.
        """
        if self._node == self._leader:
            self._leader = -1
        else:
            self._rack = ""
        self._node = -1

    def _has_no_more_batches(self, offset: int) -> bool:
        """Returns whether the partition has no batch from `offset` to the end of the range. Called
        after several empty responses.

        Compaction may have removed the last batches of the range. With `read_committed`, a response
        is also empty if the next batch is above the last stable offset. So a request with
        `read_uncommitted` checks whether the next batch begins after the range.

        Returns False if a follower sent the empty responses. The next request then goes to the
        leader.
        """
        if self._node != self._leader:
            self._node, self._rack = -1, ""
            return False
        if not self._wanted.read_committed:
            return False
        try:
            connection = self._cluster.connection(self._node)
            pending = connection.send(
                self._request(offset, read_committed=False),
                patience_seconds=self._settings.fetch_max_wait_ms / 1000,
            )
            answer = connection.receive(pending, max_bytes=self._max_bytes + _ANSWER_SLACK)
        except LostConnectionError:
            self._drop_node()
            return False
        # An error in this response is ignored, because the next fetch will return it, too.
        partitions = [partition for topic in answer.responses for partition in topic.partitions]
        if len(partitions) != 1 or not partitions[0].records:
            return False
        return begins_at_or_after(memoryview(partitions[0].records), self._wanted.stop_offset)

    def _request(
        self, offset: int, *, read_committed: bool | None = None, max_bytes: int | None = None
    ) -> Any:  # noqa: ANN401
        """Returns a fetch request for `offset`. `read_committed` and `max_bytes` override the
        settings. If `max_bytes` is set, the leader does not redirect the request to a follower.
        """
        from kafka.protocol.consumer import FetchRequest

        wanted, settings = self._wanted, self._settings
        committed = wanted.read_committed if read_committed is None else read_committed
        size = settings.partition_fetch_bytes if max_bytes is None else max_bytes
        topic_type = FetchRequest.FetchTopic
        session_id, session_epoch = _NO_SESSION
        partition = topic_type.FetchPartition(
            partition=wanted.partition,
            current_leader_epoch=self._epoch,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=size,
        )
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=min(settings.fetch_max_bytes, size),
            isolation_level=int(committed),
            session_id=session_id,
            session_epoch=session_epoch,
            rack_id=self._rack if max_bytes is None else "",
            topics=[topic_type(topic_id=uuid_from_text(wanted.topic_id), partitions=[partition])],
        )

    def _use_known_leader(self) -> bool:
        """Tries to use the leader in the cached metadata. This is possible only for the first
        request, and only if the leader has the planned leader epoch. Returns True if this leader is
        used.

        If the metadata are outdated, the broker returns an error, because the request contains the
        leader epoch and the topic id.
        """
        leader = self._cluster.known_leader((self._wanted.topic, self._wanted.partition))
        if self._asked or leader is None or leader.epoch != self._wanted.leader_epoch:
            return False
        self._leader = leader.node
        self._asked = True
        return True

    def _find_leader(self) -> _Waiting | _Lost | None:
        """Requests the current leader, and uses it for the next requests. Returns `None` on
        success, and `_Waiting` or `_Lost` if the leader cannot be used.

        A leader with a later epoch than planned can be used only if it has all planned offsets.
        """
        wanted = self._wanted
        key = wanted.topic, wanted.partition
        topic = self._cluster.renew_leader(key, self._wanted.topic_id)
        if topic is None or topic.topic_id != wanted.topic_id:
            now = "was deleted" if topic is None else f"was created again as {topic.topic_id}"
            return self._all_lost(f"the plan reads topic id {wanted.topic_id}, but the topic {now}")
        leader = topic.leaders[wanted.partition]
        if leader.node < 0:
            return _Waiting("the partition has no leader")
        if leader.epoch < wanted.leader_epoch:
            return _Waiting(f"a broker still returns the leader of epoch {leader.epoch}")
        if leader.epoch != wanted.leader_epoch:
            (end,) = self._cluster.epoch_ends({key: [wanted.leader_epoch]})[key]
            if end.epoch != wanted.leader_epoch or end.end_offset < wanted.stop_offset:
                return self._all_lost(
                    f"offsets up to {wanted.stop_offset} of leader epoch {wanted.leader_epoch} were"
                    f" planned; the leader of epoch {leader.epoch} has epoch {end.epoch} up to"
                    f" {end.end_offset}: records were lost in an unclean election"
                )
        self._leader, self._epoch = leader.node, leader.epoch
        self._node = -1
        return None

    def _all_lost(self, text: str) -> _Lost:
        error = DataLossError(text, **self._location(self._wanted.start_offset))
        return _Lost(self._wanted.stop_offset, error)

    def _check_refused(self, offset: int) -> _Lost | _Waiting:
        """Finds out which offsets are lost after the leader refused `offset` as out of range. The
        response of the leader does not contain them.

        There are two possible reasons. If the log start is above `offset`, retention or
        DeleteRecords deleted the offsets below the log start. Otherwise, the brokers' own tier
        lacks a segment. In the second case, the request is repeated once before the offsets count
        as lost.
        """
        key = self._wanted.topic, self._wanted.partition
        if self._cluster.known_leader(key) is None:
            self._cluster.renew_leader(key, self._wanted.topic_id)
        log_start = self._cluster.offsets([key], EARLIEST, read_committed=False)[key]
        if log_start > offset:
            text = (
                f"offset {offset} was deleted after the plan was made: the brokers' log now starts"
                f" at offset {log_start}"
            )
            return _Lost(log_start, DataLossError(text, **self._location(offset)))
        if self._refused_at != offset:
            self._refused_at = offset
            return _Waiting(f"a broker refuses offset {offset} of a log that starts at {log_start}")
        self.met_hole = True
        stop = self._first_served(offset)
        text = (
            f"brokers refuse offsets [{offset}, {stop}) as out of range, although their log starts"
            f" at {log_start}: their own tier has lost a segment. Restore it there, or set"
            " failOnDataLoss=false to skip these offsets"
        )
        return _Lost(stop, DataLossError(text, **self._location(offset)))

    def _first_served(self, refused: int) -> int:
        """Finds an offset above `refused` at which the leader returns records again. Returns the
        end of the range if there is no such offset in it.

        Brokers do not report this offset, so it is searched with test requests. Only offsets below
        the start of the leader's disk are tested, because the leader returns all records on its
        disk. A short range is tested offset by offset. A long range is tested in equal steps, and
        then by bisection within the step that succeeded.
        """
        key = self._wanted.topic, self._wanted.partition
        limit = self._wanted.stop_offset
        if reports_local_start(self._cluster, key):
            local = self._cluster.offsets([key], EARLIEST_LOCAL, read_committed=False)[key]
            if local > refused:
                limit = min(limit, local)
        step = -(-(limit - refused) // _MAX_PROBES)
        low, high = refused, min(refused + step, limit)
        while high < limit and not self._serves(high):
            low, high = high, min(high + step, limit)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._serves(middle) else (middle, high)
        return high

    def _serves(self, offset: int) -> bool:
        """Returns whether the leader returns records for a request at `offset`. False means that
        the leader refuses the offset as out of range.

        Raises:
            LeaderChangedError: The broker returned another error.
        """
        connection = self._cluster.connection(self._leader)
        request = self._request(offset, read_committed=False, max_bytes=1)
        self.requests += 1
        pending = connection.send(request, patience_seconds=self._settings.fetch_max_wait_ms / 1000)
        answer = connection.receive(pending, max_bytes=self._max_bytes + _ANSWER_SLACK)
        partitions = [partition for topic in answer.responses for partition in topic.partitions]
        code = answer.error_code or (partitions[0].error_code if len(partitions) == 1 else -1)
        if code not in (0, OFFSET_OUT_OF_RANGE):
            raise LeaderChangedError(f"a broker returned {error_name(code)} for offset {offset}")
        return bool(code == 0)

    def _check_answer(self, answer: Any, offset: int) -> FetchedBatches | _Waiting | _Lost:  # noqa: ANN401
        """Checks a response. Returns its complete batches. After an error or an empty response,
        returns the next state of the fetcher instead.
        """
        code = answer.error_code
        partitions = [partition for topic in answer.responses for partition in topic.partitions]
        if not code and not partitions:  # throttled by a client quota
            time.sleep(min(answer.throttle_time_ms / 1000, _PATIENCE_SECONDS / 4))
            return _Waiting("the client quota is used up")
        if code:
            return self._handle_error_code(code, offset)
        (result, *others) = partitions
        answered = answer.responses[0].topic_id, result.partition_index
        if others or answered != (uuid_from_text(self._wanted.topic_id), self._wanted.partition):
            raise BrokerError(
                f"a broker sent {len(partitions)} partitions, first partition {answered[1]} of"
                f" topic id {uuid_to_text(answered[0])}, but only this partition was requested",
                **self._location(offset),
            )
        if result.error_code:
            return self._handle_error_code(result.error_code, offset)
        if result.preferred_read_replica >= 0 and not result.records:
            self._node = result.preferred_read_replica
            return _Waiting(f"broker {self._node} is nearer")
        if not result.records:
            return _Waiting(
                "responses are empty: the broker waits for its tier, or a quota is used up",
                is_empty=True,
            )
        return self._check_records(result, offset)

    def _check_records(self, result: Any, offset: int) -> FetchedBatches | _Waiting:  # noqa: ANN401
        data = memoryview(result.records)
        try:
            size, next_offset = whole_batches(data)
        except SegmentFormatError as error:
            raise CorruptSegmentError(
                f"a broker sent an invalid record batch: {error.message}", **self._location(offset)
            ) from error
        if not size or next_offset <= offset:
            return _Waiting("responses have no complete batch")
        self.bytes += size
        data = data[:size]
        if self._wanted.read_committed and not node_reports_all_aborted(self._cluster, self._node):
            if self._node != self._leader:
                self._node, self._rack = -1, ""
                return _Waiting("the follower is older than Kafka 4.0")
            data = memoryview(bytes(data))  # the next response overwrites it
            self._check_reported(offset)
        listed = frozenset(
            (txn.producer_id, txn.first_offset) for txn in result.aborted_transactions or ()
        )
        aborted = NO_ABORTED
        if self._wanted.read_committed and listed:
            aborted = aborted_intervals(listed, data, next_offset)
        return FetchedBatches(data, offset, next_offset, aborted, listed)

    def _check_reported(self, offset: int) -> None:
        """Raises `OldBrokerError` if the leader has moved `offset` from its disk to its tier since
        the plan was made. A leader before Kafka 4.0 does not report all aborted transactions of
        records in its tier.
        """
        exact_from = reports_aborted_from(
            self._cluster, (self._wanted.topic, self._wanted.partition)
        )
        if offset < exact_from:
            raise OldBrokerError(
                f"brokers have moved offsets below {exact_from} into their tier since the plan was"
                f" made, and {LEAK}: plan again, or read with isolationLevel=read_uncommitted",
                **self._location(offset),
            )

    def _handle_error_code(self, code: int, offset: int) -> _Waiting | _Lost:
        """Returns the next state of the fetcher after a response with an error code.

        Raises:
            BrokerError: The broker refuses the request.
        """
        if self._node != self._leader and code in {OFFSET_OUT_OF_RANGE, *PASSING}:
            # The follower may lag. Without a rack in the requests, the leader does not recommend it
            # again.
            self._node, self._rack = -1, ""
            return _Waiting(f"a follower returned {error_name(code)}")
        if code in TOPIC_GONE or code in PASSING:
            self._leader = -1  # also after a disk failure or a reassignment of the partition
            return _Waiting(f"a broker returned {error_name(code)}")
        if code == OFFSET_OUT_OF_RANGE:
            return self._check_refused(offset)
        raise refusal(code, **self._location(offset))

    def _location(self, offset: int) -> Any:  # noqa: ANN401
        return {
            "topic": self._wanted.topic,
            "partition": self._wanted.partition,
            "offset": offset,
        }
