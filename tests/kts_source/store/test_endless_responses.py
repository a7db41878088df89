"""Tests reads of 100 bytes from an S3 server that never stops sending its response."""

from __future__ import annotations

import http.server
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import StoreUnavailableError
from kts_source.store.s3_store import S3Store
from kts_source.store.storage_options import storage_options_from
from tests.kts_source.store.fake_cloud import DATA, ETAG, QUICK
from tests.kts_source.store.one_object import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator

ANNOUNCED = 1 << 30
PIECE = bytes(1 << 20)
# Upper bound of the sent bytes: the socket buffers of both sides, plus one read.
TAKEN = 32 << 20


@contextmanager
def _endless(sent: list[int]) -> Iterator[str]:
    """Serves responses that end only when the client disconnects. Yields the endpoint. Appends the
    number of sent bytes of each response to `sent`.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(206)
            # Of the headers that the client checks, only the length is wrong.
            for name, text in {
                "ETag": ETAG,
                "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
                "Content-Range": f"bytes 0-99/{len(DATA)}",
                "Content-Length": str(ANNOUNCED),
            }.items():
                self.send_header(name, text)
            self.end_headers()
            self.close_connection = True
            size = 0
            try:
                while size < ANNOUNCED:
                    self.wfile.write(PIECE)
                    size += len(PIECE)
            except OSError:
                pass
            sent.append(size)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = False  # leaving waits for the senders
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


def test_endless_response_is_aborted(clean_environment: None) -> None:
    """The client must not buffer more bytes than it requested."""
    sent: list[int] = []
    with _endless(sent) as endpoint:
        storage = storage_options_from({"s3.endpoint": endpoint, **KEYS})
        store = S3Store("s3://bucket", storage, QUICK)
        assert store._ranges.reason == ""
        with pytest.raises(StoreUnavailableError, match=f"has {ANNOUNCED} bytes"):
            store.get_range("x", 0, 100, version=ETAG)
        assert store.counters.bytes == 0
        store.close()
    assert len(sent) == QUICK.max_attempts
    assert max(sent) <= TAKEN
