"""Runs an Iceberg REST catalog, and a proxy that refuses requests to a catalog or loses its
responses.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.integration.kafka_jars import class_path
from tests.kts_source.export.exporting import Lake
from tests.servers import free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ICEBERG = "1.10.1"
_ARTIFACTS = (
    f"org.apache.iceberg:iceberg-core:{ICEBERG}",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}:tests",
    f"org.apache.iceberg:iceberg-open-api:{ICEBERG}:test-fixtures",
    "org.eclipse.jetty:jetty-servlet:11.0.26",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
# The server uses Hadoop's file system, which PySpark contains.
_HADOOP = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "jcl-over-slf4j-*.jar")


@contextlib.contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """Runs Iceberg's REST catalog during the `with` block; yields its URL. The catalog and its
    tables are stored in `folder`.

    If java or mvn is missing, skips the calling test, or fails it if `KTS_CI_FULL=1`.
    """
    jars = Path(pyspark.__file__).parent / "jars"
    hadoop = [path for name in _HADOOP for path in map(str, jars.glob(name))]
    port = free_port()
    environment = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_WAREHOUSE": f"{folder.as_uri()}/warehouse",
    }
    everything = os.pathsep.join([class_path(_ARTIFACTS), *hadoop])
    main = "org.apache.iceberg.rest.RESTCatalogServer"
    command = ["java", "-Xmx300m", "-XX:TieredStopAtLevel=1", "-cp", everything, main]
    with running(command, port, environment=environment):
        yield f"http://127.0.0.1:{port}"


class Front(ThreadingHTTPServer):
    """A proxy in front of the HTTP server of a catalog.

    Attributes:
        token: Bearer token that each request must have; `None` = any.
        refusal: HTTP status for requests without this token.
        unsupported: Requests with this text in their body are answered with status 406; empty =
            none.
        losing: Part of the requests (text of path and operation) whose next response is lost after
            the server has handled the request; empty = lose none.
        lost: Number of lost responses.
    """

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream.removeprefix("http://")
        self.token: str | None = None
        self.refusal = 401
        self.unsupported = ""
        self.losing = ""
        self.lost = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self) -> None:
        front = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        given = self.headers.get("Authorization", "")
        if front.token is not None and given != f"Bearer {front.token}":
            # Some servers quote the login in the error.
            quoted = f"{given} {body.decode()}" if "oauth" in self.path else given
            error = {"message": f"bad login {quoted}", "type": "NotAuthorized"}
            answer = {"error": {**error, "code": front.refusal}}
            self._answer(front.refusal, {}, json.dumps(answer).encode())
            return
        if front.unsupported and front.unsupported.encode() in body:
            problem = {"message": "not here", "type": "UnsupportedOperationException", "code": 406}
            self._answer(406, {}, json.dumps({"error": problem}).encode())
            return
        upstream = http.client.HTTPConnection(front.upstream, timeout=60)
        with contextlib.closing(upstream):
            upstream.request(self.command, self.path, body, dict(self.headers))
            response = upstream.getresponse()
            data = response.read()
        operation = f"{self.command} {self.path} {self.headers.get('X-Amz-Target', '')}"
        if front.losing and front.losing in operation and response.status < 300:
            front.losing = ""
            front.lost += 1
            self.close_connection = True
            return
        self._answer(response.status, dict(response.getheaders()), data)

    def _answer(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


for _method in ("GET", "HEAD", "POST", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._handle)


@contextlib.contextmanager
def front_of(upstream: str) -> Iterator[Front]:
    """Runs a `Front` of the server with the URL `upstream` during the `with` block."""
    with Front(upstream) as front:
        thread = threading.Thread(target=front.serve_forever, daemon=True)
        thread.start()
        try:
            yield front
        finally:
            front.shutdown()
            thread.join()


@dataclass(frozen=True)
class CatalogLake(Lake):
    """An Iceberg table in a catalog with these properties."""

    properties: Mapping[str, str]
    table_name: str

    @property
    def catalog(self) -> dict[str, str]:
        return dict(self.properties)

    @property
    def target(self) -> str:
        return self.table_name
