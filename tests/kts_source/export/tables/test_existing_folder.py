"""Tests exports into folders that already contain files. An export is refused if its partition
columns differ from those of the existing files.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kts_source.errors import AccessDeniedError, UnsupportedTargetError
from kts_source.export.tables.target_store import LocalTarget
from tests.kts_source.export.exporting import Lake, assert_holds, source
from tests.kts_source.export.tables.rows import by_country, tier_of

if TYPE_CHECKING:
    from pathlib import Path

BY_COUNTRY = ["country"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path, "parquet")


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        ([], BY_COUNTRY, "export 'kts' .* by no column, but the export has partition_by country"),
        (BY_COUNTRY, [], "export 'kts' .* by country, but the export has partition_by no column"),
    ],
)
def test_export_with_other_partition_columns_than_the_folder_is_refused(
    lake: Lake, first: list[str], second: list[str], match: str
) -> None:
    tier_options = tier_of(lake.folder / "tier", ["CH", "DE"])
    lake.export(tier_options, transform=by_country, partition_by=first)
    with pytest.raises(UnsupportedTargetError, match=match):
        lake.export(tier_options, transform=by_country, partition_by=second, export_id="more")
    assert sorted(lake.read()["country"].to_pylist()) == ["CH", "DE"]
    more: dict[str, Any] = {"export_id": "more", "second_copy": True}
    lake.export(tier_options, transform=by_country, partition_by=first, **more)
    assert sorted(lake.read()["country"].to_pylist()) == ["CH", "CH", "DE", "DE"]


@pytest.mark.parametrize(
    ("path", "partition_by", "is_right"),
    [
        ("country=FR/a.parquet", BY_COUNTRY, True),
        ("country=FR/a.parquet", [], False),
        ("a.parquet", BY_COUNTRY, False),
        ("land=FR/country=FR/a.parquet", BY_COUNTRY, False),
        ("_old/a.parquet", BY_COUNTRY, True),
        ("a.parquet", [], True),
    ],
)
def test_export_is_refused_if_existing_files_have_other_partition_folders(
    lake: Lake, path: str, partition_by: list[str], is_right: bool
) -> None:
    file = lake.folder / "table" / path
    file.parent.mkdir(parents=True)
    columns = {"offset": pa.array([9], pa.int64()), "country": ["FR"]}
    pq.write_table(pa.table(columns if "=" not in path else {"offset": columns["offset"]}), file)
    tier_options = tier_of(lake.folder / "tier", ["CH", "DE"])
    if not is_right:
        with pytest.raises(
            UnsupportedTargetError, match=f"the file {path} .* readers cannot read both"
        ):
            lake.export(tier_options, transform=by_country, partition_by=partition_by)
        assert len(list((lake.folder / "table").rglob("*.parquet"))) == 1
        return
    lake.export(tier_options, transform=by_country, partition_by=partition_by)
    countries = set(lake.read()["country"].to_pylist())
    assert countries == {"CH", "DE"} | (set() if path.startswith("_") else {"FR"})
    # The next run accepts its own files.
    assert lake.export(tier_options, transform=by_country, partition_by=partition_by).rows == 0


def test_export_fails_without_access_to_the_commit_log(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier_options = tier_of(lake.folder / "tier", ["CH", "DE"])
    lake.export(tier_options, transform=by_country)
    real = os.scandir

    (commits,) = lake.folder.rglob("_kts/commits")

    def denied(folder: int) -> Any:  # noqa: ANN401
        if os.path.samestat(os.stat(folder), commits.stat()):
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(AccessDeniedError, match="_kts/commits"):
        lake.export(tier_options, transform=by_country)
    monkeypatch.undo()
    assert sorted(lake.read()["country"].to_pylist()) == ["CH", "DE"]


def test_commit_into_folder_is_retried_after_many_commits_of_other_exports(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, other_commits = LocalTarget.create, iter(range(30))

    def beaten(target: LocalTarget, key: str, data: bytes) -> bool:
        if key.endswith(".json") and (other := next(other_commits, None)) is not None:
            document = json.loads(data)
            document["exports"] = {f"other-{other}": {}}
            document["files"] = []
            assert create(target, key, json.dumps(document).encode())
        return create(target, key, data)

    monkeypatch.setattr(LocalTarget, "create", beaten)
    lake.export(source())
    assert next(other_commits, None) is None
    assert_holds(lake.read(), ["txn"])
