"""Checks that malformed responses and schema files raise errors, and do not count as a missing
schema.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import RegistryError
from kts_source.registry import client
from kts_source.registry.client import RegistryPlace
from kts_source.registry.schema_registry import ById, RegisteredSchema, find_schema
from tests.schema_registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEEP = b"[" * 100_000
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\n\r\n"
ANSWERS = {
    "truncated chunk": b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\n{"schema"',
    "body shorter than Content-Length": b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"schema"',
    "no HTTP": b"SSH-2.0-x\r\n",
    "no status": b"HTTP/1.1 abc OK\r\n\r\n",
    "no answer": b"",
    "404 of a web server": NOT_FOUND + b"<html>",
    "404 of a registry, to a wrong path": NOT_FOUND + b'{"error_code": 404}',
    "404 of another name": NOT_FOUND + b'{"name": "NotFoundException"}',
    "404 of a list as name": NOT_FOUND + b'{"name": [], "error_code": {}}',
    "404 that is a list": NOT_FOUND + b"[40403]",
    "deep": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(DEEP), DEEP),
}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY", replace(client.RETRY, max_pause_seconds=0.0))


@contextmanager
def answering(raw: bytes) -> Iterator[str]:
    """Runs a server that sends `raw` as the response to every request. Yields its URL."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            while True:
                connection, _ = server.accept()
                with connection:
                    if ended.is_set():
                        return
                    connection.recv(1 << 16)
                    connection.sendall(raw)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield url
        finally:
            ended.set()
            socket.create_connection(server.getsockname()).close()
            thread.join()


@pytest.mark.parametrize("raw", ANSWERS.values(), ids=ANSWERS)
def test_malformed_response_raises_registry_error(raw: bytes) -> None:
    with answering(raw) as url:
        schemas: ById[int, RegisteredSchema] = ById(
            lambda number: find_schema(RegistryPlace(url), number)
        )
        with pytest.raises(RegistryError):
            schemas.get(21)


@pytest.mark.parametrize(
    "word",
    [
        *(b'"error_code": %d' % code for code in (40401, 40402, 40403)),
        *(b'"name": "%bNotFoundException"' % name for name in (b"Artifact", b"Content")),
    ],
)
def test_missing_schema_raises_lookup_error(word: bytes) -> None:
    with answering(NOT_FOUND + b"{%b}" % word) as url:
        schemas: ById[int, RegisteredSchema] = ById(
            lambda number: find_schema(RegistryPlace(url), number)
        )
        for _ in range(2):
            with pytest.raises(LookupError, match="has no schema at /schemas/ids/21"):
                schemas.get(21)


@pytest.mark.parametrize(
    ("raw", "advice"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", r"check the login: .*basic\.auth\.user\.info"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", r"permissions of this login"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", r"schema-registry\.url is the URL"),
    ],
)
def test_refused_login_and_login_page_name_the_option(raw: bytes, advice: str) -> None:
    with answering(raw) as url, pytest.raises(RegistryError, match=advice):
        find_schema(RegistryPlace(url), 21)


GUID = "00112233-4455-6677-8899-aabbccddeeff"


@pytest.mark.parametrize("schemas", [{}, {"/schemas/ids/1": {"schema": '"int"'}}])
def test_registry_without_guid_lookup_raises_error(schemas: dict[str, dict[str, Any]]) -> None:
    server = Registry(schemas)
    server.unknown = lambda path: {"error_code": 0 if path.startswith("/schemas/guids") else 40403}
    server.authorization = None
    with server.serving(), pytest.raises(LookupError, match="too old to support /schemas/guids/"):
        find_schema(RegistryPlace(server.url), GUID)
    assert server.asked == [f"/schemas/guids/{GUID}", "/schemas/ids/1"]


def test_not_found_without_registry_error_code_raises_registry_error() -> None:
    with answering(NOT_FOUND + b"<html>") as url, pytest.raises(RegistryError, match="404"):
        find_schema(RegistryPlace(url), GUID)
    unknown = pytest.raises(LookupError, match=f"has no schema at /schemas/guids/{GUID}")
    with answering(NOT_FOUND + b'{"error_code": 40403}') as url, unknown:
        find_schema(RegistryPlace(url), GUID)


def test_unreadable_schema_file_raises_registry_error(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("/proc/self/mem")
    (tmp_path / "21.avsc").symlink_to(loop)
    schemas: ById[int, RegisteredSchema] = ById(
        lambda number: find_schema(RegistryPlace(str(tmp_path)), number)
    )
    with pytest.raises(RegistryError, match="cannot be read"):
        schemas.get(21)
    with pytest.raises(LookupError, match="no schema 22"):
        schemas.get(22)
