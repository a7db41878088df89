"""Runs a server that answers the requests of S3, Google, Azure and plain HTTP stores."""

from __future__ import annotations

import json
import urllib.parse
from typing import TYPE_CHECKING, Any

from kts_source.store.open_store import open_store
from kts_source.store.request_policy import RetryPolicy
from kts_source.store.storage_options import storage_options_from
from tests.kts_source.store.http_double import HttpDouble, QuietHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from kts_source.store.object_store import ObjectStore

DATA = bytes(range(256)) * 8
ETAG = '"v1"'
GENERATION = "1700000000000001"
KEY = "c2VjcmV0LW9mLXRoZS1hY2NvdW50"
QUICK = RetryPolicy(max_attempts=3, first_pause_seconds=0.001, max_pause_seconds=0.01)
CLOUDS = ("s3", "s3fs", "obstore gcs", "gcsfs", "obstore azure", "adlfs", "http", "presigned")

# HTTP status, headers that replace the standard headers (None removes a header), and body.
Reply = tuple[int, dict[str, str | None], bytes]


class FakeCloud(HttpDouble):
    """Serves an object with the content `DATA` under every key.

    Attributes:
        read: Called with the byte range [start, stop) of each read. Returns the response to send,
            or `None` to send the bytes of the range.
        next_token: Called with the continuation token of each listing request, `None` for the first
            page. Returns the token of the next page, or `None` if this page is the last one.
        seen: Method, path with query, and headers of every request.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.read: Callable[[int, int], Reply | None] = lambda _start, _stop: None
        self.next_token: Callable[[str | None], str | None] = lambda _token: None
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        cloud = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:  # noqa: N802  # a name of the library
                headers = {name.lower(): text for name, text in self.headers.items()}
                cloud.seen.append((self.command, self.path, headers))
                status, extra, body = cloud.answer(self.path, headers)
                self.send_response(status)
                standard: dict[str, str | None] = {
                    "Content-Length": str(len(body)),
                    "ETag": ETAG,
                    "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
                    "x-goog-generation": GENERATION,
                }
                for name, text in {**standard, **extra}.items():
                    if text is not None:
                        self.send_header(name, text)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815  # a name of the library

        super().__init__(Handler, address)

    @property
    def reads(self) -> list[tuple[str, str, dict[str, str]]]:
        """Returns the requests that read a byte range."""
        return [request for request in self.seen if "range" in request[2] or _azure(request[2])]

    def answer(self, path: str, headers: dict[str, str]) -> Reply:
        url = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        range_header = headers.get("range") or _azure(headers)
        if range_header:
            first, last = map(int, range_header.removeprefix("bytes=").split("-"))
            stop = min(last + 1, len(DATA))
            content_range = f"bytes {first}-{stop - 1}/{len(DATA)}"
            status, extra, body = self.read(first, stop) or (206, {}, DATA[first:stop])
            return status, {"Content-Range": content_range, **extra}, body
        if query.get("list-type") == "2":
            return 200, {}, self._s3_page(query)
        if query.get("comp") == "list":
            return 200, {"Content-Type": "application/xml"}, self._azure_page(query)
        if url.path.endswith("/o"):
            return 200, {}, self._google_page(query)
        if "/storage/v1/b/" in url.path:
            name = urllib.parse.unquote(url.path.rpartition("/o/")[2])
            return 200, {}, json.dumps(self._google_entry(name)).encode()
        return 200, {"x-ms-blob-type": "BlockBlob"}, DATA

    def _google_entry(self, name: str) -> dict[str, object]:
        return {
            "kind": "storage#object",
            "bucket": "bucket",
            "name": name,
            "size": str(len(DATA)),
            "generation": GENERATION,
            "updated": "2015-10-21T07:28:00Z",
        }

    def _google_page(self, query: dict[str, str]) -> bytes:
        token = query.get("pageToken")
        page: dict[str, Any] = {
            "kind": "storage#objects",
            "items": [self._google_entry(f"t/k{token}")],
        }
        if (following := self.next_token(token)) is not None:
            page["nextPageToken"] = following
        return json.dumps(page).encode()

    def _s3_page(self, query: dict[str, str]) -> bytes:
        token = query.get("continuation-token")
        following = self.next_token(token)
        more = following is not None
        text = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>"
        if more:
            text += f"<NextContinuationToken>{following}</NextContinuationToken>"
        text += f"<Contents><Key>t/k{token}</Key><Size>{len(DATA)}</Size><ETag>{ETAG}</ETag>"
        text += "<LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents>"
        return f"{text}</ListBucketResult>".encode()

    def _azure_page(self, query: dict[str, str]) -> bytes:
        token = query.get("marker")
        following = self.next_token(token or None)
        text = f"<NextMarker>{following or ''}</NextMarker>"
        properties = (
            "<Properties><Last-Modified>Wed, 21 Oct 2015 07:28:00 GMT</Last-Modified>"
            f"<Etag>0x1</Etag><Content-Length>{len(DATA)}</Content-Length>"
            "<BlobType>BlockBlob</BlobType></Properties>"
        )
        blob = f"<Blob><Name>t/k{token}</Name>{properties}</Blob>"
        return (
            '<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="orders">'
            f"<Blobs>{blob}</Blobs>{text}</EnumerationResults>"
        ).encode()

    def store(self, cloud: str, folder: str, policy: RetryPolicy = QUICK) -> ObjectStore:
        """Opens a store of this server. `cloud` is one of `CLOUDS`; with `KTS_TUNING=off`, gcsfs
        and adlfs read the objects. `folder` is for files that the store needs.
        """
        if cloud in ("s3", "s3fs"):
            options = {
                "s3.endpoint": self.url,
                "s3.access-key-id": "AK",
                "s3.secret-access-key": "secret-0123456789",
                "s3.region": "us-east-1",
            }
            if cloud == "s3fs":
                options["storageOptions"] = (
                    '{"use_ssl": true}'  # has no effect, except that s3fs reads the objects
                )
            path = "s3://bucket"
        elif cloud.endswith(("gcs", "gcsfs")):
            arguments: dict[str, object] = {"token": "anon", "endpoint_url": self.url}
            path, options = "gs://bucket", {"storageOptions": json.dumps(arguments)}
        elif cloud.endswith(("azure", "adlfs")):
            text = f"BlobEndpoint={self.url}/shop;AccountName=shop;AccountKey={KEY};"
            arguments = {"connection_string": text}
            path, options = "abfs://orders", {"storageOptions": json.dumps(arguments)}
        elif cloud == "http":
            path, options = f"{self.url}/tier", {}
        else:
            path, options = f"{folder}/list.txt", {}
            with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write(f"{self.url}/x\n")
            path = f"presigned+{path}"
        return open_store(path, storage_options_from(options), retry_policy=policy)


def _azure(headers: dict[str, str]) -> str | None:
    return headers.get("x-ms-range")
