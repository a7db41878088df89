"""What a search looks for, beside what the options of a scan can say.

Which partitions Kafka's default partitioner writes a key to: the others need not be searched.

    partition = (murmur2(key) & 0x7fffffff) mod number of partitions

It holds for producers that choose no partition themselves and have no partitioner of their own, and
for as long as the topic has had so many partitions. Source: `BuiltInPartitioner.partitionForKey`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from kts_source.columns import HEADERS
from kts_source.errors import InvalidOptionError
from kts_source.options.selection import Assign
from kts_source.secret import Secret
from segment_format.key_set import KeySet
from segment_format.metadata.remote_log_segment_metadata import murmur2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan


def partitions_of(keys: KeySet, count: int) -> frozenset[int]:
    """The partitions, of `count`, that the keys belong to."""
    found: set[int] = set()
    for key in keys:
        found.add((murmur2(key) & 0x7FFF_FFFF) % count)
        if len(found) == count:
            break
    return frozenset(found)


def partition_counts(
    options: ScanOptions, plan: ScanPlan, num_partitions: int | None
) -> dict[str, int]:
    """How many partitions each topic of a plan has: what the user says, else one more than the
    largest number in the tier.

    Raises:
        InvalidOptionError: Partitions were chosen by number, so that nothing tells how many there
            are, or the tier has more than the user says.
    """
    if num_partitions is None and isinstance(options.selection, Assign):
        raise InvalidOptionError(
            "partitionerPruning with option assign needs the number of partitions"
        )
    counts: dict[str, int] = {}
    for part in plan.partitions:
        counts[part.topic] = max(counts.get(part.topic, 0), part.partition + 1)
    for topic, numbers in plan.made_with.get("partitions", {}).items():
        counts[topic] = max(counts.get(topic, 0), *(number + 1 for number in numbers), 0)
    for topic, count in counts.items():
        if num_partitions is not None and count > num_partitions:
            raise InvalidOptionError(
                f"topic {topic} has {count} partitions in the tier, more than {num_partitions}"
            )
    return {topic: num_partitions or count for topic, count in counts.items()}


def assumption(counts: Mapping[str, int]) -> str:
    """What pruning takes for granted, in words."""
    numbers = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
    return (
        "partitionerPruning: every record with a key was written by Kafka's default partitioner"
        " (murmur2), and its topic had as many partitions as now, at all times: " + numbers
    )


_PRODUCER: Final = "producerId"


@dataclass(frozen=True, slots=True)
class HeaderQuery:
    """A header that a record has.

    Attributes:
        name: Of the header.
        value: Of the header; `None` = any, null included.
    """

    name: str
    value: bytes | None = None

    def mask(self, headers: pa.ListArray) -> pa.BooleanArray:
        """Of the rows, those of which at least one header is this one."""
        pairs = headers.flatten()
        hits = pc.equal(pairs.field(0), self.name)
        if self.value is not None:
            same = pc.fill_null(pc.equal(pairs.field(1), pa.scalar(self.value, pa.binary())), False)
            hits = pc.and_(hits, same)
        rows = pc.list_parent_indices(headers).filter(hits)
        return pc.is_in(pa.array(range(len(headers)), rows.type), value_set=rows)


@dataclass(frozen=True, slots=True)
class Query:
    """Conditions that must all hold; see `Conditions`.

    Attributes:
        keys: Keys that records may have; `None` = any.
        key_digest: See `digest_of_keys`; empty without keys.
        value_contains: Bytes that stand somewhere in the value.
        value_matches: A regular expression of RE2 that matches somewhere in the value.
        headers: Headers that records have.
        producer_ids: Producers that wrote them; empty = any.
        partitioner_pruning: Whether only the partitions are searched that the keys belong to.
        num_partitions: How many each topic has; `None` = as many as the tier shows.
        key_index: Where filters of keys are; `None` = none are asked.
        key_index_secret: What they were made with.
    """

    keys: KeySet | None = None
    key_digest: str = ""
    value_contains: bytes | None = None
    value_matches: str | None = None
    headers: tuple[HeaderQuery, ...] = ()
    producer_ids: tuple[int, ...] = ()
    partitioner_pruning: bool = False
    num_partitions: int | None = None
    key_index: str | None = None
    key_index_secret: Secret[bytes] | None = None

    def check(self, options: ScanOptions) -> None:
        """Raises `InvalidOptionError` for conditions that a scan of these options cannot answer."""
        self._check_pruning()
        if any(one < 0 for one in self.producer_ids):
            raise InvalidOptionError(
                "ids of producers are 0 or more; records without one have null"
            )
        if self.key_index is not None and self.keys is None:
            raise InvalidOptionError("an index of keys is asked for keys")
        by_value = self.value_contains is not None or self.value_matches is not None
        if by_value and any(one.column == "value" for one in options.formats):
            raise InvalidOptionError(
                "a substring or a regular expression is looked for in the bytes of values: leave"
                " value.format out, or use option where on the fields"
            )
        if self.value_matches is not None:
            try:
                pc.match_substring_regex(pa.array([b""]), pattern=self.value_matches)
            except pa.ArrowInvalid as error:
                raise InvalidOptionError(
                    f"{self.value_matches!r} is no regular expression of RE2: {error}"
                ) from None

    def _check_pruning(self) -> None:
        if not self.partitioner_pruning:
            if self.num_partitions is not None:
                raise InvalidOptionError("a number of partitions is for partitionerPruning alone")
            return
        if self.keys is None or self.keys.has_null:
            raise InvalidOptionError(
                "partitionerPruning needs keys, and records without a key are in any partition"
            )
        if self.num_partitions is not None and self.num_partitions < 1:
            raise InvalidOptionError(f"{self.num_partitions} partitions")

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that decide about a row once it is decoded."""
        named = {
            "value": self.value_contains is not None or self.value_matches is not None,
            HEADERS: bool(self.headers),
            _PRODUCER: bool(self.producer_ids),
        }
        return tuple(name for name, is_looked_at in named.items() if is_looked_at)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray | None:
        """Of the rows, whose keys match, those that match as a whole; `None` = all."""
        masks = []
        if self.value_contains is not None:
            values = batch.column("value")
            masks.append(pc.match_substring(values, pattern=self.value_contains))
        if self.value_matches is not None:
            masks.append(_matches(batch.column("value"), self.value_matches))
        masks += [header.mask(batch.column(HEADERS)) for header in self.headers]
        if self.producer_ids:
            ids = pa.array(self.producer_ids, pa.int64())
            masks.append(pc.is_in(batch.column(_PRODUCER), value_set=ids))
        found = None
        for mask in masks:
            found = mask if found is None else pc.and_kleene(found, mask)
        return found


class Conditions(TypedDict, total=False):
    """What records must be like, beside option `where`; all that is given must hold.

    Attributes:
        keys: Keys that they may have; `None` among them stands for records without a key. They are
            compared as bytes, whatever option `key.format` says.
        value_contains: Bytes that stand somewhere in the value; a text stands for its UTF-8.
        value_matches: A regular expression of RE2 that matches somewhere in the value.
        headers: Names, or pairs of a name and its value: each is the one of some header of the
            record, not only of the last one of the name.
        producer_ids: Ids of producers that wrote them.
        partitioner_pruning: Whether to search only the partitions that Kafka's default partitioner
            writes the keys to. An assumption, which the certificate states.
        num_partitions: How many each topic has; default: as many as the tier shows.
        key_index: Folder that `index_keys` wrote: segments are left out whose filter tells that
            they have none of the keys.
        key_index_secret: The one that it was written with.
    """

    keys: Iterable[bytes | None]
    value_contains: bytes | str
    value_matches: str
    headers: Iterable[str | tuple[str, bytes]]
    producer_ids: Iterable[int]
    partitioner_pruning: bool
    num_partitions: int
    key_index: str
    key_index_secret: bytes | None


def query_of(**conditions: Unpack[Conditions]) -> Query:
    """The query of some conditions.

    Raises:
        InvalidOptionError: No key in a set of keys, or something that is none: it would be found
            nowhere. One text where several headers are asked for.
    """
    found, digest = None, ""
    if "keys" in conditions:
        keys = _keys(conditions["keys"])
        found, digest = KeySet.of(keys), digest_of_keys(keys)
    text = conditions.get("value_contains")
    headers = conditions.get("headers", ())
    if isinstance(headers, str):
        raise InvalidOptionError("headers are several: give a list, also of one")
    secret = conditions.get("key_index_secret")
    return Query(
        found,
        digest,
        text.encode() if isinstance(text, str) else text,
        conditions.get("value_matches"),
        tuple(HeaderQuery(one) if isinstance(one, str) else HeaderQuery(*one) for one in headers),
        tuple(conditions.get("producer_ids", ())),
        conditions.get("partitioner_pruning", False),
        conditions.get("num_partitions"),
        conditions.get("key_index"),
        None if secret is None else Secret(secret),
    )


def _keys(given: Iterable[bytes | None]) -> set[bytes | None]:
    if isinstance(given, str | bytes | bytearray | memoryview):
        raise InvalidOptionError("keys are several: give a list, also of one")
    keys: set[bytes | None] = set()
    for key in given:
        if key is not None and not isinstance(key, bytes):
            raise InvalidOptionError(f"a key is bytes, or None, and not {type(key).__name__}")
        keys.add(key)
    if not keys:
        raise InvalidOptionError("there is no key to look for")
    return keys


def _matches(values: pa.BinaryArray, pattern: str) -> pa.BooleanArray:
    """Which values match as text in UTF-8, or else as bytes, of which each is a character then.

    Neither is enough: bytes know no letters but those of ASCII, and a text that is broken in one
    place may not match in another.
    """
    as_text = pc.match_substring_regex(values.view(pa.string()), pattern=pattern)
    return pc.or_(as_text, pc.match_substring_regex(values, pattern=pattern))


def digest_of_keys(keys: Iterable[bytes | None]) -> str:
    """SHA-256 in hex over a set of keys in order: −1 as int32 for none, first of all, else the
    length as int32 and the bytes; big-endian.
    """
    digest = hashlib.sha256()
    distinct = set(keys)
    if None in distinct:
        digest.update((-1).to_bytes(4, "big", signed=True))
    for key in sorted(key for key in distinct if key is not None):
        digest.update(len(key).to_bytes(4, "big") + key)
    return digest.hexdigest()
