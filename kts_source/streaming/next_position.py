"""Where a stream is after a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.streaming.offsets import StreamPosition, TopicBegin, TopicPosition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.streaming.admission import Place
    from kts_source.streaming.pending import PendingPartition


def next_position(
    position: StreamPosition, parts: Sequence[PendingPartition], ends: Mapping[Place, int]
) -> StreamPosition:
    """The position behind a batch; `position` itself when the batch would hold nothing. A new
    stream has a first batch in any case: Spark asks for one.

    What the stream knows and the tier does not show stays as it is.

    Args:
        position: Before the batch.
        parts: What could be read.
        ends: Where the batch ends, for the partitions of which it reads something.
    """
    if not position.is_initial and all(ends.get(one.place, 0) <= one.start for one in parts):
        return position
    topics = dict(position.topics)
    begins: dict[str, TopicBegin] = {}
    for part in parts:
        topic, partition = part.place
        known = topics.get(topic)
        if known is None or known.topic_id not in (None, part.topic_id):
            known = TopicPosition(part.topic_id, {})
        stop = max(part.start, ends.get(part.place, part.start))
        epochs = dict(known.epochs)
        if stop != known.offsets.get(partition):
            epochs.pop(partition, None)
            # Of a record that this stream did not read, nobody asks later who wrote it.
            epoch = None if part.look is None else part.look.epoch_of(stop - 1)
            if stop > part.start and epoch is not None:
                epochs[partition] = epoch
        offsets = {**known.offsets, partition: stop}
        topics[topic] = TopicPosition(part.topic_id, offsets, epochs)
        if not part.is_told:
            begin = begins.get(topic, TopicBegin(part.topic_id, {}))
            begins[topic] = TopicBegin(part.topic_id, {**begin.offsets, partition: part.start})
    return StreamPosition(topics, begins)
