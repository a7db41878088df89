"""A partition of which every segment is proven: the next audit takes its result as it is."""

from __future__ import annotations

import hashlib
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from kts_source.auditing.report import Finding, PartitionStatement
from kts_source.auditing.state import identity_of
from segment_format.errors import SegmentFormatError
from segment_format.manifest.encryption import WrappedDataKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kts_source.auditing.place import PartitionObjects
    from kts_source.auditing.state import PartitionState
    from kts_source.keyring import KeyRing
    from kts_source.layout.remote_segment import RemoteSegment


def whole_identity(part: PartitionObjects) -> str:
    """What tells the objects of a partition from any others; empty where there are parts of
    segments, of which time may tell something else, or where objects have no versions.
    """
    if part.orphans:
        return ""
    digest = hashlib.blake2b(digest_size=20)
    for entry in part.entries:
        identity = identity_of(entry)
        if not identity:
            return ""
        digest.update(f"{entry.described_by} {identity}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def keep_result(
    state: PartitionState,
    identity: str,
    level: str,
    segments: Iterable[RemoteSegment],
    statement: PartitionStatement,
    findings: Sequence[Finding],
) -> None:
    """Keeps what was found of a partition of which every segment is proven."""
    if any(one.name == "clock" for one in findings):  # the time goes on
        return
    keys = {}
    for segment in segments:
        encryption = segment.objects.encryption
        if encryption is not None:
            keys[encryption.data_key.key_id] = encryption.data_key.to_text()
    told = [list(astuple(one)) for one in findings]
    state.add_whole(identity, [level, list(keys.values()), list(astuple(statement)), told])


def kept_result(
    value: Any,  # noqa: ANN401
    level: str,
    key_ring: KeyRing,
) -> tuple[PartitionStatement, list[Finding]] | None:
    """What `keep_result` has kept; `None` where it is of another level, or its keys are missing."""
    try:
        kept_level, keys, statement, findings = value
        if kept_level != level:
            return None
        for text in keys:
            key_ring.unwrap(WrappedDataKey.from_text(text))
        told = [_finding(*one) for one in findings]
        return PartitionStatement(*statement), told
    except (TypeError, ValueError, SegmentFormatError):
        return None


def _finding(  # as many as a finding has
    name: str,
    topic: str,
    topic_id: str,
    partition: int,
    start: int | None,
    stop: int | None,
    objects: Iterable[str],
    stored_bytes: int,
    detail: str,
    dollars_a_month: float,
) -> Finding:
    place = topic, topic_id, partition
    return Finding(name, *place, start, stop, tuple(objects), stored_bytes, detail, dollars_a_month)


def opens_with(segment: RemoteSegment, key_ring: KeyRing, known: dict[str, bool]) -> bool:
    """Whether the key ring still has the key of a segment that was proven with it.

    Args:
        segment: Which.
        key_ring: The keys that there are now.
        known: Key id to the answer, filled here.
    """
    encryption = segment.objects.encryption
    if encryption is None:
        return True
    key_id = encryption.data_key.key_id
    if key_id not in known:
        try:
            key_ring.unwrap(encryption.data_key)
            known[key_id] = True
        except SegmentFormatError:
            known[key_id] = False
    return known[key_id]
