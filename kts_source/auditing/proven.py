"""What was proven of a segment, as a value and in JSON's types."""

from __future__ import annotations

import base64
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from kts_source.auditing.digest import DigestPart
from kts_source.auditing.file_facts import FileFacts
from kts_source.layout.remote_segment import ObjectRef
from kts_source.layout.segment_facts import segment_facts, segment_from_facts
from segment_format.index.leader_epoch_checkpoint import EpochEntry
from segment_format.index.producer_snapshot import ProducerStateEntry
from segment_format.index.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.keyring import KeyRing
    from kts_source.layout.layout import SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment


@dataclass(frozen=True, slots=True)
class LogProof:
    """Every batch of a segment was read and is sound, and so are all its side files.

    Attributes:
        start: First served offset of the segment, inclusive.
        stop: One past the last; `start` where it serves nothing.
        counted_from: Batches that begin before it were counted in the segment before.
        first_base: Base offset of the first batch that holds served offsets; `stop` if none does.
        is_first: Whether nothing was served before it, though the segment begins earlier.
        open_before: Producer id to first offset of the transactions known to be open at its begin.
        open_after: The same at its end.
        own_after: The same if none had been known at its begin.
        next_offset: One past the last batch counted up to its end.
        batches: Counted ones.
        records: Counted ones.
        digest: Of the counted batches.
    """

    start: int
    stop: int
    counted_from: int
    first_base: int
    is_first: bool
    open_before: Mapping[int, int]
    open_after: Mapping[int, int]
    own_after: Mapping[int, int]
    next_offset: int
    batches: int
    records: int
    digest: DigestPart

    def open_knowing(self, known: Mapping[int, int]) -> dict[int, int]:
        """What reading the segment again would know to be open at its end.

        Args:
            known: Transactions known to be open at its begin, some of `open_before`.
        """
        from_before = self.open_after.items() & self.open_before.items()
        return {**self.own_after, **dict(from_before & known.items())}

    def holds_for(
        self, span: tuple[int, int], counted_from: int, is_first: bool, known: Mapping[int, int]
    ) -> bool:
        """Whether reading the segment again would tell nothing else.

        Args:
            span: Served offsets [start, stop).
            counted_from: One past the last batch counted before.
            is_first: See above.
            known: Transactions known to be open. It was proven with these and more, perhaps.
        """
        return (
            span == (self.start, self.stop)
            and known.items() <= self.open_before.items()
            and is_first == self.is_first
            and (
                counted_from == self.counted_from
                or max(counted_from, self.counted_from) <= self.first_base
            )
        )


@dataclass(frozen=True, slots=True)
class ProvenSegment:
    """A segment without faults.

    Attributes:
        segment: Its facts.
        files: Its side files that tell of epochs and transactions; all are sound.
        has_indexes: Whether its offset and time index are known to be sound.
        log: The proof of its bytes, if they were read.
        opened_by: Fingerprint of the private key that opened it; empty where it is not encrypted.
    """

    segment: RemoteSegment
    files: FileFacts
    has_indexes: bool = False
    log: LogProof | None = None
    opened_by: str = ""

    @property
    def key_id(self) -> str:
        """Of the private key that opens it; empty where it is not encrypted."""
        encryption = self.segment.objects.encryption
        return "" if encryption is None else encryption.data_key.key_id

    def opens_with(self, key_ring: KeyRing) -> bool:
        """Whether the key ring has the very key that the segment was proven with."""
        return not self.key_id or self.opened_by == key_ring.fingerprint(self.key_id) != ""


def to_json(entry: SegmentEntry, proven: ProvenSegment) -> list[Any] | None:
    """A proof in JSON's types; `None` if its facts depend on more than its own objects."""
    suffixes = {info.key: suffix for suffix, info in entry.objects}
    segment, files = proven.segment, proven.files
    if any(one.content is not None for one in segment.objects.indexes.values()):
        return None  # worked out from more than the objects of this segment
    if not segment.objects.size_in_bytes:
        return None  # its end may depend on the next one in the listing
    facts = segment_facts(segment, lambda ref: suffixes.get(ref.key))
    if facts is None:
        return None
    return [
        facts,
        [[one.epoch, one.start_offset] for one in files.epochs or ()],
        [list(astuple(one)) for one in files.open_after or ()],
        [list(astuple(one)) for one in files.aborted or ()],
        proven.has_indexes,
        proven.opened_by,
        None if proven.log is None else _log_to_json(proven.log),
    ]


def from_json(entry: SegmentEntry, value: Any) -> ProvenSegment:  # noqa: ANN401
    """The proof of a listed segment.

    Raises:
        ValueError: Not what `to_json` gives; as TypeError, LookupError and SegmentFormatError.
    """
    facts, epochs, opened, aborted, has_indexes, opened_by, log = value
    place = entry.topic, entry.topic_id, entry.partition, entry.segment_id
    objects = dict(entry.objects)
    segment = segment_from_facts(place, facts, lambda name: ObjectRef.of(objects[str(name)]))
    files = FileFacts(
        tuple(EpochEntry(*one) for one in epochs),
        tuple(ProducerStateEntry(*one) for one in opened),
        tuple(AbortedTxn(*one) for one in aborted),
        "",
        (),
    )
    proof = None if log is None else _log_from_json(log)
    return ProvenSegment(segment, files, bool(has_indexes), proof, str(opened_by))


def _log_to_json(log: LogProof) -> list[Any]:
    digest = log.digest
    return [
        *(log.start, log.stop, log.counted_from, log.first_base, log.is_first),
        *(
            [[*pair] for pair in opened.items()]
            for opened in (log.open_before, log.open_after, log.own_after)
        ),
        *(log.next_offset, log.batches, log.records),
        *(base64.b64encode(part).decode() for part in (digest.first, digest.last)),
        f"{digest.between:x}",
    ]


def _log_from_json(value: Any) -> LogProof:  # noqa: ANN401
    *numbers, before, after, own, next_offset, batches, records, first, last, between = value
    start, stop, counted_from, first_base, is_first = numbers
    digest = DigestPart(base64.b64decode(first), base64.b64decode(last), int(between, 16))
    opened = dict(before), dict(after), dict(own)
    return LogProof(
        *(start, stop, counted_from, first_base, bool(is_first)),
        *opened,
        *(next_offset, batches, records),
        digest,
    )
