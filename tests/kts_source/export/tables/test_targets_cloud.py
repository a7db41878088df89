"""Tests export targets on emulators of Azure Blob Storage and Google Cloud Storage."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kts_source.errors import CommitConflictError, ExportError, UnsupportedTargetError
from kts_source.export.run import clean, export
from kts_source.export.settings import export_settings
from kts_source.export.tables.target_store import (
    AzureTarget,
    GcsTarget,
    open_target,
    require_create,
)
from kts_source.export.task_writer import LocalExecutor
from tests.cloud_servers import (
    ACCOUNT,
    KEY,
    AzureService,
    GoogleService,
    azurite,
    fake_gcs,
    with_xml_uploads,
)
from tests.kts_source.export.exporting import assert_holds, source
from tests.kts_source.export.killing import Killed, Steps, killable_folder
from tests.kts_source.read.typed_tier import write as write_tier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.target_store import TargetStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Service: TypeAlias = AzureService | GoogleService
_numbers = itertools.count()


@pytest.fixture(scope="module")
def google() -> Iterator[GoogleService]:
    with fake_gcs() as server:
        yield server


@pytest.fixture(scope="module", params=["azure", "google"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    if request.param == "azure":
        with azurite(tmp_path_factory.mktemp("azurite")) as server:
            yield server
    else:
        with with_xml_uploads(request.getfixturevalue("google")) as front:
            yield front


@pytest.fixture
def url(service: Service) -> str:
    return f"{service.make_root(f'lake-{next(_numbers)}').path}/lake/orders"


@pytest.fixture
def target(url: str, service: Service) -> Iterator[TargetStore]:
    settings = settings_of(url, service)
    opened = open_target(settings.target, settings.storage)
    yield opened
    opened.close()


def few_tasks(topics: str | tuple[str, ...] = "txn") -> dict[str, str]:
    return source(topics, targetPartitionBytes="250k")


def settings_of(url: str, service: Service, **arguments: Any) -> ExportSettings:  # noqa: ANN401
    return export_settings(url, target_options=service.options, commit_bytes=250_000, **arguments)


def read_folder(url: str, service: Service) -> pa.Table:
    arguments = json.loads(service.options["storageOptions"])
    filesystem = fsspec.filesystem(url.partition("://")[0], **arguments, skip_instance_cache=True)
    folder = url.partition("://")[2]
    dataset = ds.dataset(folder, filesystem=filesystem, format="parquet", partitioning="hive")
    return dataset.to_table()


def test_partitioned_folder_contains_all_rows(url: str, service: Service) -> None:
    settings = settings_of(url, service, partition_by=["topic"])
    report = export(few_tasks(("txn", "timeline")), settings, LocalExecutor(2))
    assert report.commits > 1
    assert_holds(read_folder(url, service), ["txn", "timeline"])
    assert export(few_tasks(("txn", "timeline")), settings, LocalExecutor(1)).rows == 0


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["publish", "create json", "create published"])
def test_killed_folder_export_writes_each_row_once_after_resume(
    url: str, service: Service, step: str, after: bool
) -> None:
    settings = settings_of(url, service)
    steps = StepsByName(step, after=after)
    table = killable_folder(settings, open_target(settings.target, settings.storage), steps)
    with pytest.raises(Killed):
        export(few_tasks(), settings, LocalExecutor(1), table=table)
    found = read_folder(url, service)
    if found.num_rows:
        rows = list(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))
        assert len(rows) == len(set(rows))
    export(few_tasks(), settings, LocalExecutor(1))
    assert_holds(read_folder(url, service), ["txn"])
    clean(settings, older_than_hours=-1, remove=True)
    assert_holds(read_folder(url, service), ["txn"])
    with closing(open_target(settings.target, settings.storage)) as target:
        keys = [entry.key for entry in target.list_objects("")]
    assert not [key for key in keys if key.endswith(".part")]


class StepsByName(Steps):
    """Kills the run at the first step with a name."""

    def __init__(self, name: str, *, after: bool) -> None:
        super().__init__(None, after=after)
        self._name = name

    def step(self, name: str, call: Any) -> Any:  # noqa: ANN401
        if self._fatal is None and name == self._name:
            self._fatal = len(self.names)
        return super().step(name, call)


def read_delta(url: str, service: Service) -> pa.Table:
    options = {
        "azure_storage_account_name": ACCOUNT,
        "azure_storage_account_key": KEY,
        "azure_endpoint": service.url,
        "google_base_url": service.url,
        "google_skip_signature": "true",
        "allow_http": "true",
    }
    kind = "azure" if isinstance(service, AzureService) else "google"
    own = {name: text for name, text in options.items() if name.startswith((kind, "allow"))}
    return DeltaTable(url, storage_options=own).to_pyarrow_table()


def test_delta_table_contains_all_rows(url: str, service: Service) -> None:
    settings = settings_of(url, service, table_format="delta", partition_by=["topic"])
    report = export(few_tasks(("txn", "timeline")), settings, LocalExecutor(1))
    assert report.commits > 1
    assert_holds(read_delta(url, service), ["txn", "timeline"])
    assert export(few_tasks(("txn", "timeline")), settings, LocalExecutor(1)).rows == 0


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_concurrent_exports_write_each_row_once(
    url: str, service: Service, table_format: str
) -> None:
    settings = settings_of(url, service, table_format=table_format)
    barrier = threading.Barrier(3)

    def run(_: int) -> int:
        barrier.wait()
        try:
            return export(few_tasks(), settings, LocalExecutor(1)).rows
        except CommitConflictError:
            return 0

    with ThreadPoolExecutor(3) as pool:
        assert max(pool.map(run, range(3))) > 0
    export(few_tasks(), settings, LocalExecutor(1))
    read = read_folder if table_format == "parquet" else read_delta
    assert_holds(read(url, service), ["txn"])


def test_iceberg_table_contains_all_rows(url: str, service: Service, tmp_path: Path) -> None:
    if isinstance(service, AzureService):
        storage = {"adls.connection-string": service.connection}
    else:
        storage = {
            "gcs.service.host": service.url,
            "gcs.oauth2.token": "anon",
            "gcs.project-id": "test",
        }
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": url.replace("az://", "abfs://"),
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
        **storage,
    }
    settings = export_settings(
        "lake.rows",
        table_format="iceberg",
        catalog={**catalog, "name": "lake"},
        commit_bytes=250_000,
    )
    assert export(few_tasks(), settings, LocalExecutor(1)).commits > 1
    opened = load_catalog("lake", **catalog)
    assert_holds(opened.load_table("lake.rows").scan().to_arrow(), ["txn"])
    opened.close()
    assert export(few_tasks(), settings, LocalExecutor(1)).rows == 0
    assert KEY not in repr(settings)
    assert keys_of_objects_with(KEY, url, settings) == []


def test_concurrent_creates_of_one_key_have_one_winner(target: TargetStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda n: target.create("a/b", b"%d" % n), range(16)))
    assert sum(created) == 1
    assert target.read("a/b") == b"%d" % created.index(True)
    # A request that is repeated because its first response was lost also succeeds.
    assert target.create("a/b", target.read("a/b"))
    require_create(target)
    assert [entry.key for entry in target.list_objects("")] == ["a/b"]


def write(target: TargetStore, key: str, data: bytes) -> None:
    with target.open_output(key) as file:
        file.write(data)


# aiohttp's advice about the size of the parts that adlfs and gcsfs send.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.parametrize("size", [5, 20 << 20], ids=["small", "in parts"])
def test_repeated_publish_of_same_file_succeeds(target: TargetStore, size: int) -> None:
    data = bytes(size)
    write(target, "draft", data)
    for _ in range(2):
        target.publish("draft", "a=ü b/done", size)
    assert [entry.key for entry in target.list_objects("")] == ["a=ü b/done"]
    assert target.read("a=ü b/done") == data
    with pytest.raises(ExportError, match="neither"):
        target.publish("draft", "other", size)
    with pytest.raises(ExportError, match=f"has {size} bytes instead of 6"):
        target.publish("draft", "a=ü b/done", 6)


def test_publish_refuses_other_object_of_same_size(target: TargetStore) -> None:
    write(target, "ä/draft", b"12345")
    write(target, "two", b"12345")
    target.create("done", b"12345")
    with pytest.raises(ExportError, match=r"not a copy of .*/draft"):
        target.publish("ä/draft", "done", 5)
    target.delete("done")
    target.publish("ä/draft", "done", 5)
    with pytest.raises(ExportError, match=r"not a copy of .*/two"):
        target.publish("two", "done", 5)
    assert target.read("two") == b"12345"


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_store_that_ignores_conditions_is_refused(
    url: str, service: Service, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: contextlib.AbstractContextManager[Service]
    if isinstance(service, GoogleService) and table_format == "delta":
        real = with_xml_uploads(service, has_conditions=False)
    else:
        kind = AzureTarget if isinstance(service, AzureService) else GcsTarget
        monkeypatch.setattr(kind, "_if_new", {})
        real = contextlib.nullcontext(service)
    with real as server:
        settings = settings_of(url, server, table_format=table_format)
        with pytest.raises(UnsupportedTargetError, match="ignores conditions of writes"):
            export(few_tasks(), settings, LocalExecutor(1))
        with closing(open_target(settings.target, settings.storage)) as target:
            assert list(target.list_objects("")) == []


def test_delta_is_refused_without_uploads_in_xml(google: GoogleService) -> None:
    settings = settings_of(f"{google.make_root('no-xml').path}/lake", google, table_format="delta")
    with pytest.raises(UnsupportedTargetError, match="XML API"):
        export(few_tasks(), settings, LocalExecutor(1))
    with closing(open_target(settings.target, settings.storage)) as target:
        assert list(target.list_objects("")) == []


def shared_access(service: AzureService) -> dict[str, str]:
    """Returns options with a shared access signature instead of the account key."""
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    signature = generate_account_sas(
        ACCOUNT,
        KEY,
        ResourceTypes(container=True, object=True),
        AccountSasPermissions(read=True, write=True, list=True, delete=True, create=True),
        datetime.now(UTC) + timedelta(hours=1),
    )
    parts = {"BlobEndpoint": service.url, "SharedAccessSignature": signature}
    text = ";".join(f"{name}={value}" for name, value in parts.items())
    return {"storageOptions": json.dumps({"connection_string": text})}


# The emulator of Google's store has no credentials.
@pytest.mark.parametrize("service", ["azure"], indirect=True)
@pytest.mark.parametrize("kind", ["account key", "shared access signature"])
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_export_stores_and_logs_no_credentials(
    url: str,
    service: AzureService,
    table_format: str,
    kind: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options, secret = service.options, KEY
    if kind != "account key":
        options = shared_access(service)
        secret = options["storageOptions"].partition("sig=")[2][:20]
        assert secret
    caplog.set_level("DEBUG")
    tier = write_tier(tmp_path, [[b"no JSON", b'{"id": 1}']])
    settings = export_settings(
        url,
        target_options=options,
        table_format=table_format,
        dead_letters=f"{url}-letters",
        max_rejected="100%",
    )
    typed = {"value.format": "json", "value.schema": "id bigint"}
    report = export(tier | typed, settings, LocalExecutor(1))
    assert (report.rows, report.rejected) == (1, 1)
    assert secret not in f"{report!r} {report} {settings!r}"
    assert secret not in caplog.text
    assert keys_of_objects_with(secret, url.rpartition("/")[0], settings) == []


def keys_of_objects_with(text: str, url: str, settings: ExportSettings) -> list[str]:
    """Returns the keys of the objects below a URL that contain a text."""
    with closing(open_target(url, settings.storage)) as target:
        stored = {entry.key: target.read(entry.key) for entry in target.list_objects("")}
    assert len(stored) > 1
    return [key for key, data in stored.items() if text.encode() in data]


@pytest.mark.parametrize(
    ("table_format", "text"),
    [("parquet", "(container|bucket) not-here does not exist"), ("delta", "cannot be opened")],
)
def test_missing_container_is_reported_without_secrets(
    service: Service, table_format: str, text: str
) -> None:
    scheme = "az" if isinstance(service, AzureService) else "gs"
    settings = settings_of(f"{scheme}://not-here/lake", service, table_format=table_format)
    with pytest.raises(ExportError, match=text) as caught:
        export(few_tasks(), settings, LocalExecutor(1))
    assert KEY not in f"{caught.value!r} {settings!r}"
