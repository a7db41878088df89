"""Runs an HTTP server in a thread. Test doubles of stores are based on it."""

from __future__ import annotations

import http.server
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from typing import Self


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """Keeps connections open and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_arguments: object) -> None:
        pass  # clients close connections after invalid responses


class HttpDouble:
    """Serves requests through a handler, on a port that the system chooses.

    Attributes:
        server: The HTTP server of the standard library.
        url: The address for clients on this machine.
    """

    def __init__(
        self, handler: type[http.server.BaseHTTPRequestHandler], address: str = "127.0.0.1"
    ) -> None:
        self.server = _Server((address, 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def encrypt(self, context: ssl.SSLContext) -> None:
        """Makes the server use TLS for all later connections."""
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = self.url.replace("http:", "https:")

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """Serves requests while the `with` block runs."""
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join(10)
