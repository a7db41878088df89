"""One blocking connection to one broker: requests out, decoded answers in.

kafka-python encodes and decodes the messages. Its own transport is not used: it receives 4 KiB at
a time and copies four times.

Error codes of Kafka's protocol that a reader meets. Source: `Errors` in Kafka.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from kts_source.broker.sasl import require_kafka, sasl_client
from kts_source.errors import BrokerAccessError, BrokerError
from kts_source.secret import scrub

if TYPE_CHECKING:
    from typing import Unpack

    from kts_source.broker.settings import BrokerSettings
    from kts_source.errors import Place


UNKNOWN_SERVER_ERROR: Final = -1
OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REPLICA_NOT_AVAILABLE: Final = 9
TOPIC_AUTHORIZATION_FAILED: Final = 29
CLUSTER_AUTHORIZATION_FAILED: Final = 31
UNSUPPORTED_VERSION: Final = 35
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
OFFSET_NOT_AVAILABLE: Final = 78
UNKNOWN_TOPIC_ID: Final = 100
INCONSISTENT_TOPIC_ID: Final = 103

NEW_LEADER: Final = frozenset(
    {LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH}
)
"""Somebody else leads the partition, or soon will."""

PASSING: Final = NEW_LEADER | {
    UNKNOWN_TOPIC_OR_PARTITION,  # a broker that has not heard of the topic yet
    7,  # REQUEST_TIMED_OUT
    8,  # BROKER_NOT_AVAILABLE
    REPLICA_NOT_AVAILABLE,  # also: what the tier holds is not loaded yet
    13,  # NETWORK_EXCEPTION
    14,  # COORDINATOR_LOAD_IN_PROGRESS
    56,  # KAFKA_STORAGE_ERROR
    OFFSET_NOT_AVAILABLE,
    89,  # THROTTLING_QUOTA_EXCEEDED
    UNKNOWN_SERVER_ERROR,
}
"""The same request stands a chance later."""

DENIED: Final = frozenset({TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED})

TOPIC_GONE: Final = frozenset({UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID})

_NAMES: Final = {
    OFFSET_OUT_OF_RANGE: "OFFSET_OUT_OF_RANGE",
    2: "CORRUPT_MESSAGE",
    UNKNOWN_TOPIC_OR_PARTITION: "UNKNOWN_TOPIC_OR_PARTITION",
    LEADER_NOT_AVAILABLE: "LEADER_NOT_AVAILABLE",
    NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_OR_FOLLOWER",
    REPLICA_NOT_AVAILABLE: "REPLICA_NOT_AVAILABLE",
    TOPIC_AUTHORIZATION_FAILED: "TOPIC_AUTHORIZATION_FAILED",
    CLUSTER_AUTHORIZATION_FAILED: "CLUSTER_AUTHORIZATION_FAILED",
    UNSUPPORTED_VERSION: "UNSUPPORTED_VERSION",
    56: "KAFKA_STORAGE_ERROR",
    FENCED_LEADER_EPOCH: "FENCED_LEADER_EPOCH",
    UNKNOWN_LEADER_EPOCH: "UNKNOWN_LEADER_EPOCH",
    OFFSET_NOT_AVAILABLE: "OFFSET_NOT_AVAILABLE",
    UNKNOWN_TOPIC_ID: "UNKNOWN_TOPIC_ID",
    UNKNOWN_SERVER_ERROR: "UNKNOWN_SERVER_ERROR",
}


def error_name(code: int) -> str:
    """Kafka's name of an error code, and its number."""
    return f"{_NAMES[code]} ({code})" if code in _NAMES else f"error {code}"


def refusal(code: int, **place: Unpack[Place]) -> BrokerError:
    """The error for a code that does not pass."""
    if code in DENIED:
        return BrokerAccessError(
            "not allowed to read the topic: the user needs Describe and Read on it", **place
        )
    return BrokerError(f"a broker refuses: {error_name(code)}", **place)


_VERSIONS_API_VERSION: Final = 3
"""Of ApiVersions; every broker from 2.4 on knows it (KIP-511)."""
_API_VERSIONS_KEY: Final = 18
_SIZE: Final = struct.Struct(">i")
_CORRELATION: Final = struct.Struct(">i")
_MAX_ANSWER_BYTES: Final = 64 << 20
"""Of all answers but those with records, whose bound the caller knows."""
_LEAST_FETCH: Final = 13
"""The first that names topics by id (Kafka 3.1, KIP-516)."""
_FETCH_KEY: Final = 1
_NO_ERROR: Final = 0


class LostConnectionError(Exception):
    """The connection is of no use any more; another one may do. Its text holds no credential."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that was sent, and whose answer is due.

    Attributes:
        header: What kafka-python needs to decode the answer.
        timeout_seconds: When to give up, from when somebody waits for it: the answer may lie there
            for long, where what was read before is still written.
    """

    header: Any
    timeout_seconds: float


class Connection:
    """A socket to a broker, logged in. Used by one thread at a time.

    Args:
        settings: How to connect.
        host: Name or address.
        port: TCP port.

    Attributes:
        address: Host and port.

    Raises:
        LostConnectionError: The broker cannot be reached, or hung up.
        BrokerError: It is too old, or refuses the login.
        InvalidOptionError: The extra `kafka` is not installed.
    """

    def __init__(self, settings: BrokerSettings, host: str, port: int) -> None:
        require_kafka()
        self.address = host, port
        self._settings = settings
        self._place = f"{host}:{port}"
        self._correlation = 0
        self._buffer = bytearray()
        self._versions: Any = None
        self._expires = float("inf")
        self._socket = self._connected(host, port)
        try:
            self._negotiate()
            if settings.security.reveal().protocol.startswith("SASL"):
                self._log_in(host)
        except BaseException:
            self.close()
            raise

    def is_usable(self, seconds: float) -> bool:
        """Whether the socket is open and the login lasts for so long (KIP-368)."""
        return self._socket.fileno() >= 0 and time.monotonic() + seconds < self._expires

    def version(self, request: Any) -> int:  # noqa: ANN401  # kafka-python's message class
        """The version of a request that both sides know best."""
        return int(self._versions.api_version(request))

    def ask(self, request: Any, *, patience_seconds: float = 0.0) -> Any:  # noqa: ANN401
        """The answer to a request.

        Args:
            request: A message of kafka-python.
            patience_seconds: How long the broker may take beyond `request.timeout.ms`.

        Raises:
            LostConnectionError: No answer came, or not all of it.
            BrokerError: The broker is too old for the request.
        """
        return self.receive(self.send(request, patience_seconds=patience_seconds))

    def send(self, request: Any, *, patience_seconds: float = 0.0) -> Pending:  # noqa: ANN401
        """Sends a request; `receive` gives its answer. Answers come in the order of requests."""
        if request.API_VERSION is None:
            request.API_VERSION = self._known_version(request)
        self._correlation += 1
        request.with_header(
            correlation_id=self._correlation, client_id=self._settings.client_id or None
        )
        timeout = self._settings.request_timeout_seconds + patience_seconds
        with self._losing():
            self._socket.settimeout(timeout)
            self._socket.sendall(request.encode(framed=True, header=True))
        return Pending(request.header, timeout)

    def receive(self, pending: Pending, *, most_bytes: int = _MAX_ANSWER_BYTES) -> Any:  # noqa: ANN401
        """The answer to the oldest request without one. Bytes in it are views of a buffer that the
        next call overwrites.

        Args:
            pending: That request.
            most_bytes: A longer answer is an error.

        Raises:
            LostConnectionError: No answer came, or not all of it, or not one that can be decoded.
        """
        deadline = time.monotonic() + pending.timeout_seconds
        with self._losing():
            (size,) = _SIZE.unpack(self._read(4, deadline))
            if not 4 <= size <= most_bytes:
                raise LostConnectionError(
                    f"{self._place} announced an answer of {size:,} bytes, at most {most_bytes:,}"
                    " are expected: a batch above maxBatchBytes, no Kafka broker, or one that"
                    " wants TLS"
                )
            data = self._read(size, deadline)
            (correlation,) = _CORRELATION.unpack(data[:4])
            if correlation != self._correlation_of(pending):
                raise LostConnectionError(f"{self._place} answered another request than was asked")
            return self._decoded(pending.header, data)

    def close(self) -> None:
        """Hangs up."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _known_version(self, request: Any) -> int:  # noqa: ANN401
        from kafka.errors import IncompatibleBrokerVersion

        try:
            return self.version(request)
        except IncompatibleBrokerVersion:
            raise BrokerError(
                f"broker {self._place} does not know request {type(request).__name__}: it is too"
                " old, or no Kafka"
            ) from None

    @staticmethod
    def _correlation_of(pending: Pending) -> int:
        return int(pending.header.correlation_id)

    def _decoded(self, header: Any, data: memoryview) -> Any:  # noqa: ANN401
        message = header.get_response_class()
        is_flexible = message[None].flexible_version_q(header.request_api_version)
        # The header of ApiVersions has no tags in any version, so that old clients can read it.
        start = 5 if is_flexible and message.API_KEY != _API_VERSIONS_KEY else 4
        try:
            return message.decode(data[start:])
        except Exception as error:  # noqa: BLE001  # damaged bytes raise anything there
            raise LostConnectionError(
                f"{self._place} answered what is not a {message[None].__name__}:"
                f" {type(error).__name__}"
            ) from None

    def _read(self, size: int, deadline: float) -> memoryview:
        """The next bytes, in the buffer."""
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        at = 0
        while at < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            count = self._socket.recv_into(view[at:])
            if count == 0:
                raise LostConnectionError(f"{self._place} hung up")
            at += count
        return view

    @contextlib.contextmanager
    def _losing(self) -> Any:  # noqa: ANN401
        """Closes the socket where it is of no use any more: an answer half read is not skipped."""
        try:
            yield
        except LostConnectionError:
            self.close()
            raise
        except TimeoutError:
            self.close()
            raise LostConnectionError(f"{self._place} did not answer in time") from None
        except OSError as error:
            self.close()
            raise LostConnectionError(f"{self._place}: {_text(error)}") from None

    def _connected(self, host: str, port: int) -> socket.socket:
        timeout = self._settings.connect_timeout_seconds
        security = self._settings.security.reveal()
        try:
            plain = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise LostConnectionError(f"{self._place}: {_text(error)}") from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not security.protocol.endswith("SSL"):
                return plain
            from kts_source.broker.tls import ssl_context

            plain.settimeout(timeout)
            secured: socket.socket = ssl_context(security).wrap_socket(plain, server_hostname=host)
            return secured
        except OSError as error:
            plain.close()
            import ssl

            if isinstance(error, ssl.SSLCertVerificationError):
                raise BrokerError(
                    f"the certificate of broker {self._place} is not trusted:"
                    f" {error.verify_message}; check kafka.ssl.truststore.location and the host"
                    " name"
                ) from None
            raise LostConnectionError(f"{self._place}: TLS failed: {_text(error)}") from None

    def _negotiate(self) -> None:
        from kafka.protocol.broker_version_data import BrokerVersionData
        from kafka.protocol.metadata import ApiVersionsRequest

        request = ApiVersionsRequest(
            version=_VERSIONS_API_VERSION,
            client_software_name="tiered-kafka",
            client_software_version=_own_version(),
        )
        answer = self.ask(request)
        if answer.error_code != _NO_ERROR:
            raise BrokerError(
                f"broker {self._place} does not tell its versions (error {answer.error_code}): it"
                " is older than Kafka 3.1"
            )
        known = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
        if known.get(_FETCH_KEY, (0, 0))[1] < _LEAST_FETCH:
            raise BrokerError(
                f"broker {self._place} is older than Kafka 3.1: it cannot fetch by topic id, and by"
                " name a re-created topic answers for the one that was planned"
            )
        self._versions = BrokerVersionData(api_versions=known)

    def _log_in(self, host: str) -> None:
        from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

        security = self._settings.security.reveal()
        handshake = self.ask(SaslHandshakeRequest(mechanism=security.mechanism, version=1))
        if handshake.error_code != _NO_ERROR:
            offered = ", ".join(sorted(handshake.mechanisms)) or "none"
            raise BrokerError(
                f"broker {self._place} does not offer SASL mechanism {security.mechanism} here; it"
                f" offers {offered}"
            )
        client = sasl_client(security, host)
        lifetime_ms = 0
        while not client.is_done():
            answer = self.ask(SaslAuthenticateRequest(auth_bytes=client.auth_bytes(), version=1))
            if answer.error_code != _NO_ERROR:
                reason = scrub(
                    answer.error_message or f"error {answer.error_code}", security.secret_values()
                )
                raise BrokerError(f"broker {self._place} refused the login: {reason}")
            client.receive(bytes(answer.auth_bytes))
            lifetime_ms = answer.session_lifetime_ms
        if lifetime_ms > 0:
            self._expires = time.monotonic() + lifetime_ms / 1000


def _own_version() -> str:
    try:
        return metadata.version("tiered-kafka")
    except metadata.PackageNotFoundError:  # its folder is on the path, and nothing is installed
        return "unknown"


def _text(error: OSError) -> str:
    return error.strerror or type(error).__name__
