"""Reads the transaction index (`.txnindex`): transactions that an abort marker in the segment ends.

34 bytes per entry:

| position | size | field | notes |
|---:|---:|---|---|
| 0 | 2 | version i16 | 0 |
| 2 | 8 | producerId i64 | |
| 10 | 8 | firstOffset i64 | base offset of its first batch; may be in an earlier segment |
| 18 | 8 | lastOffset i64 | offset of the abort marker; strictly increasing through the file |
| 26 | 8 | lastStableOffset i64 | start of the oldest other open transaction, or marker + 1 |

Big-endian, no file header. A segment without abort markers has no such file or an empty one.

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
        producer_id: Its producer.
        first_offset: Base offset of its first batch in the partition.
        last_offset: Offset of its abort marker, inclusive.
        last_stable_offset: Below this offset every transaction was decided when the marker was
            written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_transaction_index(data: BytesLike) -> tuple[AbortedTxn, ...]:
    """Returns the entries of a transaction index, in file order, one object for each 34 bytes.

    Kafka ignores an incomplete last entry. Here it is an error: a lost entry would turn aborted
    records into committed ones.

    Raises:
        CorruptIndexError: An entry is incomplete, has a version other than 0 or negative fields, or
            the markers do not increase or precede their transaction.
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
                f"invalid transaction index entry {txn} after a marker at offset {previous}",
                position=index * ENTRY_SIZE,
                offset=txn.last_offset,
            )
        previous = txn.last_offset
        txns.append(txn)
    return tuple(txns)


def write_transaction_index(txns: Iterable[AbortedTxn]) -> bytes:
    """Returns the content of a `.txnindex` file."""
    return b"".join(_ENTRY.pack(0, *astuple(txn)) for txn in txns)
