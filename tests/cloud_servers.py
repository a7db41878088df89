"""Runs emulators of Azure Blob Storage (Azurite) and Google Cloud Storage (fake-gcs-server)."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import threading
import urllib.parse
import urllib.request
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from unittest import mock

import fsspec

from kts_source.store.storage_options import storage_options_from
from tests.servers import free_port, go_program, npm_script, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kts_source.secret import Secret

# The fixed account and key of every Azurite, from its manual.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.52.2"


class AzureService:
    """The running emulator, and a separate client that uploads test objects."""

    def __init__(self, url: str) -> None:
        from azure.storage.blob import BlobServiceClient

        parts = ["DefaultEndpointsProtocol=http", f"AccountName={ACCOUNT}", f"AccountKey={KEY}"]
        self.url = url
        self.connection = ";".join([*parts, f"BlobEndpoint={url}", ""])
        self.client: Any = BlobServiceClient.from_connection_string(self.connection)
        self.options = {"storageOptions": json.dumps({"connection_string": self.connection})}

    def make_root(self, name: str) -> Container:
        """Creates an empty container."""
        self.client.create_container(name)
        return Container(self, name)


@dataclass
class Container:
    """A container of the emulator."""

    service: AzureService
    name: str

    @property
    def path(self) -> str:
        return f"az://{self.name}"

    @property
    def storage(self) -> Secret[Mapping[str, str]]:
        return storage_options_from(self.service.options)

    def put(self, key: str, data: bytes) -> None:
        self.service.client.get_blob_client(self.name, key).upload_blob(data, overwrite=True)

    def delete(self, key: str) -> None:
        self.service.client.get_blob_client(self.name, key).delete_blob()


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[AzureService]:
    """Runs Azurite during the `with` block. It stores its files in `folder`."""
    command = npm_script("azurite@3.37.0", "dist/src/blob/main.js")
    port = free_port()
    arguments = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with running([*command, *arguments, *quiet], port):
        server = AzureService(f"http://127.0.0.1:{port}/{ACCOUNT}")
        yield server
        server.client.close()


@dataclass(frozen=True)
class GoogleService:
    """The running emulator. Tests add objects through its JSON API."""

    url: str

    @property
    def options(self) -> dict[str, str]:
        """Returns the data source options for the emulator."""
        arguments = {"endpoint_url": self.url, "token": "anon"}
        return {"storageOptions": json.dumps(arguments)}

    def make_root(self, name: str) -> Bucket:
        """Creates an empty bucket."""
        self.ask("POST", "/storage/v1/b", json.dumps({"name": name}).encode())
        return Bucket(self, name)

    def ask(self, method: str, path: str, data: bytes | None = None) -> None:
        request = urllib.request.Request(self.url + path, data, method=method)
        with urllib.request.urlopen(request, timeout=30):
            pass


@dataclass
class Bucket:
    """A bucket of the emulator."""

    service: GoogleService
    name: str

    @property
    def path(self) -> str:
        return f"gs://{self.name}"

    @property
    def storage(self) -> Secret[Mapping[str, str]]:
        return storage_options_from(self.service.options)

    def put(self, key: str, data: bytes) -> None:
        name = urllib.parse.quote(key, safe="")
        path = f"/upload/storage/v1/b/{self.name}/o?uploadType=media&name={name}"
        self.service.ask("POST", path, data)

    def delete(self, key: str) -> None:
        name = urllib.parse.quote(key, safe="")
        self.service.ask("DELETE", f"/storage/v1/b/{self.name}/o/{name}")


@contextlib.contextmanager
def fake_gcs() -> Iterator[GoogleService]:
    """Runs fake-gcs-server during the `with` block."""
    from gcsfs.core import GCSFileSystem

    # gcsfs's default class asks another service over gRPC for the bucket type. The emulator has no
    # such service, so gcsfs would wait for minutes. The variable has an effect in child processes.
    fsspec.register_implementation("gs", GCSFileSystem, clobber=True)
    in_children = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
    in_pyiceberg = mock.patch("gcsfs.GCSFileSystem", GCSFileSystem)
    program = go_program(_FAKE_GCS)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-external-url", url]
    # The emulator serves its XML API, which obstore uses, only under this host name.
    public = ["-public-host", f"127.0.0.1:{port}"]
    server = running([program, "-backend", "memory", *address, *public], port)
    with mock.patch.dict(os.environ, in_children), in_pyiceberg, server:
        yield GoogleService(url)


@contextlib.contextmanager
def with_xml_uploads(
    service: GoogleService, *, has_conditions: bool = True
) -> Iterator[GoogleService]:
    """Yields the emulator with uploads in its XML API, which delta-rs uses. Without
    `has_conditions`, these uploads ignore conditions.
    """
    with _XmlUploads(service.url.removeprefix("http://"), has_conditions) as front:
        thread = threading.Thread(target=front.serve_forever, daemon=True)
        thread.start()
        yield GoogleService(f"http://127.0.0.1:{front.server_port}")
        front.shutdown()
        thread.join()


class _XmlUploads(ThreadingHTTPServer):
    """Forwards requests to the emulator. It has no uploads in its XML API, so they are sent to its
    JSON API with the same condition. Its listings ignore `start-after`.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, real: str, has_conditions: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.real = real
        self.has_conditions = has_conditions


def _objects_after(key: str, listing: bytes) -> bytes:
    """Returns a listing in XML without the objects up to `key`."""

    def kept(match: re.Match[bytes]) -> bytes:
        return match[0] if html.unescape(match[1].decode()) > key else b""

    return re.sub(rb"<Contents><Key>(.*?)</Key>.*?</Contents>", kept, listing)


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _XmlUploads

    def log_message(self, *_: object) -> None:
        """Suppresses the log lines."""

    def _forward(self) -> None:
        body = self._body()
        path, method = self.path, self.command
        dropped = {"host", "content-length", "transfer-encoding"}
        headers = {n: v for n, v in self.headers.items() if n.lower() not in dropped}
        headers["Host"] = self.server.real
        is_xml = not path.startswith(("/storage/", "/upload/", "/download/", "/batch/"))
        if is_xml and method == "PUT":
            if "?" in path or "x-goog-copy-source" in self.headers:
                self.send_error(501, "uploads in parts and copies are not implemented")
                return
            bucket, _, name = urllib.parse.urlsplit(path).path[1:].partition("/")
            query = {"uploadType": "multipart", "name": urllib.parse.unquote(name)}
            generation = self.headers.get("x-goog-if-generation-match")
            if generation is not None and self.server.has_conditions:
                query["ifGenerationMatch"] = generation
            method = "POST"
            path = f"/upload/storage/v1/b/{bucket}/o?{urllib.parse.urlencode(query)}"
            metadata = json.dumps({"name": query["name"]}).encode()
            parts = [
                b"application/json\r\n\r\n" + metadata,
                b"application/octet-stream\r\n\r\n" + body,
            ]
            body = b"".join(b"--=part=\r\nContent-Type: " + part + b"\r\n" for part in parts)
            body += b"--=part=--\r\n"
            headers = {"Content-Type": 'multipart/related; boundary="=part="'}
        with contextlib.closing(HTTPConnection(self.server.real, timeout=30)) as connection:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            data = response.read()
        wanted = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        if is_xml and (after := wanted.get("start-after")):
            data = _objects_after(after[0], data)
        dropped = {"connection", "transfer-encoding", "content-length", "server", "date"}
        # The emulator's status for a missing bucket is 500.
        is_missing = response.status == 500 and b"no bucket named" in data
        self.send_response(404 if is_missing else response.status)
        for header, value in response.getheaders():
            if header.lower() not in dropped:
                self.send_header(header, value)
        if is_xml and self.command == "PUT" and response.status == 200:
            self.send_header("ETag", json.loads(data)["etag"])
        length = response.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _forward  # noqa: N815
