"""Leaves out of a search the segments whose filter tells that they have none of the keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kts_source.finding.key_filter import hashes_of
from kts_source.read.task import ScanTask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kts_source.finding.key_filter import Hashes
    from kts_source.finding.key_index import IndexFolder, PartitionIndex
    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.read.task import SegmentSlice
    from segment_format.key_set import KeySet


@dataclass(slots=True)
class RuleOut:
    """What the filters of one search say.

    Attributes:
        folder: Where they are.
        root: URI of the tier.
        keys: What is looked for.
        topic_ids: Topic and partition -> incarnation.
        logs: Topic and partition -> the logs that are left out.
    """

    folder: IndexFolder
    root: str
    keys: KeySet
    topic_ids: Mapping[tuple[str, int], str]
    logs: dict[tuple[str, int], set[ObjectRef]] = field(default_factory=dict)
    _place: tuple[str, int] | None = None
    _index: PartitionIndex | None = None
    _hashes: Hashes | None = None

    def narrowed(self, tasks: Iterable[ScanTask]) -> Iterator[ScanTask]:
        """The tasks, each of one partition, without those slices.

        Raises:
            InvalidOptionError: The filters were made with another secret.
        """
        for task in tasks:
            kept = tuple(part for part in task.slices if not self._is_out(part))
            if kept:
                yield ScanTask(kept)

    def _is_out(self, part: SegmentSlice) -> bool:
        place = part.topic, part.partition
        if place != self._place:
            self._open(place)
        if self._index is None or self._hashes is None:
            return False
        logs = self.logs.setdefault(place, set())
        null = self.keys.has_null
        if self._index.may_hold(part, self._hashes, null=null) is not False:
            return False
        logs.add(part.objects.log)
        return True

    def _open(self, place: tuple[str, int]) -> None:
        topic, partition = self._place = place
        file = self.folder.file_of(self.root, topic, self.topic_ids[place], partition)
        self._index = self.folder.open(file)
        if self._index is not None:
            salt, secret = self._index.salt, self.folder.secret.reveal()
            self._hashes = hashes_of(self.keys, salt=salt, secret=secret)
