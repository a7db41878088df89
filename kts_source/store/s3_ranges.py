"""Ranges of S3's objects: signed by botocore, asked for by `HttpClient`, read into memory that was
used before.

An answer is believed when it says the version and the very range that were asked for, before a byte
of it is read.
"""

from __future__ import annotations

import html
import http.client
import re
import ssl
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

from kts_source.secret import Secret, scrub
from kts_source.store.hedge import hedged_call
from kts_source.store.http_answer import joined_header, require_range
from kts_source.store.http_client import HttpClient
from kts_source.store.object_store import check_version
from kts_source.store.range_reader import RangeError, RangeReader
from kts_source.store.range_settings import LeftToFsspecError
from kts_source.store.retry import TransientError
from segment_format.reused_memory import writable_bytes

if TYPE_CHECKING:
    from kts_source.store.s3_range_settings import Keys, S3RangeSettings

_MAX_ERROR_BYTES: Final = 64 << 10
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
# The rest may repeat the request with its token: as it was signed, in hexadecimal, or by itself.
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
# Another region, or another host: s3fs looks for it.
_ELSEWHERE: Final = frozenset({301, 302, 303, 307, 308})
_WRONG_REGION: Final = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraint"})


class S3Reader(RangeReader):
    """See `RangeReader`."""

    _name = "tiered-kafka's own client"

    def _attempt(
        self,
        client: S3Ranges,
        key: str,
        start: int,
        stop: int,
        version: str | None,
        *,
        uri: str,
    ) -> memoryview:
        def once() -> memoryview:
            seconds = self._policy.request_deadline_seconds
            return client.get(key, start, stop, version, uri=uri, seconds=seconds)

        after = self._policy.hedge_after_seconds
        if after is None:
            return once()
        return hedged_call(
            once, after_seconds=after, on_second=lambda: self._tally.add(requests=1, hedges=1)
        )

    def _is_others(self, failure: RangeError) -> bool:
        is_interim = 100 <= failure.status < 200  # http.client takes it for the answer
        return is_interim or failure.status in _ELSEWHERE or failure.code in _WRONG_REGION


class S3Ranges:
    """Asks for ranges of a bucket's objects with one set of credentials.

    Args:
        settings: Of the bucket.
        credentials: Access key, secret key and token; a secret `None`: requests are not signed.

    Raises:
        OSError: The certificates cannot be read.
        ValueError: A URL is none.
    """

    def __init__(self, settings: S3RangeSettings, credentials: Secret[Keys | None]) -> None:
        self._settings = settings
        self._client = HttpClient(settings.http)
        self._signer = _signer(credentials, settings.region)

    def get(
        self,
        key: str,
        start: int,
        stop: int,
        version: str | None,
        *,
        uri: str,
        seconds: float,
    ) -> memoryview:
        """One attempt to read [start, stop) of an object of that ETag; None takes any.

        Raises:
            TransientError: Another answer than asked for, or the time is up.
            TruncatedObjectError: The object ends before `stop`.
            ObjectChangedError: It is of another version.
            LeftToFsspecError: The server's certificate is not trusted, or a header cannot be sent.
            RangeError: Anything else.
        """
        headers = {"Host": self._settings.http.host, "Range": f"bytes={start}-{stop - 1}"}
        if version is not None:
            headers["If-Match"] = version
        if self._settings.request_payer:
            headers["x-amz-request-payer"] = "requester"
        target = f"{self._settings.path}/{urllib.parse.quote(key, safe='/~')}"

        def read(answer: http.client.HTTPResponse) -> memoryview:
            if answer.status not in (200, 206):
                raise self._refusal(answer)
            etag = answer.headers.get("ETag")
            if etag is None and version is not None:
                raise TransientError("the answer has no ETag")
            check_version(etag, version, uri=uri)
            content_range = joined_header(answer.headers.get_all("Content-Range", ()))
            require_range(answer.status, content_range, _length(answer), start, stop, uri=uri)
            data = writable_bytes(stop - start)
            size = answer.readinto(data)
            if size != stop - start:
                raise TransientError(f"the answer ended after {size} of {stop - start} bytes")
            return data.toreadonly()

        try:
            return self._client.get(target, self._signed(target, headers), read, seconds=seconds)
        except ssl.SSLCertVerificationError:
            raise LeftToFsspecError("the server's certificate is not trusted") from None
        except (OSError, http.client.HTTPException) as error:
            raise RangeError(0, "", self._scrubbed(f"{type(error).__name__}: {error}")) from None
        except ValueError:  # its text may hold the token
            raise LeftToFsspecError("a header cannot be sent as it is") from None

    def _signed(self, target: str, headers: dict[str, str]) -> dict[str, str]:
        if self._signer is None:
            return headers
        from botocore.awsrequest import AWSRequest

        request = AWSRequest("GET", self._settings.http.url + target, headers=headers)
        self._signer.reveal().add_auth(request)
        return dict(request.headers.items())

    def _refusal(self, answer: http.client.HTTPResponse) -> RangeError:
        # Not by `read`: http.client takes a chunk of -1 bytes for all that ever comes.
        piece = bytearray(_MAX_ERROR_BYTES)
        body = piece[: answer.readinto(piece)].decode("utf-8", "replace")
        code, message = _CODE.search(body), _MESSAGE.search(body)
        words = (code and code[1], message and html.unescape(message[1]))
        text = " ".join(word for word in (str(answer.status), answer.reason, *words) if word)
        return RangeError(answer.status, code[1] if code else "", self._scrubbed(text))

    def _scrubbed(self, text: str) -> str:
        """Without credentials that are no options: of the AWS chain, and parts of a proxy's URL."""
        keys = (
            ()
            if self._signer is None
            else self._signer.reveal().credentials.get_frozen_credentials()
        )
        return scrub(text, [*self._client.secrets, *(key for key in keys[:3] if key)])


def _length(answer: http.client.HTTPResponse) -> int | None:
    """As told, unless something else says where the answer ends."""
    told = set(answer.headers.get_all("Content-Length", ()))
    return answer.length if len(told) == 1 and "Transfer-Encoding" not in answer.headers else None


def _signer(credentials: Secret[Keys | None], region: str) -> Secret[Any] | None:
    keys = credentials.reveal()
    if keys is None:
        return None
    from botocore.auth import S3SigV4Auth
    from botocore.credentials import Credentials

    return Secret(S3SigV4Auth(Credentials(*keys), "s3", region))
