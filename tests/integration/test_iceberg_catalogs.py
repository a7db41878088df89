"""Exports into Iceberg tables of a REST catalog and of AWS Glue, by name."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from kts_source.errors import CommitConflictError, ExportError, StoreUnavailableError
from kts_source.export.run import clean
from kts_source.export.tables.iceberg import IcebergExportTable
from tests.integration.iceberg_catalogs import CatalogLake, Front, front_of, rest_catalog
from tests.kts_source.export.exporting import assert_at_most_once, assert_holds, source
from tests.kts_source.export.fates import Dying
from tests.kts_source.export.killing import Killed
from tests.kts_source.export.tables.test_protocol import Racing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.s3 import S3Server

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

TOKEN = "opaque-token-0123456789"
COMMITS = {"rest": "POST /v1/namespaces/lake/tables/", "glue": "AWSGlue.UpdateTable"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def rest_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_catalog(tmp_path_factory.mktemp("rest")) as url:
        yield url


def rest_lake(front: Front, folder: Path, **properties: str) -> CatalogLake:
    catalog = {"type": "rest", "uri": front.url, **properties}
    return CatalogLake(folder, "iceberg", catalog, f"lake.rows{next(_numbers)}")


def glue_lake(front: Front, folder: Path, server: S3Server) -> CatalogLake:
    catalog = {
        "type": "glue",
        "glue.endpoint": front.url,
        "glue.region": server.region,
        "glue.access-key-id": server.access_key,
        "glue.secret-access-key": server.secret_key,
        "warehouse": f"s3://{server.make_bucket()}/warehouse",
        **server.options,
    }
    return CatalogLake(folder, "iceberg", catalog, f"lake.rows{next(_numbers)}")


@pytest.fixture(params=["rest", "glue"])
def front(request: pytest.FixtureRequest) -> Iterator[Front]:
    if request.param == "rest":
        upstream = request.getfixturevalue("rest_url")
    else:
        upstream = request.getfixturevalue("s3_server").endpoint
    with front_of(upstream) as started:
        yield started


@pytest.fixture
def lake(request: pytest.FixtureRequest, front: Front, tmp_path: Path) -> CatalogLake:
    if request.node.callspec.params["front"] == "rest":
        return rest_lake(front, tmp_path)
    return glue_lake(front, tmp_path, request.getfixturevalue("s3_server"))


def few_tasks(topics: str | tuple[str, ...] = "txn") -> dict[str, str]:
    return source(topics, targetPartitionBytes="250k")


def test_table_by_name_contains_all_rows(lake: CatalogLake) -> None:
    topics = ("txn", "timeline")
    report = lake.export(few_tasks(topics), partition_by=["topic", "date(timestamp)"])
    assert report.created
    assert report.commits > 1
    assert_holds(lake.read(), topics)
    assert lake.export(few_tasks(topics), partition_by=["topic", "date(timestamp)"]).rows == 0
    assert clean(lake.settings(), older_than_hours=-1) == ()


@pytest.mark.parametrize(
    ("number", "after"), [(0, True), (1, False)], ids=["after first", "before second"]
)
def test_killed_run_writes_each_row_once_after_resume(
    lake: CatalogLake, number: int, after: bool
) -> None:
    table: Any = Dying(lake.table(), number, after=after)
    with pytest.raises(Killed):
        lake.export(few_tasks(), table=table)
    assert_at_most_once(lake)
    lake.export(few_tasks())
    assert_holds(lake.read(), ["txn"])


def test_second_writer_of_same_offsets_gets_commit_conflict(
    lake: CatalogLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.export(source(endingOffsets='{"txn": {"0": 500, "1": 500}}'))
    Racing(monkeypatch, IcebergExportTable, "_commit_once", lambda: lake.export(few_tasks()))
    with pytest.raises(CommitConflictError):
        lake.export(few_tasks())
    assert_holds(lake.read(), ["txn"])


def test_concurrent_commits_of_different_topics_both_succeed(
    lake: CatalogLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.export(source(endingOffsets='{"txn": {"0": 500, "1": 500}}'))
    other = few_tasks("timeline")
    Racing(monkeypatch, IcebergExportTable, "_commit_once", lambda: lake.export(other))
    lake.export(few_tasks())
    assert_holds(lake.read(), ["txn", "timeline"])


def test_commit_with_lost_response_is_found(
    request: pytest.FixtureRequest, lake: CatalogLake, front: Front
) -> None:
    lake.export(source(endingOffsets='{"txn": {"0": 500, "1": 500}}'))
    front.losing = COMMITS[request.node.callspec.params["front"]]
    lake.export(few_tasks())
    assert front.lost == 1
    assert_holds(lake.read(), ["txn"])


def test_unavailable_catalog_raises_retriable_error(
    lake: CatalogLake, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By default, PyIceberg retries for more than a minute.
    monkeypatch.setattr("pyiceberg.catalog.glue.MAX_RETRIES", 1)
    front.server_close()
    with pytest.raises(StoreUnavailableError) as caught:
        lake.export(few_tasks())
    assert caught.value.retriable


# -- only REST catalogs


@pytest.fixture
def rest_front(rest_url: str) -> Iterator[Front]:
    with front_of(rest_url) as started:
        started.token = TOKEN
        yield started


def test_table_is_created_where_the_rest_catalog_chooses(
    rest_front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lake = rest_lake(rest_front, tmp_path, token=TOKEN, warehouse="main")
    lake.export(few_tasks())
    table = load_catalog("lake", **lake.catalog).load_table(lake.target)
    assert table.location().endswith(f"/warehouse/{lake.target.replace('.', '/')}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("status", [401, 403, 419])
def test_refused_token_raises_error_without_the_token(
    rest_front: Front, tmp_path: Path, status: int
) -> None:
    rest_front.refusal = status
    lake = rest_lake(rest_front, tmp_path, token="expired-token-0123456789")
    with pytest.raises(ExportError, match="Check token or credential in catalog=…") as caught:
        lake.export(few_tasks())
    assert "***" in str(caught.value)
    assert "expired-token" not in str(caught.value)


def test_refused_credential_raises_error_without_the_secret(
    rest_front: Front, tmp_path: Path
) -> None:
    login = {
        "credential": "shop:client-secret-0123456789",
        "oauth2-server-uri": f"{rest_front.url}/v1/oauth/tokens",
    }
    lake = rest_lake(rest_front, tmp_path, **login)
    with pytest.raises(ExportError, match="Check token or credential in catalog=…") as caught:
        lake.export(few_tasks())
    assert "client_secret=***" in str(caught.value)
    assert "0123456789" not in str(caught.value)


def test_token_that_expires_during_run_raises_and_next_run_continues(
    rest_front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = rest_lake(rest_front, tmp_path, token=TOKEN)
    lake.export(source(endingOffsets='{"txn": {"0": 500, "1": 500}}'))

    def expire() -> None:
        rest_front.token, rest_front.refusal = "newer-token", 419

    Racing(monkeypatch, IcebergExportTable, "_commit_once", expire)
    with pytest.raises(ExportError, match="Check token or credential in catalog=…") as caught:
        lake.export(few_tasks())
    assert TOKEN not in str(caught.value)
    rest_front.token = TOKEN
    lake.export(few_tasks())
    assert_holds(lake.read(), ["txn"])


def test_clean_of_missing_table_creates_no_namespace(rest_front: Front, tmp_path: Path) -> None:
    lake = rest_lake(rest_front, tmp_path, token=TOKEN)
    missing = CatalogLake(tmp_path, "iceberg", lake.catalog, "typo.rows")
    assert clean(missing.settings()) == ()
    assert ("typo",) not in load_catalog("lake", **lake.catalog).list_namespaces()
