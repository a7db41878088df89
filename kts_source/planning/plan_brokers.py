"""Whether brokers still have what a stored plan reads from them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from kts_source.errors import DataLossError, InvalidOptionError

if TYPE_CHECKING:
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import PartitionPlan, ScanPlan


def check_brokers(plan: ScanPlan, options: ScanOptions) -> None:
    """Compares a plan with the cluster: the topics are the same ones, nothing that is to be read
    was deleted, and a leader of a new epoch has all that the one before it had.

    Raises:
        InvalidOptionError: The plan reads from brokers, and no option names them.
        DataLossError: The cluster no longer has what was planned.
        BrokerError: Brokers refuse, or do not answer.
    """
    wanted = {
        (part.topic, part.partition): part for part in plan.partitions if part.brokers is not None
    }
    if not wanted:
        return
    if options.brokers is None:
        raise InvalidOptionError(
            "the plan of option 'planFile' reads from brokers, so option kafka.bootstrap.servers"
            " must be given"
        )
    from kts_source.broker.cluster import EARLIEST, Cluster

    with closing(Cluster(options.brokers)) as cluster:
        counts: dict[str, int] = {}
        for part in wanted.values():
            counts[part.topic_id] = max(part.partition + 1, counts.get(part.topic_id, 0))
        topics = cluster.topics({topic for topic, _ in wanted}, counts=counts)
        for (name, number), part in wanted.items():
            topic = topics.get(name)
            if topic is None or topic.topic_id != part.topic_id or number not in topic.leaders:
                now = "is gone" if topic is None else f"has topic id {topic.topic_id}"
                raise _lost(part, f"topic id {part.topic_id} was planned, and the topic {now}")
        starts = cluster.offsets(wanted, EARLIEST, read_committed=False)
        for place, part in wanted.items():
            if part.start < starts[place] and part.start < part.stop:
                raise _lost(part, f"the log of the brokers starts at {starts[place]} now")
            assert part.brokers is not None
            epoch = part.brokers.leader_epoch
            if topics[part.topic].leaders[part.partition].epoch == epoch:
                continue
            (end,) = cluster.epoch_ends({place: [epoch]})[place]
            if end.epoch != epoch or end.end_offset < part.stop:
                raise _lost(
                    part,
                    f"the leader's log has leader epoch {end.epoch} up to offset {end.end_offset},"
                    f" and epoch {epoch} up to {part.stop} was planned: records were lost in an"
                    " unclean election",
                )


def _lost(part: PartitionPlan, text: str) -> DataLossError:
    return DataLossError(
        f"{text}; plan anew", topic=part.topic, partition=part.partition, offset=part.start
    )
