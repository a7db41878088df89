"""Defines the plan of a restore, and its JSON file. The file contains no credentials."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from kts_source.errors import InvalidOptionError

PLAN_VERSION: Final = 1
REFUSE, ABORT = "refuse", "abort"
UNDECIDED_POLICIES: Final = (REFUSE, ABORT)


@dataclass(frozen=True, slots=True)
class PartitionRestore:
    """The part of a restore that concerns one partition.

    Attributes:
        topic_id: Topic id in the tier.
        target_topic: Topic in the new cluster.
        partition: Partition number in the tier and in the new cluster.
        log_start: First offset that consumers may see.
        stop: One past the last offset of the tier.
        resume_at: Minimum offset of the next record. If it is above the end of the restored log, an
            empty batch spans the offsets between them.
        stable_stop: One past the last offset whose transactions are all decided.
        max_epoch: Highest leader epoch in the tier; −1 if the tier records none.
        bytes: Size of the original segments in bytes.
        fingerprint: Digest of the names, versions and offset ranges of the segments.
        undecided: Producer id and first offset of each open transaction, oldest first.
    """

    topic: str
    topic_id: str
    target_topic: str
    partition: int
    log_start: int
    stop: int
    resume_at: int
    stable_stop: int
    max_epoch: int
    segments: int
    bytes: int
    fingerprint: str
    undecided: tuple[tuple[int, int], ...]

    @property
    def name(self) -> str:
        """Target topic and partition, as in the name of the partition's folder."""
        return f"{self.target_topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A plan of a restore.

    Attributes:
        plan_id: Random id of the plan.
        source: Paths of the tier.
        node_id: Id of the broker that gets the files; −1 if the replicas are on several brokers.
        target_ids: Topic id of each target topic in the new cluster.
        undecided: Handling of transactions without a known end: one of `UNDECIDED_POLICIES`.
        partitions: The partitions, ascending by topic and number.
        refusals: Reasons why the plan must not be executed. Empty if it may be executed.
        notes: Facts that the operator should know.
    """

    plan_id: str
    source: str
    cluster_id: str
    node_id: int
    target_ids: dict[str, str]
    undecided: str
    partitions: tuple[PartitionRestore, ...]
    refusals: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> str:
        """Returns the content of the plan file."""
        return json.dumps({"version": PLAN_VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> RestorePlan:
        """Parses a plan file.

        Raises:
            InvalidOptionError: The text is not a plan, or a plan of another version.
        """
        try:
            facts: dict[str, Any] = json.loads(text)
            version = facts.pop("version")
            if version != PLAN_VERSION:
                raise InvalidOptionError(
                    f"the restore plan has version {version}, but this release reads version"
                    f" {PLAN_VERSION}: create it again with kts restore plan"
                )
            partitions = [
                PartitionRestore(
                    **{**each, "undecided": tuple((pid, at) for pid, at in each["undecided"])}
                )
                for each in facts.pop("partitions")
            ]
            facts |= {name: tuple(facts[name]) for name in ("refusals", "notes")}
            return cls(**facts | {"partitions": tuple(partitions)})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, InvalidOptionError):
                raise
            raise InvalidOptionError(
                f"the file is not a restore plan ({error}): create it with kts restore plan"
            ) from None

    def explain(self) -> str:
        """Returns a description for the operator."""
        lines = [f"restore from {self.source} to broker {self.node_id} of {self.cluster_id}"]
        for each in self.partitions:
            origin = "" if each.topic == each.target_topic else f" from {each.topic}"
            lines.append(
                f"{each.name}{origin}: offsets [{each.log_start}, {each.stop}), next offset at"
                f" least {each.resume_at}, {each.segments} segments, {each.bytes:,} bytes, leader"
                f" epoch {each.max_epoch}, {len(each.undecided)} undecided transactions"
            )
        lines.append(f"total: {sum(each.bytes for each in self.partitions):,} bytes")
        lines += [f"note: {text}" for text in self.notes]
        lines += [f"REFUSED: {text}" for text in self.refusals]
        return "\n".join(lines)


def read_plan(path: str) -> RestorePlan:
    """Reads a plan file.

    Raises:
        InvalidOptionError: The file cannot be read, or is not a plan of this version.
    """
    try:
        return RestorePlan.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"restore plan {path} cannot be read: {error}") from None
