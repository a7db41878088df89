"""A partition of which every segment is proven: the next audit takes its result as it is."""

from __future__ import annotations

import hashlib
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from kts_source.auditing.report import Finding, PartitionStatement
from kts_source.auditing.state import identity_of
from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kts_source.auditing.place import PartitionObjects
    from kts_source.auditing.proven import ProvenSegment
    from kts_source.auditing.state import PartitionState
    from kts_source.keyring import KeyRing


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
    now_ms: int,
    segments: Iterable[ProvenSegment],
    statement: PartitionStatement,
    findings: Sequence[Finding],
) -> None:
    """Keeps what was found of a partition of which every segment is proven."""
    if any(one.name == "clock" for one in findings):  # the time goes on
        return
    keys = sorted({(one.key_id, one.opened_by) for one in segments if one.key_id})
    told = [list(astuple(one)) for one in findings]
    state.add_whole(identity, [level, now_ms, keys, list(astuple(statement)), told])


def kept_result(
    value: Any,  # noqa: ANN401
    level: str,
    now_ms: int,
    key_ring: KeyRing,
) -> tuple[PartitionStatement, list[Finding]] | None:
    """What `keep_result` has kept; `None` where it is of another level, or its keys are missing, or
    the clock was set back: what was dated in the past then may be in the future now.
    """
    try:
        kept_level, kept_ms, keys, statement, findings = value
        if kept_level != level or kept_ms > now_ms:
            return None
        if any(not key or key != key_ring.fingerprint(key_id) for key_id, key in keys):
            return None
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
