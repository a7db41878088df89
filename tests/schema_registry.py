"""Runs a schema registry that serves a few fixed documents."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

USER, PASSWORD = "reader", "open-sesame"


def basic(user: str, password: str) -> str:
    """Returns the value of the header `Authorization` for Basic authentication."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Registry(ThreadingHTTPServer):
    """Serves `documents` by path, with the status codes of Confluent Schema Registry.

    Attributes:
        documents: Maps paths to documents. A path may omit the `subject` parameter of its query.
        authorization: Required value of the header `Authorization`. Requests without it receive
            status 401. `None` accepts every request.
        failing: Status codes of the first responses.
        moved_to: Server to which all requests are redirected; `None` does not redirect.
        unknown: Function that returns the response body for a path without a document.
        asked: Paths of all requests.
        headers: Headers of the last request, names in lower case.
    """

    def __init__(self, documents: dict[str, dict[str, Any]]) -> None:
        super().__init__(("127.0.0.1", 0), RegistryHandler)
        self.documents = documents
        self.authorization: str | None = basic(USER, PASSWORD)
        self.failing: list[int] = []
        self.moved_to: str | None = None
        self.unknown: Callable[[str], dict[str, Any]] = lambda _: {"error_code": 40403}
        self.asked: list[str] = []
        self.headers: dict[str, str] = {}

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


def _without_subject(path: str) -> str:
    """Returns `path` without the `subject` parameter of its query."""
    bare, _, query = path.partition("?")
    kept = [
        parameter
        for parameter in query.split("&")
        if parameter and not parameter.startswith("subject=")
    ]
    return "?".join([bare, "&".join(kept)] if kept else [bare])


class RegistryHandler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.headers = {name.lower(): text for name, text in self.headers.items()}
        documents = self.server.documents
        document = documents.get(self.path) or documents.get(_without_subject(self.path))
        wanted = self.server.authorization
        status = 200 if document else 404
        if wanted is not None and self.headers["Authorization"] != wanted:
            status = 401
        if self.server.failing:
            status = self.server.failing.pop(0)
        if self.server.moved_to is not None:
            status = 302
        body = json.dumps(document or self.server.unknown(self.path)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.server.moved_to is not None:
            self.send_header("Location", self.server.moved_to + self.path)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
