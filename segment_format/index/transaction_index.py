"""Reads the transaction index (`.txnindex`): the transactions whose abort marker is in the segment.

An entry has 34 bytes:

| position | size | field | notes |
|---:|---:|---|---|
| 0 | 2 | version i16 | 0 |
| 2 | 8 | producerId i64 | |
| 10 | 8 | firstOffset i64 | base offset of its first batch; may be in an earlier segment |
| 18 | 8 | lastOffset i64 | offset of the abort marker; strictly increasing through the file |
| 26 | 8 | lastStableOffset i64 | start of the oldest other open transaction, or marker + 1 |

All numbers are big-endian. There is no file header. A segment without abort markers has no
transaction index, or an empty one.

Source: `org.apache.kafka.storage.internals.log.TransactionIndex`, `AbortedTxn`.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

from segment_format._cursor import whole_entries
from segment_format.errors import CorruptIndexError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segment_format._cursor import BytesLike

_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_SIZE: Final = _ENTRY.size


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """One aborted transaction.

    Attributes:
        first_offset: Base offset of the transaction's first batch in the partition.
        last_offset: Offset of the transaction's abort marker.
        last_stable_offset: All transactions that begin below this offset were committed or aborted
            when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_transaction_index(data: BytesLike) -> tuple[AbortedTxn, ...]:
    """Returns the entries of a transaction index in file order.

    An incomplete last entry is an error, although Kafka ignores it: without the entry, records of
    an aborted transaction would be returned as committed.

    Raises:
        CorruptIndexError: An entry is incomplete, has a version other than 0, has negative numbers,
            or has a marker before its transaction; or the offsets of the markers do not increase.
    """
    view = whole_entries(data, ENTRY_SIZE, "transaction index")
    txns: list[AbortedTxn] = []
    previous = -1
    for index, (version, *fields) in enumerate(_ENTRY.iter_unpack(view)):
        txn = AbortedTxn(*fields)
        if version != 0:
            raise CorruptIndexError(
                f"unknown version {version} of a transaction index entry",
                position=index * ENTRY_SIZE,
            )
        if (
            txn.producer_id < 0
            or txn.first_offset < 0
            or txn.last_offset < txn.first_offset
            or txn.last_offset <= previous
        ):
            raise CorruptIndexError(
                f"invalid transaction index entry {txn}: numbers must not be negative, and"
                f" the marker must follow its transaction and the marker at offset {previous}",
                position=index * ENTRY_SIZE,
                offset=txn.last_offset,
            )
        previous = txn.last_offset
        txns.append(txn)
    return tuple(txns)


def write_transaction_index(txns: Iterable[AbortedTxn]) -> bytes:
    """Returns the content of a `.txnindex` file."""
    return b"".join(_ENTRY.pack(0, *astuple(txn)) for txn in txns)
