"""OAUTHBEARER's tokens: from an endpoint (OAuth's client credentials grant), or from a function of
the user's. Fetched in the process that connects, kept until most of their life is over.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import threading
import time
from typing import Final
from urllib.parse import quote_plus, urlencode, urlsplit

from kts_source.broker.settings import TokenCallback, TokenEndpoint
from kts_source.callbacks import called
from kts_source.errors import BrokerError, BrokerUnavailableError

_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # b64token of RFC 6750, 2.1
_MAX_ANSWER_BYTES: Final = 1 << 20
_TIMEOUT_SECONDS: Final = 10.0
_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.2
_USED_SHARE_OF_LIFE: Final = 0.8
_LONGEST_LIFE_SECONDS: Final = 1e9

_held: dict[TokenEndpoint, tuple[str, float]] = {}
"""By endpoint and client: the token, and until when it is used (`time.monotonic`)."""
_lock: Final = threading.Lock()


def token(source: TokenEndpoint | TokenCallback) -> str:
    """A token that is valid now.

    Raises:
        BrokerUnavailableError: The endpoint cannot be reached, or fails.
        BrokerError: It refuses the client, or what it or the function gives is no token.
    """
    if isinstance(source, TokenCallback):
        return _from_callback(source)
    with _lock:  # one request serves all threads
        found = _held.get(source)
        if found is None or time.monotonic() >= found[1]:
            began = time.monotonic()
            text, seconds = _from_endpoint(source)
            found = _held[source] = (text, began + seconds * _USED_SHARE_OF_LIFE)
        return found[0]


def forget(source: TokenEndpoint | TokenCallback) -> None:
    """The broker refused the token: the next connection gets another one."""
    with _lock:
        if isinstance(source, TokenEndpoint):
            _held.pop(source, None)


def _from_callback(source: TokenCallback) -> str:
    try:
        given = called(source.function)
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        # Its own error may quote a credential: not chained.
        raise BrokerError(
            f"the callback {source.function} failed to give a token: {type(error).__name__}"
        ) from None
    if not isinstance(given, str) or not _TOKEN.fullmatch(given):
        raise BrokerError(
            f"the callback {source.function} gave no token, but a {type(given).__name__}"
            " that is not of a token's characters"
        )
    return given


def _from_endpoint(source: TokenEndpoint) -> tuple[str, float]:
    """A new token and the seconds that it lives; 0 where the endpoint does not say."""
    place = f"the token endpoint at {urlsplit(source.url).hostname}"
    problem = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS * 2**attempt)
        try:
            status, body = _posted(source)
        except ssl.SSLCertVerificationError as error:
            raise BrokerError(f"{place} is not trusted: {error.verify_message}") from None
        except (OSError, http.client.HTTPException) as error:
            problem = f"{place} does not answer: {type(error).__name__}"
            continue
        if status == 200:
            return _parsed(place, body)
        if status < 500 and status != 429:
            raise BrokerError(
                f"{place} answered {status}{_reason(body)}: check the client id, its secret and"
                " the scope"
            )
        problem = f"{place} answered {status}"
    raise BrokerUnavailableError(f"{problem}; asked {_ATTEMPTS} times")


def _posted(source: TokenEndpoint) -> tuple[int, bytes]:
    """Status and body of one request. Redirects are not followed: the secret goes to one host."""
    url = urlsplit(source.url)
    assert url.hostname is not None
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    connection: http.client.HTTPConnection
    if url.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            url.hostname, url.port, timeout=_TIMEOUT_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=_TIMEOUT_SECONDS)
    form = {"grant_type": "client_credentials"}
    if source.scope:
        form["scope"] = source.scope
    pair = (source.client_id, source.client_secret)
    if source.urlencoded:
        pair = (quote_plus(pair[0]), quote_plus(pair[1]))
    headers = {
        "Authorization": f"Basic {base64.b64encode(':'.join(pair).encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    try:
        target = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
        connection.request("POST", target, urlencode(form), headers)
        answer = connection.getresponse()
        body = b""
        while len(body) <= _MAX_ANSWER_BYTES and (part := answer.read1(65_536)):
            body += part
            if time.monotonic() > deadline:
                raise TimeoutError
        return answer.status, body
    finally:
        connection.close()


def _parsed(place: str, body: bytes) -> tuple[str, float]:
    try:
        answer = json.loads(body) if len(body) <= _MAX_ANSWER_BYTES else None
    except (ValueError, RecursionError):
        answer = None
    given = answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(given, str) or not _TOKEN.fullmatch(given):
        raise BrokerError(f"{place} answered without an access_token")
    assert isinstance(answer, dict)
    seconds = answer.get("expires_in")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return given, 0.0
    return given, float(seconds) if 0 < seconds < _LONGEST_LIFE_SECONDS else 0.0


def _reason(body: bytes) -> str:
    """The code of an OAuth error answer (RFC 6749, 5.2); free text may quote what was sent."""
    try:
        code = json.loads(body[:_MAX_ANSWER_BYTES]).get("error")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return f" ({code})" if isinstance(code, str) and re.fullmatch(r"[a-z_]{1,40}", code) else ""
