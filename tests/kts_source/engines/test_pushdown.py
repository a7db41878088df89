"""Checks that engines request only the necessary bytes. A proxy in front of an S3 server counts
requests and bytes.
"""

from __future__ import annotations

import shutil
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pytest

import kts_source
from tests.faulty_proxy import faulty_proxy
from tests.golden_data import KEY_PREFIX, TIER, expected_table, tier_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.faulty_proxy import Answer
    from tests.s3 import S3Server

pytestmark = pytest.mark.s3

LATE = '"partition" = 1 and "offset" >= 3000'
NEVER = "timestamp > timestamptz '2100-01-01'"
ODD = "octet_length(value) % 3 = 1"


class Wire:
    """Counts the requests that pass the proxy, and the bytes of their responses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = self.bytes = 0

    def choose(self, _method: str, _path: str) -> Callable[[Answer], None]:
        def counted(answer: Answer) -> None:
            with self._lock:
                self.requests += 1
                self.bytes += len(answer.body)

        return counted

    def cost(self, action: Callable[[], object]) -> tuple[int, int]:
        """Runs `action`. Returns the number of its requests and the number of bytes of the
        responses.
        """
        before = self.requests, self.bytes
        action()
        return self.requests - before[0], self.bytes - before[1]


@pytest.fixture(scope="module")
def wire() -> Wire:
    return Wire()


@pytest.fixture(scope="module")
def options(
    s3_server: S3Server, wire: Wire, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Yields scan options that read topic `txn` through the proxy. Small partitions cause many
    tasks.
    """
    root = tmp_path_factory.mktemp("txn")
    (folder,) = (TIER / KEY_PREFIX).glob("txn-*")
    shutil.copytree(folder, root / KEY_PREFIX / folder.name)
    bucket = s3_server.upload(root)
    with faulty_proxy(s3_server.endpoint) as proxy:
        proxy.choose = wire.choose
        options = {**s3_server.options, "path": f"s3://{bucket}", "s3.endpoint": proxy.endpoint}
        options |= {"targetPartitionBytes": "32k", "cache": "false"}
        yield tier_options("txn", **options)


@pytest.fixture(scope="module")
def tier(options: dict[str, str], wire: Wire) -> kts_source.Scan:
    """Returns a scan that is already planned, so that tests measure only the reads."""
    scan = kts_source.scan(options)
    assert wire.cost(lambda: scan.plan) > (0, 0)
    return scan


@pytest.fixture(scope="module")
def full_cost(tier: kts_source.Scan, wire: Wire) -> tuple[int, int]:
    """Reads all rows. Returns the number of requests and the number of bytes of the responses.

    Each task reads its bytes once, plus at most 10% at chunk boundaries. With `read_committed`, a
    task that ends inside a segment also reads up to the markers of its open transactions.
    """
    cost = wire.cost(lambda: tier.to_table(threads=1))
    assert cost[0] >= len(tier.tasks) > 9
    assert tier.plan.nominal_bytes < cost[1] < 1.1 * tier.plan.nominal_bytes
    return cost


def test_read_uncommitted_scan_requests_each_byte_only_once(
    options: dict[str, str], wire: Wire
) -> None:
    scan = kts_source.scan({**options, "isolationLevel": "read_uncommitted"})
    size = scan.plan.nominal_bytes
    requests, read = wire.cost(lambda: scan.to_table(threads=1))
    assert requests >= len(scan.tasks) > 9
    assert read == pytest.approx(size, rel=0.05)


def is_partial(cost: tuple[int, int], full_cost: tuple[int, int]) -> bool:
    """Returns true if both numbers of `cost` are above zero and below a third of the numbers in
    `full_cost`.
    """
    return 0 < cost[0] < full_cost[0] / 3 and 0 < cost[1] < full_cost[1] / 3


def test_scan_reads_only_matching_bytes(
    tier: kts_source.Scan, wire: Wire, full_cost: tuple[int, int]
) -> None:
    late = tier.where("partition = 1 AND offset >= 3000")
    assert is_partial(wire.cost(lambda: late.to_table(threads=2)), full_cost)
    assert wire.cost(tier.where("topic = 'other'").to_table) == (0, 0)
    assert wire.cost(tier.limit(0).to_table) == (0, 0)
    assert is_partial(wire.cost(tier.limit(5).to_table), full_cost)
    assert wire.cost(lambda: tier.to_reader(threads=1).close()) == (0, 0)

    def first_batch() -> None:
        with tier.to_reader(threads=1) as reader:
            reader.read_next_batch()

    assert is_partial(wire.cost(first_batch), full_cost)
    # A record stores all its columns together, so a scan of one column still reads all bytes.
    assert wire.cost(lambda: tier.select(["offset"]).to_table(threads=1)) == full_cost


def test_polars_reads_only_matching_bytes(
    tier: kts_source.Scan, wire: Wire, full_cost: tuple[int, int]
) -> None:
    lazy = tier.to_lazy()
    late = (pl.col("partition") == 1) & (pl.col("offset") >= 3000)
    assert is_partial(wire.cost(lambda: lazy.filter(late).collect()), full_cost)
    assert wire.cost(lambda: lazy.filter(pl.col("partition") == 9).collect()) == (0, 0)
    assert is_partial(wire.cost(lambda: lazy.head(5).collect()), full_cost)
    odd = lazy.filter(pl.col("value").bin.size() % 3 == 1).select(pl.len())
    assert wire.cost(odd.collect) == full_cost
    lengths = [len(value or b"") for value in _values()]
    assert odd.collect().item() == sum(length % 3 == 1 for length in lengths)


def test_duckdb_reads_only_matching_bytes(
    tier: kts_source.Scan, wire: Wire, full_cost: tuple[int, int]
) -> None:
    with closing(duckdb.connect()) as connection:
        connection.register("tier", tier.to_dataset())

        def rows(condition: str) -> int:
            query = f"select count(value) from tier where {condition}"
            ((count,),) = connection.sql(query).fetchall()
            return int(count)

        assert is_partial(wire.cost(lambda: rows(LATE)), full_cost)
        assert wire.cost(lambda: rows(NEVER)) == (0, 0)
        assert wire.cost(lambda: rows(ODD)) == full_cost
        lengths = [len(value) for value in _values() if value is not None]
        assert rows(ODD) == sum(length % 3 == 1 for length in lengths)


def _values() -> list[bytes | None]:
    values: list[bytes | None] = expected_table("txn", "read_committed")["value"].to_pylist()
    return values
