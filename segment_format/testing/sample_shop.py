"""A shop whose orders and payments are in tiered storage, for notebooks and examples.

    shop = SampleShop("sample/tier")
    shop.tier_months(60)  # January 2021 to December 2025

Both topics have JSON values and the customer as key. Each month is one segment per partition. The
records are deterministic.
"""

from __future__ import annotations

import datetime
import itertools
import json
import random
import uuid
import zlib
from typing import TYPE_CHECKING, Final

from segment_format.testing.batches import SimpleRecord
from segment_format.testing.log_builder import LogBuilder
from segment_format.testing.tiers import AivenTierWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEY_PREFIX: Final = "tiered/"
_ORDERS_PARTITIONS: Final = 3
_CUSTOMERS: Final = 400
_COUNTRIES: Final = ("CH", "DE", "FR", "IT")
_SHARES: Final = (4, 3, 2, 1)
_METHODS: Final = ("card", "invoice", "wallet")
# Orders of each month of a year, relative to the mean: quiet summers, and gifts in winter.
_SEASON: Final = (0.9, 0.8, 0.9, 1.0, 1.0, 0.9, 0.7, 0.7, 0.9, 1.0, 1.7, 1.5)
_BATCH: Final = 200


class SampleShop:
    """Writes the topics `orders` (three partitions) and `payments` (one partition) to a tier.

    Args:
        folder: Root of the tier. Existing objects with the same keys are replaced.
        orders_per_month: Orders of a mean month of the first year. The shop grows every year.
        lost_month: Number of the month whose payments never reach the tier, counted from 0. These
            payments are a hole in the topic.

    Attributes:
        options: Options of a scan, except the topics.
        logs: Log of each topic and partition, including records that never reach the tier.
    """

    def __init__(
        self, folder: str, *, orders_per_month: int = 300, lost_month: int | None = None
    ) -> None:
        self.options: Final = {"path": folder, "keyPrefix": _KEY_PREFIX}
        self._orders_per_month = orders_per_month
        self._lost_month = lost_month
        self._random = random.Random(405)
        self._countries = self._random.choices(_COUNTRIES, _SHARES, k=_CUSTOMERS)
        self._months = 0
        self._order_ids = itertools.count(1)
        partitions = [
            *(("orders", number) for number in range(_ORDERS_PARTITIONS)),
            ("payments", 0),
        ]
        self.logs: Final = {partition: LogBuilder(codec="zstd") for partition in partitions}
        self._writers = {partition: _writer(folder, *partition) for partition in partitions}

    def tier_months(self, count: int) -> None:
        """Continues both topics by some months and writes the closed segments to the tier."""
        for month in range(self._months, self._months + count):
            records: dict[tuple[str, int], list[SimpleRecord]] = {}
            for partition, record in self._records(month):
                records.setdefault(partition, []).append(record)
            for partition, log in self.logs.items():
                month_records = records.get(partition, [])
                for first in range(0, len(month_records), _BATCH):
                    log.append(month_records[first : first + _BATCH])
                segment = log.roll()
                is_lost = partition[0] == "payments" and month == self._lost_month
                if segment is not None and not is_lost:
                    self._writers[partition].write_segment(segment)
        self._months += count

    def _records(self, month: int) -> Iterator[tuple[tuple[str, int], SimpleRecord]]:
        """Yields the records of a month, ordered by time, each with its topic and partition."""
        choose = self._random
        start = datetime.datetime(2021 + month // 12, 1 + month % 12, 1, tzinfo=datetime.UTC)
        mean = self._orders_per_month * 1.35 ** (month // 12) * _SEASON[month % 12]
        for second in sorted(choose.uniform(0, 28 * 86_400) for _ in range(round(mean))):
            time = start + datetime.timedelta(seconds=second)
            number = int(_CUSTOMERS * choose.random() ** 3)
            customer = f"c{number:03}"
            ids = {"order": next(self._order_ids), "customer": customer}
            amount = round(choose.lognormvariate(3.6, 0.7), 2)
            order = {**ids, "country": self._countries[number], "amount": amount}
            partition = zlib.crc32(customer.encode()) % _ORDERS_PARTITIONS
            yield ("orders", partition), _record(customer, order, time)
            payment = {**ids, "method": choose.choice(_METHODS), "amount": amount}
            yield ("payments", 0), _record(customer, payment, time)


def _record(key: str, value: dict[str, object], time: datetime.datetime) -> SimpleRecord:
    timestamp = int(time.timestamp() * 1000)
    return SimpleRecord(json.dumps(value).encode(), key.encode(), timestamp=timestamp)


def _writer(folder: str, topic: str, partition: int) -> AivenTierWriter:
    return AivenTierWriter(
        folder,
        topic=topic,
        partition=partition,
        topic_id=uuid.uuid5(uuid.NAMESPACE_URL, topic),
        key_prefix=_KEY_PREFIX,
        compression=True,
        random_bytes=random.Random(f"{topic}-{partition}").randbytes,
    )
