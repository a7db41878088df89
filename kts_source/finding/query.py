"""The conditions of a search, in addition to the options of a scan."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import reduce
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
    """Returns the partitions to which Kafka's default partitioner writes the keys.

    The partition of a key is murmur2(key) & 0x7fffffff modulo `count`, the number of partitions.
    Source: `BuiltInPartitioner.partitionForKey`.
    """
    partitions: set[int] = set()
    for key in keys:
        partitions.add((murmur2(key) & 0x7FFF_FFFF) % count)
        if len(partitions) == count:
            break
    return frozenset(partitions)


def partition_counts(
    options: ScanOptions, plan: ScanPlan, num_partitions: int | None
) -> dict[str, int]:
    """Returns the number of partitions of each topic.

    This is `num_partitions` for every topic. If `num_partitions` is `None`, it is one more than the
    largest partition number of the topic in the tier.

    Raises:
        InvalidOptionError: Option `assign` is set without `num_partitions`, or the tier has more
            partitions than `num_partitions`.
    """
    if num_partitions is None and isinstance(options.selection, Assign):
        raise InvalidOptionError(
            "partitionerPruning with option assign needs the number of partitions: set"
            " num_partitions"
        )
    counts: dict[str, int] = {}
    for partition in plan.partitions:
        counts[partition.topic] = max(counts.get(partition.topic, 0), partition.partition + 1)
    for topic, numbers in plan.made_with.get("partitions", {}).items():
        counts[topic] = max(counts.get(topic, 0), *(number + 1 for number in numbers), 0)
    for topic, count in counts.items():
        if num_partitions is not None and count > num_partitions:
            raise InvalidOptionError(
                f"topic {topic} has at least {count} partitions in the tier, more than"
                f" num_partitions={num_partitions}. Set num_partitions to the number of partitions"
                " of the topic."
            )
    return {topic: num_partitions or count for topic, count in counts.items()}


def pruning_assumption(counts: Mapping[str, int]) -> str:
    """Returns a sentence with an assumption: each key is only in the partition to which Kafka's
    default partitioner writes it.
    """
    numbers = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
    return (
        "partitionerPruning: Kafka's default partitioner (murmur2) wrote every record with a key,"
        f" and its topic always had as many partitions as now: {numbers}."
    )


_PRODUCER: Final = "producerId"


@dataclass(frozen=True, slots=True)
class HeaderQuery:
    """A header that records must have. If `value` is `None`, any value matches, including null."""

    name: str
    value: bytes | None = None

    def mask(self, headers: pa.ListArray) -> pa.BooleanArray:
        """Returns a mask that is true for the rows that have this header."""
        pairs = headers.flatten()
        hits = pc.equal(pairs.field(0), self.name)
        if self.value is not None:
            same = pc.fill_null(pc.equal(pairs.field(1), pa.scalar(self.value, pa.binary())), False)
            hits = pc.and_(hits, same)
        rows = pc.list_parent_indices(headers).filter(hits)
        return pc.is_in(pa.array(range(len(headers)), rows.type), value_set=rows)


@dataclass(frozen=True, slots=True)
class Query:
    """The checked conditions of a search; a record must meet all of them. `Conditions` describes
    the attributes.
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
        """Raises `InvalidOptionError` if a condition is invalid or contradicts other conditions or
        options.
        """
        self._check_pruning()
        if any(producer_id < 0 for producer_id in self.producer_ids):
            raise InvalidOptionError("a producer id is negative: ids are 0 or greater")
        if self.key_index is not None and self.keys is None:
            raise InvalidOptionError("key_index needs keys: give keys, or remove key_index")
        by_value = self.value_contains is not None or self.value_matches is not None
        if by_value and any(column_format.column == "value" for column_format in options.formats):
            raise InvalidOptionError(
                "value_contains and value_matches search the bytes of encoded values: remove"
                " value.format, or use option where on the fields"
            )
        if self.value_matches is not None:
            try:
                pc.match_substring_regex(pa.array([b""]), pattern=self.value_matches)
            except pa.ArrowInvalid as error:
                raise InvalidOptionError(
                    f"{self.value_matches!r} is not a valid regular expression of RE2: {error}"
                ) from None

    def _check_pruning(self) -> None:
        if not self.partitioner_pruning:
            if self.num_partitions is not None:
                raise InvalidOptionError(
                    "num_partitions is used only with partitionerPruning: remove it"
                )
            return
        if self.keys is None or self.keys.has_null:
            raise InvalidOptionError(
                "partitionerPruning needs keys and none of them may be None, because records"
                " without a key may be in any partition"
            )
        if self.num_partitions is not None and self.num_partitions < 1:
            raise InvalidOptionError(
                f"num_partitions={self.num_partitions} is invalid: a topic has 1 or more partitions"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the conditions other than `keys` need."""
        named = {
            "value": self.value_contains is not None or self.value_matches is not None,
            HEADERS: bool(self.headers),
            _PRODUCER: bool(self.producer_ids),
        }
        return tuple(name for name, is_needed in named.items() if is_needed)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray | None:
        """Returns a mask that is true for the rows that meet all conditions other than `keys`.
        `None` means that all rows meet them.
        """
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
        return reduce(pc.and_kleene, masks) if masks else None


class Conditions(TypedDict, total=False):
    """Conditions on records, in addition to option `where`. A record must meet all of them.

    Attributes:
        keys: A record must have one of these keys. A string is encoded in UTF-8. `None` stands for
            records without a key. Keys are compared as bytes, regardless of option `key.format`.
        value_contains: Bytes that the value must contain; a string is encoded in UTF-8.
        value_matches: A regular expression of RE2 that must match somewhere in the value.
        headers: Names, or pairs of name and value. A string as value is encoded in UTF-8. A record
            must have each of these headers. If a record has several headers of one name, any of
            them may match.
        producer_ids: One of these producers must have written the record.
        partitioner_pruning: True to search only the partitions to which Kafka's default partitioner
            writes the keys. The certificate states this assumption.
        num_partitions: Number of partitions of each topic, for `partitioner_pruning`; default: one
            more than the largest partition number in the tier.
        key_index: Folder written by `index_keys`. A segment is skipped if its filter has none of
            the keys.
        key_index_secret: The secret with which `key_index` was written.
    """

    keys: Iterable[bytes | str | None]
    value_contains: bytes | str
    value_matches: str
    headers: Iterable[str | tuple[str, bytes | str]]
    producer_ids: Iterable[int]
    partitioner_pruning: bool
    num_partitions: int
    key_index: str
    key_index_secret: bytes | None


def query_of(**conditions: Unpack[Conditions]) -> Query:
    """Checks the types of the conditions, and returns a `Query` with them.

    Raises:
        InvalidOptionError: `keys` is empty, a key is not bytes, or a condition is a single value
            although it must be a list.
    """
    keys = _keys(conditions["keys"]) if "keys" in conditions else None
    text = conditions.get("value_contains")
    headers = conditions.get("headers", ())
    if isinstance(headers, str):
        raise InvalidOptionError("headers is a string: give a list, even for a single header")
    secret = conditions.get("key_index_secret")
    return Query(
        None if keys is None else KeySet.of(keys),
        "" if keys is None else digest_of_keys(keys),
        None if text is None else _as_bytes(text),
        conditions.get("value_matches"),
        tuple(
            HeaderQuery(header)
            if isinstance(header, str)
            else HeaderQuery(header[0], _as_bytes(header[1]))
            for header in headers
        ),
        tuple(conditions.get("producer_ids", ())),
        conditions.get("partitioner_pruning", False),
        conditions.get("num_partitions"),
        conditions.get("key_index"),
        None if secret is None else Secret(secret),
    )


def _as_bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _keys(values: Iterable[bytes | str | None]) -> set[bytes | None]:
    if isinstance(values, str | bytes | bytearray | memoryview):
        raise InvalidOptionError("keys is a single value: give a list, even for a single key")
    keys: set[bytes | None] = set()
    for key in values:
        if key is not None and not isinstance(key, bytes | str):
            raise InvalidOptionError(
                f"a key is of type {type(key).__name__}: give text, bytes, or None for no key"
            )
        keys.add(None if key is None else _as_bytes(key))
    if not keys:
        raise InvalidOptionError("keys is empty: give at least one key")
    return keys


def _matches(values: pa.BinaryArray, pattern: str) -> pa.BooleanArray:
    """Returns a mask of the values in which `pattern` matches, as UTF-8 or as bytes.

    Both searches are needed: as bytes, only ASCII letters count as letters; as UTF-8, a value with
    an invalid character never matches.
    """
    as_text = pc.match_substring_regex(values.view(pa.string()), pattern=pattern)
    return pc.or_(as_text, pc.match_substring_regex(values, pattern=pattern))


def digest_of_keys(keys: Iterable[bytes | None]) -> str:
    """Returns the SHA-256, in hex, of the distinct keys in ascending order.

    For each key, its length (big-endian int32) and its bytes are hashed. `None` is hashed as the
    length −1, before all keys.
    """
    digest = hashlib.sha256()
    distinct = set(keys)
    if None in distinct:
        digest.update((-1).to_bytes(4, "big", signed=True))
    for key in sorted(key for key in distinct if key is not None):
        digest.update(len(key).to_bytes(4, "big") + key)
    return digest.hexdigest()
