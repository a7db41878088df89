"""Tests that a follow export waits and retries if a store or catalog is unavailable."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from unittest import mock

import deltalake
import pyarrow.fs as pafs
import pytest
import requests
import sqlalchemy
from azure.core.exceptions import ServiceRequestError
from azure.storage.blob import BlobServiceClient

from kts_source.export.tables.library_errors import is_outage
from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.small_tier import SmallTier, table_offsets
from tests.kts_source.export.test_follow import Driven, Failing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOBODY = "http://127.0.0.1:9"


class Busy(BaseHTTPRequestHandler):
    """An HTTP handler that answers every request with status 503."""

    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815  # names that http.server looks for

    def log_message(self, *_: object) -> None:
        """Suppresses the log lines."""


@pytest.fixture(params=["nobody", "busy"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yields the URL of an unavailable store: no server listens at this URL, or the server responds
    with status 503.
    """
    if request.param == "nobody":
        yield NOBODY
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_unavailable_store_of_delta_table_counts_as_outage(endpoint: str) -> None:
    options = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "max_retries": "0",
    }
    with pytest.raises(OSError, match="S3") as caught:
        deltalake.DeltaTable("s3://b/t", storage_options=options)
    assert is_outage(caught.value)


def test_unavailable_store_of_parquet_folder_counts_as_outage() -> None:
    store = pafs.S3FileSystem(
        endpoint_override=NOBODY,
        access_key="key",
        secret_key="secret",
        region="us-east-1",
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1),
    )
    with pytest.raises(OSError, match="AWS Error") as caught:
        store.get_file_info("b/t")
    assert is_outage(caught.value)


def test_unavailable_catalog_counts_as_outage() -> None:
    with pytest.raises(requests.ConnectionError) as caught:
        requests.get(NOBODY, timeout=5)
    assert is_outage(caught.value)


def test_locked_sqlite_catalog_counts_as_outage(tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    with closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN EXCLUSIVE")
        engine = sqlalchemy.create_engine(f"sqlite:///{file}", connect_args={"timeout": 0})
        with pytest.raises(sqlalchemy.exc.OperationalError) as caught, engine.connect() as mine:
            mine.execute(sqlalchemy.text("CREATE TABLE t (id INTEGER)"))
        engine.dispose()
    assert is_outage(caught.value)


def test_unavailable_azure_store_counts_as_outage() -> None:
    client = BlobServiceClient(NOBODY, retry_total=0)
    with pytest.raises(ServiceRequestError) as caught:
        client.get_container_client("b").get_container_properties()
    assert is_outage(caught.value)


def test_missing_table_and_denied_access_do_not_count_as_outage(tmp_path: Path) -> None:
    with pytest.raises(deltalake.exceptions.TableNotFoundError) as caught:
        deltalake.DeltaTable(str(tmp_path))
    assert not is_outage(caught.value)
    assert not is_outage(PermissionError("403 Forbidden"))
    assert not is_outage(FileNotFoundError("500 files"))


def test_round_with_write_error_is_retried(tmp_path: Path) -> None:
    tier, lake = SmallTier(tmp_path / "tier").grow(2), Lake(tmp_path, "parquet")
    driven = Driven([lambda: None])
    driven.run(lake, tier.options(), Failing([None, ConnectionResetError("reset by peer")]))
    assert driven.outcomes == ["done", "ConnectionResetError", "done"]
    assert table_offsets(lake) == list(range(20))


@pytest.mark.parametrize("name", ["DeltaTable", "DeltaTable.create_write_transaction"])
def test_follow_waits_for_unavailable_table(tmp_path: Path, name: str) -> None:
    tier, lake = SmallTier(tmp_path / "tier").grow(2), Lake(tmp_path, "delta")
    down = mock.patch(
        f"deltalake.{name}", side_effect=OSError("Generic S3 error: error sending request")
    )
    lake.export(tier.options())
    tier.grow(1)
    driven = Driven([down.stop])
    down.start()
    driven.run(lake, tier.options(), round_bytes=1 << 30)
    assert driven.outcomes == ["StoreUnavailableError", "done"]
    assert table_offsets(lake) == list(range(30))
