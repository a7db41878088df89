"""Runs an S3 server with one object. It records requests and can return wrong responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.store.s3_store import S3Store
from kts_source.store.storage_options import storage_options_from
from tests.kts_source.store.fake_cloud import DATA, ETAG, QUICK
from tests.kts_source.store.http_double import HttpDouble, QuietHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KEYS = {"s3.access-key-id": "AKGIVEN", "s3.secret-access-key": "secret-0123456789"}
# Only s3fs supports this argument, so s3fs reads the objects. It has no other effect.
BY_S3FS = {"storageOptions": '{"use_ssl": true}'}


class OneObject(HttpDouble):
    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.headers: dict[str, str | None] = {}
        self.body: Callable[[bytes], bytes] = lambda body: body
        self.error: tuple[int, str] | None = None
        self.refusal = 401, "Refused"
        self.refuses: Callable[[Mapping[str, str]], bool] = lambda _headers: False
        bucket = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:  # noqa: N802  # a name of the library
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

            def do_HEAD(self) -> None:  # noqa: N802  # a name of the library
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

        super().__init__(Handler)

    def store(self, **options: str) -> S3Store:
        arguments = {"s3.endpoint": self.url, **options}
        return S3Store("s3://bucket", storage_options_from(arguments), QUICK)
