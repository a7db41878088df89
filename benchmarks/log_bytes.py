"""Builds log bytes for measurements by repeating batches of the test writer with other base
offsets.

The CRC of a batch does not cover the base offset, so the copies are valid.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from segment_format.testing import SimpleRecord, write_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORDS = [
    "order",
    "customer",
    "status",
    "pending",
    "shipped",
    "amount",
    "currency",
    "EUR",
    "USD",
    "created",
    "updated",
    "item",
    "quantity",
    "warehouse",
    "address",
    "street",
    "city",
    "country",
    "phone",
    "email",
    "payment",
    "card",
    "transfer",
    "invoice",
]


@dataclass(frozen=True, slots=True)
class LogBytes:
    """A log and its statistics.

    Attributes:
        data: The batches, as uint8.
        records: Number of records.
        batches: Number of batches.
        starts: Position of every batch, as int64.
    """

    data: NDArray[np.uint8]
    records: int
    batches: int
    starts: NDArray[np.int64]


def make_log(
    *,
    value_bytes: int,
    records_per_batch: int,
    total_bytes: int,
    codec: str = "none",
    distinct: int,
) -> LogBytes:
    """Returns a log of about `total_bytes`, which repeats `distinct` different batches.

    Args:
        value_bytes: Size of each value. Values are JSON texts from `json_text`.
        records_per_batch: Number of records in a batch. They have null keys and no headers.
        total_bytes: Approximate size of the stored batches.
        codec: Codec of the batches.
        distinct: Number of different batches.
    """
    chance = random.Random(value_bytes)
    written = [
        write_batch(
            [
                SimpleRecord(value=json_text(chance, value_bytes), timestamp=1_700_000_000_000 + i)
                for i in range(records_per_batch)
            ],
            base_offset=0,
            codec=codec,
        )
        for _ in range(distinct)
    ]
    rounds = max(1, total_bytes // sum(map(len, written)))
    block = np.frombuffer(b"".join(written), np.uint8)
    data = np.tile(block, rounds)
    sizes = np.tile(np.array([len(batch) for batch in written], np.int64), rounds)
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)[:-1]))
    offsets = np.arange(len(starts), dtype=np.int64) * records_per_batch
    digits = offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
    data[starts[:, None] + np.arange(8)] = digits
    return LogBytes(data, len(starts) * records_per_batch, len(starts), starts)


def json_text(chance: random.Random, size: int) -> bytes:
    """Returns a JSON object of this size. Its words and numbers compress about as well as real
    records.
    """
    fields = [f'{{"id":"{chance.getrandbits(64):016x}"']
    length = len(fields[0])
    while length < size:
        name, text = chance.choice(_WORDS), chance.choice(_WORDS)
        field = f',"{name}":"{text} {chance.randrange(100_000)}"'
        fields.append(field)
        length += len(field)
    return "".join(fields)[: size - 1].encode() + b"}"
