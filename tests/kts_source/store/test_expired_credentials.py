"""Tests that errors about expired credentials name where the credentials came from and which
alternatives exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kts_source.errors import AccessDeniedError
from kts_source.export.settings import export_settings
from kts_source.export.tables.delta import DeltaExportTable
from tests.kts_source.export.exporting import Lake
from tests.kts_source.store.one_object import BY_S3FS, KEYS, OneObject

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = {**KEYS, "s3.session-token": "TOKEN"}


@pytest.fixture
def bucket(clean_environment: None) -> Iterator[OneObject]:
    with OneObject().serving() as server:
        yield server


@pytest.mark.parametrize("options", [{}, BY_S3FS], ids=["own", "s3fs"])
@pytest.mark.parametrize(
    ("credentials", "text"),
    [
        (KEYS, "option s3.access-key-id have expired"),
        (TOKEN, "option s3.session-token have expired"),
    ],
)
def test_expired_options_are_named_with_alternatives(
    bucket: OneObject, options: dict[str, str], credentials: dict[str, str], text: str
) -> None:
    bucket.refusal, bucket.refuses = (400, "ExpiredToken"), lambda _headers: True
    store = bucket.store(**options, **credentials)
    with pytest.raises(AccessDeniedError, match=text) as raised:
        store.get_range("x", 0, 4)
    store.close()
    assert "s3.profile-name or from the role of the machine" in str(raised.value)
    assert not {*credentials.values()} & {*str(raised.value).split()}


def test_expired_environment_variable_is_named(
    bucket: OneObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "x")
    bucket.refusal, bucket.refuses = (400, "ExpiredToken"), lambda _headers: True
    store = bucket.store()
    with pytest.raises(AccessDeniedError, match="environment variable AWS_SESSION_TOKEN"):
        store.get_range("x", 0, 4)
    store.close()


def test_wrong_secret_of_a_delta_table_raises_access_denied_error_without_xml(
    bucket: OneObject,
) -> None:
    bucket.refusal, bucket.refuses = (403, "SignatureDoesNotMatch"), lambda _headers: True
    options = {"s3.endpoint": bucket.url, "s3.region": "us-east-1", **KEYS}
    settings = export_settings("s3://bucket/t", table_format="delta", target_options=options)
    table = DeltaExportTable(settings)
    with pytest.raises(AccessDeniedError, match="Check the credentials") as raised:
        table.load()
    text = raised.value.message
    assert "the Delta table cannot be opened: SignatureDoesNotMatch: no (OSError: " in text
    body = "<Error><Code>C</Code><Message>M.</Message>\n<StringToSign>A</StringToSign></Error>\n"
    error = table._library_error("failed", OSError(f'403\n ↳ <?xml version="1.0"?>\n{body}'))
    table.close()
    assert "M." in text + error.message
    assert "<" not in text + error.message


def test_error_of_a_table_library_names_the_expired_option(tmp_path: Path) -> None:
    settings = Lake(tmp_path, "delta").settings(target_options=TOKEN)
    table = DeltaExportTable(settings)
    error = table._library_error("the commit failed", OSError("403: <Code>ExpiredToken</Code>"))
    outage = table._library_error("the commit failed", ConnectionError("refused"))
    table.close()
    assert "option s3.session-token have expired" in str(error)
    assert outage.retriable
    assert "wait for the end of the outage: ConnectionError: refused" in str(outage)
