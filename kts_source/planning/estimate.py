"""What a plan will ask of the store, known before it runs: requests, bytes, and what they cost.

The figures follow from the plan alone: whole chunks between the cuts, grouped into requests as the
reader groups them, and one index read for a slice whose cuts have to be looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.planning.request_count import counted_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kts_source.read.task import ScanTask

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Price:
    """What reading costs in one storage class, in US dollars.

    Attributes:
        per_million_requests: GET requests.
        retrieval_per_gib: Fee of the storage class for bytes read.
        egress_per_gib: Fee for bytes that leave the region; 0 within it.
    """

    per_million_requests: float
    retrieval_per_gib: float = 0.0
    egress_per_gib: float = 0.0


S3_PRICES: Final[Mapping[str, Price]] = {
    "STANDARD": Price(0.40),
    "INTELLIGENT_TIERING": Price(0.40),
    "STANDARD_IA": Price(1.00, 0.01),
    "ONEZONE_IA": Price(1.00, 0.01),
    "GLACIER_IR": Price(10.00, 0.03),
}
"""List prices of one large region, read within it. Give a table of your own where they differ."""

S3_STORAGE: Final[Mapping[str, float]] = {
    "STANDARD": 0.023,
    "INTELLIGENT_TIERING": 0.023,
    "STANDARD_IA": 0.0125,
    "ONEZONE_IA": 0.01,
    "GLACIER_IR": 0.004,
    "GLACIER": 0.0036,
    "DEEP_ARCHIVE": 0.00099,
}
"""US dollars for a GiB and month, list prices of the same region. A class that is not in it costs
as `STANDARD`."""

DEFAULT_CLASS: Final = "STANDARD"

ARCHIVE_CLASSES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE", "Archive"})
"""Storage classes whose objects cannot be read before they are restored."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the tasks of a plan will ask of the store.

    Attributes:
        requests: Ranged reads.
        bytes: Stored bytes.
        by_class: Storage class to its share of both.
    """

    requests: int
    bytes: int
    by_class: Mapping[str, tuple[int, int]]

    def cost(self, prices: Mapping[str, Price] = S3_PRICES) -> float:
        """US dollars for the requests, the retrieval and the egress.

        Args:
            prices: Storage class to price; a class that is not in it costs as `STANDARD`.
        """
        total = 0.0
        for name, (requests, size) in self.by_class.items():
            price = prices.get(name) or prices[DEFAULT_CLASS]
            total += requests * price.per_million_requests / 1_000_000
            total += size / GIB * (price.retrieval_per_gib + price.egress_per_gib)
        return total


def monthly_cost(bytes_by_class: Mapping[str, int]) -> float:
    """US dollars for storing so many bytes of each storage class for a month, at list prices."""
    return sum(
        size / GIB * S3_STORAGE.get(name, S3_STORAGE[DEFAULT_CLASS])
        for name, size in bytes_by_class.items()
    )


def estimate(tasks: Iterable[ScanTask]) -> Estimate:
    """What these tasks will ask of the store."""
    by_class: dict[str, tuple[int, int]] = {}
    slices = ((part, n == 0) for task in tasks for n, part in enumerate(task.slices))
    for part, requests, size in counted_requests(slices):
        name = part.objects.log.storage_class or DEFAULT_CLASS
        before = by_class.get(name, (0, 0))
        lookups = 0 if part.is_whole else 1
        size += 0 if part.is_whole else part.offset_index.size
        by_class[name] = (before[0] + requests + lookups, before[1] + size)
    requests = sum(requests for requests, _ in by_class.values())
    return Estimate(requests, sum(size for _, size in by_class.values()), by_class)
