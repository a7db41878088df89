"""A schema registry of a few documents."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

USER, PASSWORD = "reader", "open-sesame"


class Registry(ThreadingHTTPServer):
    """Answers as Confluent's does: documents by path; 401 without the password."""

    def __init__(self, documents: dict[str, dict[str, Any]]) -> None:
        super().__init__(("127.0.0.1", 0), RegistryHandler)
        self.documents = documents
        self.asked: list[str] = []

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.serve_forever)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()
            self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class RegistryHandler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        document = self.server.documents.get(self.path)
        status = 401 if self.headers["Authorization"] != wanted else 404 if not document else 200
        body = json.dumps(document or {"error_code": 40403, "message": "no"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
