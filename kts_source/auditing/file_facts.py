"""What the side files of one segment say of epochs and transactions, and whether they are sound and
of that segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.cache.side_file_pack import SideFilePack
from kts_source.errors import (
    CorruptSegmentError,
    ObjectChangedError,
    ObjectNotFoundError,
    TruncatedObjectError,
)
from kts_source.layout.remote_segment import IndexType, epochs_between
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from segment_format.errors import DecryptionError, SegmentFormatError
from segment_format.index.leader_epoch_checkpoint import EpochEntry, LeaderEpochCheckpoint
from segment_format.index.producer_snapshot import ProducerStateEntry, parse_producer_snapshot
from segment_format.index.transaction_index import AbortedTxn, parse_transaction_index

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.auditing.place import Place
    from kts_source.auditing.report import Finding
    from kts_source.keyring import KeyRing
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.tier import Tier


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of a segment's side files; `None` for one that is not sound.

    Attributes:
        epochs: Entries of the leader-epoch checkpoint.
        open_after: Entries of the producer snapshot with an open transaction.
        aborted: The transaction index.
        locked_by: Id of the key that is missing, or does not open the segment; empty for none.
    """

    epochs: tuple[EpochEntry, ...] | None
    open_after: tuple[ProducerStateEntry, ...] | None
    aborted: tuple[AbortedTxn, ...] | None
    locked_by: str
    findings: tuple[Finding, ...]

    @property
    def is_closed(self) -> bool:
        """Whether its side files cannot be read: the key is missing, or they are archived."""
        return self is NO_FACTS or bool(self.locked_by)

    @property
    def are_sound(self) -> bool:
        """Whether all of them are."""
        return None not in (self.epochs, self.open_after, self.aborted)


NO_FACTS: Final = FileFacts(None, None, None, "", ())
"""Of a segment whose side files cannot be read."""


def file_facts(place: Place, segment: RemoteSegment, tier: Tier, key_ring: KeyRing) -> FileFacts:
    """Reads and checks checkpoint, snapshot and transaction index, in one request where they stand
    together.

    Raises:
        StoreError: The store does not answer.
    """
    encryption = segment.objects.encryption
    if encryption is not None:
        try:
            key_ring.unwrap(encryption.data_key)
        except DecryptionError:
            return FileFacts(None, None, None, encryption.data_key.key_id, ())
    files = _Files(place, segment, SegmentSource(tier, key_ring, pack=SideFilePack()))
    epochs = files.epochs()
    open_after = files.open_after()
    aborted = files.aborted()
    return FileFacts(epochs, open_after, aborted, "", tuple(files.findings))


class SideFileReader:
    """Reads the side files of one segment for checks; what is wrong becomes a finding."""

    def __init__(self, place: Place, segment: RemoteSegment, source: SegmentSource) -> None:
        self.segment = segment
        self.findings: list[Finding] = []
        self._place = place
        self._source = source

    def read(self, kind: IndexType, name: str) -> bytes | None:
        """The file; `None`, and a finding of this name, where it cannot be had. A transaction
        index that is not there is empty.
        """
        try:
            data = self._source.index(self.segment.objects, kind)
        except (ObjectNotFoundError, ObjectChangedError) as error:
            self.find("object-gone", kind, error.message)
            return None
        except (CorruptSegmentError, TruncatedObjectError) as error:
            self.find(name, kind, error.message)
            return None
        if data is None and kind is not IndexType.TRANSACTION:
            self.find(name, kind, f"the segment has no {kind.value} file")
            return None
        return data or b""

    def find(self, name: str, kind: IndexType, detail: str) -> None:
        """Adds a finding about a side file."""
        stored = self.segment.objects.indexes.get(kind)
        keys = [self.segment.objects.log.key if stored is None else stored.source.key]
        self.findings.append(self._place.of_segment(name, self.segment, keys, detail))


class _Files(SideFileReader):
    def epochs(self) -> tuple[EpochEntry, ...] | None:
        kind, segment = IndexType.LEADER_EPOCH, self.segment
        data = self.read(kind, "epochs-invalid")
        if data is None:
            return None
        try:
            entries = LeaderEpochCheckpoint.from_bytes(data).entries
        except SegmentFormatError as error:
            self.find("epochs-invalid", kind, str(error))
            return None
        here = epochs_between(entries, segment.start_offset, segment.end_offset)
        told = epochs_between(segment.leader_epochs, segment.start_offset, segment.end_offset)
        if told and here != told:
            text = f"the checkpoint has {_text(here)} for its offsets, the segment {_text(told)}"
            self.find("epochs-disagree", kind, text)
            return None
        return entries

    def open_after(self) -> tuple[ProducerStateEntry, ...] | None:
        kind, stop = IndexType.PRODUCER_SNAPSHOT, self.segment.stop_offset
        data = self.read(kind, "snapshot-invalid")
        if data is None:
            return None
        try:
            entries = parse_producer_snapshot(data)
        except SegmentFormatError as error:
            self.find("snapshot-invalid", kind, str(error))
            return None
        if not self.segment.end_is_exact:
            stop = max(stop, max((entry.last_offset + 1 for entry in entries), default=0))
        late = [e for e in entries if max(e.last_offset, e.current_txn_first_offset) >= stop]
        if late:
            text = f"producer {late[0].producer_id} has offsets behind the segment's end {stop}"
            self.find("snapshot-disagrees", kind, text)
            return None
        return tuple(entry for entry in entries if entry.current_txn_first_offset >= 0)

    def aborted(self) -> tuple[AbortedTxn, ...] | None:
        kind, segment = IndexType.TRANSACTION, self.segment
        data = self.read(kind, "transactions-invalid")
        if data is None:
            return None
        try:
            entries = parse_transaction_index(data)
        except SegmentFormatError as error:
            self.find("transactions-invalid", kind, str(error))
            return None
        for txn in entries:
            if not segment.start_offset <= txn.last_offset < segment.stop_offset:
                text = (
                    f"it has an abort marker at offset {txn.last_offset}, outside of the segment's"
                    f" [{segment.start_offset}, {segment.stop_offset})"
                )
                self.find("transactions-disagree", kind, text)
                return None
        return entries


def _text(entries: tuple[EpochEntry, ...]) -> str:
    return ", ".join(f"epoch {one.epoch} from {one.start_offset}" for one in entries) or "no epoch"


class KnownFiles(SideFiles):
    """Side files that were read and checked before, for the code that decides transactions.

    Args:
        facts: By key of the segment's log object.
        source: What reads logs, where headers must be replayed.
        max_batch_bytes: Bound on one record batch.
    """

    def __init__(
        self, facts: Mapping[str, FileFacts], source: SegmentSource, *, max_batch_bytes: int
    ) -> None:
        super().__init__(source, max_batch_bytes=max_batch_bytes)
        self.facts = facts

    def leader_epochs(self, segment: RemoteSegment) -> LeaderEpochCheckpoint:
        """The lineage known when the segment was uploaded; without entries if it is not sound."""
        facts = self.facts.get(segment.objects.log.key, NO_FACTS)
        return LeaderEpochCheckpoint(facts.epochs or ())

    def snapshot(self, segment: RemoteSegment) -> tuple[ProducerStateEntry, ...] | None:
        """Producers with an open transaction at the segment's end."""
        return self.facts[segment.objects.log.key].open_after

    def aborted(self, segment: RemoteSegment) -> tuple[AbortedTxn, ...] | None:
        """Transactions whose abort marker is in the segment."""
        return self.facts[segment.objects.log.key].aborted
