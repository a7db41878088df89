"""Writes the tier that the examples in the docs read. It contains three small topics of a shop.

s3://bucket/tiered/…   the tier in most examples
tier/tiered/…          the same objects in the current folder
key1.pem               decrypts topic `cards`; its key id is key1
"""

from __future__ import annotations

import functools
import json
import random
import uuid
from typing import TYPE_CHECKING

from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from segment_format.testing.tiers import EncryptionKey
from tests.golden_data import KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from segment_format.testing import BuiltLog

KEY_PREFIX = "tiered/"
PRIVATE_KEY = (KEYS / "key1.private.pem").read_bytes()
_PUBLIC_KEY = (KEYS / "key1.public.pem").read_bytes()
_JAN_1_2025_MS = 1_735_689_600_000
_MINUTE_MS = 60_000


def _order(number: int) -> SimpleRecord:
    value = {"id": number, "customer": f"c{number % 7}", "amount": round(number * 1.25, 2)}
    headers = (("tenant", b"blue" if number % 3 else b"green"),)
    return SimpleRecord(
        None if number % 50 == 49 else json.dumps(value).encode(),
        f"c{number % 7}".encode(),
        headers,
        _JAN_1_2025_MS + number * 30 * _MINUTE_MS,
    )


def _plain(count: int, segments: int) -> BuiltLog:
    builder = LogBuilder()
    for segment in range(segments):
        first = segment * count
        builder.append([_order(number) for number in range(first, first + count)], codec="zstd")
        builder.roll()
    return builder.build()


def _transactional() -> BuiltLog:
    """Builds a log with three transactions: committed, aborted, and still open at the log's end."""
    builder = LogBuilder()
    builder.send(7, [_order(number) for number in range(40)])
    builder.commit(7)
    builder.roll()
    builder.send(8, [_order(number) for number in range(40, 60)])
    builder.append([_order(number) for number in range(60, 80)])
    builder.abort(8)
    builder.append([_order(number) for number in range(80, 100)])
    builder.send(9, [_order(number) for number in range(100, 110)])
    builder.roll()
    return builder.build()


@functools.cache
def objects() -> Mapping[str, bytes]:
    """Returns the content of every object of the tier, by object key."""
    objects_by_key: dict[str, bytes] = {}
    key = EncryptionKey("key1", _PUBLIC_KEY)
    random_source = random.Random(405)
    for number, (topic, partition, log, encryption) in enumerate(
        (
            ("orders", 0, _plain(60, 3), None),
            ("orders", 1, _plain(40, 2), None),
            ("payments", 0, _transactional(), None),
            ("cards", 0, _plain(30, 1), key),
        )
    ):
        writer = AivenTierWriter(
            objects_by_key,
            topic=topic,
            partition=partition,
            topic_id=uuid.uuid5(uuid.NAMESPACE_URL, topic),
            key_prefix=KEY_PREFIX,
            chunk_size=2048,
            compression=encryption is not None,
            encryption=encryption,
            random_bytes=random_source.randbytes,
        )
        for index, segment in enumerate(log.segments):
            writer.write_segment(segment, segment_id=uuid.UUID(int=1 + 100 * number + index))
    return objects_by_key
