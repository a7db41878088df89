"""Tests export targets on an S3 server. Servers that ignore If-None-Match are refused."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.server
import os
import threading
import uuid
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest
from botocore.exceptions import ClientError
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kts_source.errors import (
    AccessDeniedError,
    ExportError,
    ObjectNotFoundError,
    StoreError,
    StoreUnavailableError,
    UnsupportedTargetError,
)
from kts_source.export.run import export
from kts_source.export.settings import export_settings
from kts_source.export.tables.iceberg_library import CHECKSUMS_WHEN_REQUIRED
from kts_source.export.tables.target_store import S3Target, open_target, require_create
from kts_source.export.task_writer import LocalExecutor
from kts_source.store.storage_options import CHECKSUM_VARIABLES, s3_arguments, storage_options_from
from tests.kts_source.export.exporting import assert_holds, source
from tests.kts_source.export.killing import Killed, Steps, killable_folder
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kts_source.export.settings import ExportSettings
    from tests.s3 import S3Server

pytestmark = pytest.mark.s3


@pytest.fixture
def url(s3_server: S3Server) -> str:
    return f"s3://{s3_server.make_bucket()}/lake/orders"


def few_tasks(topics: str | tuple[str, ...] = "txn") -> dict[str, str]:
    """Returns options that read golden topics in few tasks. Every task opens S3 clients, which is
    slow.
    """
    return source(topics, targetPartitionBytes="250k")


def settings_of(url: str, server: S3Server, **arguments: Any) -> ExportSettings:  # noqa: ANN401
    return export_settings(url, target_options=server.options, commit_bytes=250_000, **arguments)


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("ExpiredToken", AccessDeniedError, "ExpiredToken.*Set new values"),
        ("SlowDown", StoreUnavailableError, "SlowDown.*end of the outage"),
    ],
)
def test_failed_upload_raises_error_with_the_object(
    url: str, s3_server: S3Server, code: str, kind: type[StoreError], text: str
) -> None:
    failure = PermissionError("s3fs selects the class by the code")
    failure.__cause__ = ClientError({"Error": {"Code": code, "Message": "text"}}, "PutObject")
    target = open_target(url, storage_options_from(s3_server.options))
    assert isinstance(target, S3Target)

    file = mock.Mock(write=len, close=mock.Mock(side_effect=failure))
    with (
        mock.patch.object(target._client.filesystem, "open", return_value=file),
        pytest.raises(kind, match=text) as caught,
        target.open_output("a.parquet") as output,
    ):
        output.write(b"x")
    assert caught.value.uri == f"{url}/a.parquet"


def read_folder(url: str, server: S3Server) -> pa.Table:
    filesystem = pafs.S3FileSystem(
        access_key=server.access_key,
        secret_key=server.secret_key,
        endpoint_override=server.endpoint,
        region=server.region,
    )
    path = url.removeprefix("s3://")
    return ds.dataset(path, filesystem=filesystem, format="parquet", partitioning="hive").to_table()


@pytest.mark.parametrize("profile", ["default", "other"])
def test_delta_table_is_written_with_the_keys_of_a_profile(
    url: str,
    s3_server: S3Server,
    profile: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {
        "s3.access-key-id": "aws_access_key_id",
        "s3.secret-access-key": "aws_secret_access_key",
    }
    lines = [f"{name} = {s3_server.options[option]}" for option, name in keys.items()]
    (tmp_path / "credentials").write_text("\n".join([f"[{profile}]", *lines, ""]))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = {name: text for name, text in s3_server.options.items() if name not in keys}
    if profile != "default":
        options["s3.profile-name"] = profile
    settings = export_settings(url, target_options=options, table_format="delta")
    assert export(few_tasks(), settings, LocalExecutor(1)).rows > 0
    assert export(few_tasks(), settings, LocalExecutor(1)).rows == 0


@pytest.mark.slow
def test_partitioned_folder_on_s3_contains_all_rows(url: str, s3_server: S3Server) -> None:
    settings = settings_of(url, s3_server, partition_by=["topic", "date(timestamp)"])
    report = export(few_tasks(("txn", "timeline")), settings, LocalExecutor(1))
    assert report.commits > 1
    assert_holds(read_folder(url, s3_server), ["txn", "timeline"])
    assert export(few_tasks(("txn", "timeline")), settings, LocalExecutor(1)).rows == 0


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", only(1, ["publish", "create json", "create published"]))
def test_killed_folder_export_writes_each_row_once_after_resume(
    url: str, s3_server: S3Server, step: str, after: bool
) -> None:
    settings = settings_of(url, s3_server)
    counting = Steps(None)
    other = settings_of(f"{url}-count", s3_server)
    table = killable_folder(other, open_target(other.target, other.storage), counting)
    export(few_tasks(), other, LocalExecutor(1), table=table)
    steps = Steps(counting.names.index(step), after=after)
    table = killable_folder(settings, open_target(settings.target, settings.storage), steps)
    with pytest.raises(Killed):
        export(few_tasks(), settings, LocalExecutor(1), table=table)
    found = read_folder(url, s3_server)
    if found.num_rows:
        rows = list(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))
        assert len(rows) == len(set(rows))
    export(few_tasks(), settings, LocalExecutor(1))
    assert_holds(read_folder(url, s3_server), ["txn"])


def test_delta_table_on_s3_contains_all_rows(url: str, s3_server: S3Server) -> None:
    settings = settings_of(url, s3_server, table_format="delta", partition_by=["topic"])
    export(few_tasks(("txn", "timeline")), settings, LocalExecutor(1))
    options = open_target(url, settings.storage).delta_options()
    assert_holds(DeltaTable(url, storage_options=options).to_pyarrow_table(), ["txn", "timeline"])
    assert export(few_tasks(("txn", "timeline")), settings, LocalExecutor(1)).rows == 0


def test_iceberg_table_on_s3_contains_all_rows(
    url: str, s3_server: S3Server, tmp_path: Path
) -> None:
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": url,
        **s3_server.options,
    }
    settings = export_settings(
        "lake.rows",
        table_format="iceberg",
        catalog={**catalog, "name": "lake"},
        commit_bytes=250_000,
    )
    export(few_tasks("txn"), settings, LocalExecutor(1))
    opened = load_catalog("lake", **catalog)
    assert_holds(opened.load_table("lake.rows").scan().to_arrow(), ["txn"])
    opened.close()
    assert export(few_tasks("txn"), settings, LocalExecutor(1)).rows == 0


def test_iceberg_warehouse_in_a_missing_bucket_raises_store_error(
    s3_server: S3Server, tmp_path: Path
) -> None:
    warehouse = {"type": "sql", "warehouse": "s3://no-such-bucket-here/lake", **s3_server.options}
    settings = export_settings(
        "lake.rows",
        table_format="iceberg",
        catalog={**warehouse, "uri": f"sqlite:///{tmp_path}/catalog.db"},
    )
    with pytest.raises(StoreError, match="no-such-bucket-here"):
        export(few_tasks("txn"), settings, LocalExecutor(1))


class _ForwardWithoutChecksums(http.server.BaseHTTPRequestHandler):
    """Forwards requests to the real server, but answers requests that have checksum headers with
    status 501.
    """

    protocol_version = "HTTP/1.1"
    server: _StrictServer

    def log_message(self, *_: object) -> None:
        """Suppresses the log lines."""

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        names = {name.lower() for name in self.headers}
        refused = {n for n in names if n.startswith("x-amz-checksum") or n == "x-amz-trailer"}
        if refused or "aws-chunked" in self.headers.get("Content-Encoding", ""):
            self.server.refused.append(f"{self.command} {self.path}: {sorted(refused)}")
            self._answer(501, {}, b"<Error><Code>NotImplemented</Code></Error>")
            return
        host = self.server.real.removeprefix("http://")
        with contextlib.closing(http.client.HTTPConnection(host, timeout=30)) as connection:
            connection.request(self.command, self.path, body or None, dict(self.headers.items()))
            response = connection.getresponse()
            data = response.read()
            dropped = {"connection", "transfer-encoding", "content-length", "server", "date"}
            headers = {n: v for n, v in response.getheaders() if n.lower() not in dropped}
            length = response.getheader("Content-Length") if self.command == "HEAD" else None
            self._answer(response.status, headers, data, length)

    def _answer(
        self, status: int, headers: dict[str, str], data: bytes, length: str | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward  # noqa: N815  # http.server's names


class _StrictServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, real: str) -> None:
        super().__init__(("127.0.0.1", 0), _ForwardWithoutChecksums)
        self.real = real
        self.refused: list[str] = []


@pytest.fixture
def strict_server(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[S3Server, list[str]]]:
    """Yields an S3 server that refuses requests with checksum headers, and a list of the refused
    requests.
    """
    for name in CHECKSUM_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with _StrictServer(s3_server.endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield dataclasses.replace(s3_server, endpoint=url, _clients=[]), server.refused
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_export_sends_no_checksum_headers(
    url: str, strict_server: tuple[S3Server, list[str]], table_format: str
) -> None:
    server, refused = strict_server
    settings = settings_of(url, server, table_format=table_format)
    assert export(few_tasks(), settings, LocalExecutor(1)).rows > 0
    assert export(few_tasks(), settings, LocalExecutor(1)).rows == 0
    assert refused == []


@pytest.mark.parametrize("file_io", ["pyarrow.PyArrowFileIO", "fsspec.FsspecFileIO"])
def test_iceberg_export_sends_no_checksum_headers(
    url: str, strict_server: tuple[S3Server, list[str]], file_io: str, tmp_path: Path
) -> None:
    server, refused = strict_server
    catalog = {
        "name": "lake",
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": url,
        "py-io-impl": f"pyiceberg.io.{file_io}",
        **server.options,
    }
    settings = export_settings("lake.rows", table_format="iceberg", catalog=catalog)
    assert export(few_tasks(), settings, LocalExecutor(1)).rows > 0
    assert export(few_tasks(), settings, LocalExecutor(1)).rows == 0
    assert refused == []
    assert not set(CHECKSUM_VARIABLES) & os.environ.keys()


def test_checksum_setting_of_the_environment_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    name = CHECKSUM_VARIABLES[0]
    monkeypatch.setenv(name, "when_supported")
    with CHECKSUMS_WHEN_REQUIRED:
        assert os.environ[name] == "when_supported"
    assert os.environ[name] == "when_supported"
    assert "request_checksum_calculation" not in s3_arguments({})["config_kwargs"]


def target_of(url: str, server: S3Server) -> S3Target:
    return S3Target(url, storage_options_from(server.options))


def test_create_returns_true_only_for_the_first_content_of_a_key(
    url: str, s3_server: S3Server
) -> None:
    target = target_of(url, s3_server)
    assert target.create("a/b", b"first")
    assert not target.create("a/b", b"second")
    assert target.read("a/b") == b"first"
    # A request that is repeated because its first response was lost also succeeds.
    assert target.create("a/b", b"first")
    require_create(target)
    assert [entry.key for entry in target.list_objects("")] == ["a/b"]
    target.close()


def test_repeated_publish_of_same_file_succeeds(url: str, s3_server: S3Server) -> None:
    target = target_of(url, s3_server)
    with target.open_output("draft") as file:
        file.write(b"12345")
    for _ in range(2):
        target.publish("draft", "done", 5)
    assert [entry.key for entry in target.list_objects("")] == ["done"]
    with pytest.raises(ExportError, match="neither"):
        target.publish("draft", "other", 5)
    with pytest.raises(ExportError, match="has 5 bytes instead of 6"):
        target.publish("draft", "done", 6)
    with pytest.raises(ObjectNotFoundError):
        target.read("draft")
    target.close()


@pytest.mark.parametrize("has_source", [True, False])
@pytest.mark.parametrize("other", [b"54321", b"12345"], ids=["other bytes", "same bytes"])
def test_s3_publish_refuses_other_object_of_same_size(
    url: str, s3_server: S3Server, has_source: bool, other: bytes
) -> None:
    target = target_of(url, s3_server)
    if has_source:
        target.create("draft", b"12345")
    target.create("done", other)
    with pytest.raises(ExportError, match=r"not a copy of .*/draft"):
        target.publish("draft", "done", 5)
    assert target.read("done") == other
    if has_source:
        assert target.read("draft") == b"12345"
        target.delete("done")
        target.publish("draft", "done", 5)
        assert target.read("done") == b"12345"
    target.close()


def test_s3_publish_refuses_copy_of_another_attempt(url: str, s3_server: S3Server) -> None:
    target = target_of(url, s3_server)
    for draft in ("one", "two"):
        target.create(draft, b"12345")
    target.publish("one", "done", 5)
    with pytest.raises(ExportError, match=r"not a copy of .*/two"):
        target.publish("two", "done", 5)
    target.publish("one", "done", 5)
    target.close()


def test_file_copied_in_parts_is_published(
    url: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3fs.core.MANAGED_COPY_THRESHOLD", 1 << 20)
    data = bytes(6 << 20)
    target = target_of(url, s3_server)
    target.create("draft", data)
    for _ in range(2):
        target.publish("draft", "done", len(data))
    assert [entry.key for entry in target.list_objects("")] == ["done"]
    target.close()


def test_store_that_ignores_if_none_match_is_refused(
    url: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(url, s3_server)

    def put(self: S3Target, key: str, data: bytes) -> bool:
        s3_server.put(self._bucket, self._prefix + key, data)
        return True

    monkeypatch.setattr(S3Target, "create", put)
    with pytest.raises(UnsupportedTargetError, match="ignores conditions of writes"):
        require_create(target)
    with pytest.raises(UnsupportedTargetError, match="ignores conditions of writes"):
        export(few_tasks(), settings_of(url, s3_server), LocalExecutor(1))
    assert list(target.list_objects("")) == []
    target.close()


def test_export_errors_and_repr_of_settings_hide_secrets(s3_server: S3Server) -> None:
    options = {**s3_server.options, "s3.secret-access-key": "wrong-secret-" + uuid.uuid4().hex}
    settings = export_settings(
        "s3://no-such-bucket-here/x", target_options=options, table_format="parquet"
    )
    with pytest.raises(Exception, match=r"bucket|denied|failed|no such") as caught:
        export(few_tasks(), settings, LocalExecutor(1))
    shown = f"{caught.value!r} {caught.value} {settings!r} {settings}"
    assert options["s3.secret-access-key"] not in shown
