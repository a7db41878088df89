"""An S3 server with one object that records requests and can give wrong answers."""

from __future__ import annotations

import http.server
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kts_source.store.request_policy import RetryPolicy
from kts_source.store.s3_store import S3Store
from kts_source.store.storage_options import storage_options_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

KEYS = {"s3.access-key-id": "AKGIVEN", "s3.secret-access-key": "secret-0123456789"}
# An argument without effect that only s3fs knows.
BY_S3FS = {"storageOptions": '{"use_ssl": true}'}
DATA = bytes(range(256)) * 8
ETAG = '"v1"'
QUICK = RetryPolicy(max_attempts=3, first_pause_seconds=0.001, max_pause_seconds=0.01)


class OneObject:
    """Serves one object under every key."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.headers: dict[str, str | None] = {}
        self.body: Callable[[bytes], bytes] = lambda body: body
        self.error: tuple[int, str] | None = None
        self.refusal = 401, "Refused"
        self.refuses: Callable[[Mapping[str, str]], bool] = lambda _headers: False
        bucket = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_arguments: object) -> None:
                pass

            def do_GET(self) -> None:
                named = {name.lower(): text for name, text in self.headers.items()}
                bucket.seen.append((self.path, named))
                error = bucket.refusal if bucket.refuses(named) else bucket.error
                if error is not None:
                    status, code = error
                    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
                    self._answer(status, bucket.headers, body)
                    return
                first, last = map(int, named["range"].removeprefix("bytes=").split("-"))
                body = bucket.body(DATA[first : last + 1])
                headers = {
                    "ETag": ETAG,
                    "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
                    "Content-Range": f"bytes {first}-{min(last, len(DATA) - 1)}/{len(DATA)}",
                    **bucket.headers,
                }
                self._answer(206, headers, body)

            def do_HEAD(self) -> None:
                named = {name.lower(): text for name, text in self.headers.items()}
                bucket.seen.append((self.path, named))
                status = bucket.refusal[0] if bucket.refuses(named) else 200
                size = 0 if status != 200 else len(DATA)
                self._answer(status, {"ETag": ETAG, "Content-Length": str(size)}, b"")

            def _answer(self, status: int, headers: Mapping[str, str | None], body: bytes) -> None:
                self.send_response(status)
                for name, text in {"Content-Length": str(len(body)), **headers}.items():
                    if text is not None:
                        self.send_header(name, text)
                self.end_headers()
                self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[OneObject]:
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join(10)

    def store(self, **options: str) -> S3Store:
        given = {"s3.endpoint": self.endpoint, **options}
        return S3Store("s3://bucket", storage_options_from(given), QUICK)
