"""Tests the sample shop of the notebooks: readers return the records that the shop wrote, and two
shops with the same calls write the same objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import DataLossError
from segment_format.testing.sample_shop import SampleShop

if TYPE_CHECKING:
    from pathlib import Path


def _read(shop: SampleShop, topic: str, **options: str) -> set[tuple[int, int, bytes, bytes]]:
    scan = kts_source.scan({**shop.options, "subscribe": topic, **options})
    rows = scan.select(["partition", "offset", "key", "value"]).to_table().to_pylist()
    assert len(rows) == scan.count()
    return {tuple(row.values()) for row in rows}


def _written(shop: SampleShop, topic: str) -> set[tuple[int, int, bytes | None, bytes | None]]:
    return {
        (partition, row.offset, row.key, row.value)
        for (name, partition), log in shop.logs.items()
        if name == topic
        for row in log.build().all_rows
    }


def test_scan_returns_the_records_of_the_shop(tmp_path: Path) -> None:
    shop = SampleShop(str(tmp_path), orders_per_month=20)
    shop.tier_months(2)
    first = _read(shop, "orders")
    shop.tier_months(1)
    for topic in ("orders", "payments"):
        assert _read(shop, topic) == _written(shop, topic)
    assert first < _read(shop, "orders")


def test_lost_month_is_a_hole_in_payments(tmp_path: Path) -> None:
    shop = SampleShop(str(tmp_path), orders_per_month=20, lost_month=1)
    shop.tier_months(3)
    (hole,) = kts_source.audit({**shop.options, "subscribe": "orders,payments"}).errors
    assert (hole.name, hole.topic) == ("hole", "payments")
    rest = _read(shop, "payments", failOnDataLoss="false")
    missing = _written(shop, "payments") - rest
    offsets = {offset for _, offset, _, _ in missing}
    assert (min(offsets), max(offsets) + 1, len(offsets)) == (hole.start, hole.stop, len(missing))
    with pytest.raises(DataLossError):
        _read(shop, "payments")


def test_two_shops_with_equal_calls_write_equal_objects(tmp_path: Path) -> None:
    folders = tmp_path / "one", tmp_path / "other"
    for folder in folders:
        SampleShop(str(folder), orders_per_month=20).tier_months(2)
    one, other = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}
        for folder in folders
    )
    assert one == other
    assert len(one) == 3 * 2 * 4
