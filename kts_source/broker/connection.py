"""One blocking connection to one broker, and the error codes of Kafka's protocol.

kafka-python encodes and decodes the messages. kafka-python's transport is not used, because it
receives only 4 KiB at a time and copies the bytes four times.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kts_source.broker.sasl import require_kafka, sasl_client
from kts_source.errors import BrokerAccessError, BrokerError
from kts_source.libraries import package_version
from kts_source.secret import scrub

if TYPE_CHECKING:
    from typing import Unpack

    from kts_source.broker.settings import BrokerSettings
    from kts_source.errors import ErrorLocation


_NAMES: Final = {
    -1: "UNKNOWN_SERVER_ERROR",
    1: "OFFSET_OUT_OF_RANGE",
    2: "CORRUPT_MESSAGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    5: "LEADER_NOT_AVAILABLE",
    6: "NOT_LEADER_OR_FOLLOWER",
    7: "REQUEST_TIMED_OUT",
    8: "BROKER_NOT_AVAILABLE",
    9: "REPLICA_NOT_AVAILABLE",
    13: "NETWORK_EXCEPTION",
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    29: "TOPIC_AUTHORIZATION_FAILED",
    31: "CLUSTER_AUTHORIZATION_FAILED",
    35: "UNSUPPORTED_VERSION",
    56: "KAFKA_STORAGE_ERROR",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    89: "THROTTLING_QUOTA_EXCEEDED",
    100: "UNKNOWN_TOPIC_ID",
    103: "INCONSISTENT_TOPIC_ID",
}
"""Names of the error codes that a reader may receive."""
_CODES: Final = {name: code for code, name in _NAMES.items()}
UNKNOWN_SERVER_ERROR: Final = _CODES["UNKNOWN_SERVER_ERROR"]
OFFSET_OUT_OF_RANGE: Final = _CODES["OFFSET_OUT_OF_RANGE"]
UNKNOWN_TOPIC_OR_PARTITION: Final = _CODES["UNKNOWN_TOPIC_OR_PARTITION"]
LEADER_NOT_AVAILABLE: Final = _CODES["LEADER_NOT_AVAILABLE"]
NOT_LEADER_OR_FOLLOWER: Final = _CODES["NOT_LEADER_OR_FOLLOWER"]
REPLICA_NOT_AVAILABLE: Final = _CODES["REPLICA_NOT_AVAILABLE"]
FENCED_LEADER_EPOCH: Final = _CODES["FENCED_LEADER_EPOCH"]
UNKNOWN_LEADER_EPOCH: Final = _CODES["UNKNOWN_LEADER_EPOCH"]
OFFSET_NOT_AVAILABLE: Final = _CODES["OFFSET_NOT_AVAILABLE"]
UNKNOWN_TOPIC_ID: Final = _CODES["UNKNOWN_TOPIC_ID"]

NEW_LEADER: Final = frozenset(
    {LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH}
)
"""Error codes that mean that the leader of the partition has changed or will soon change."""

PASSING: Final = NEW_LEADER | {
    UNKNOWN_TOPIC_OR_PARTITION,  # the broker has not received the topic's metadata yet
    _CODES["REQUEST_TIMED_OUT"],
    _CODES["BROKER_NOT_AVAILABLE"],
    REPLICA_NOT_AVAILABLE,  # also if the broker has not loaded its tier metadata yet
    _CODES["NETWORK_EXCEPTION"],
    _CODES["COORDINATOR_LOAD_IN_PROGRESS"],
    _CODES["KAFKA_STORAGE_ERROR"],
    OFFSET_NOT_AVAILABLE,
    _CODES["THROTTLING_QUOTA_EXCEEDED"],
    UNKNOWN_SERVER_ERROR,
}
"""Error codes after which the same request may succeed later."""

DENIED: Final = frozenset(
    {_CODES["TOPIC_AUTHORIZATION_FAILED"], _CODES["CLUSTER_AUTHORIZATION_FAILED"]}
)
TOPIC_GONE: Final = frozenset({UNKNOWN_TOPIC_ID, _CODES["INCONSISTENT_TOPIC_ID"]})


def error_name(code: int) -> str:
    """Returns Kafka's name of an error code, followed by the code as a number."""
    return f"{_NAMES[code]} ({code})" if code in _NAMES else f"error {code}"


def refusal(code: int, **location: Unpack[ErrorLocation]) -> BrokerError:
    """Returns the exception for an error code that retries cannot change."""
    if code in DENIED:
        return BrokerAccessError(
            "not allowed to read the topic: the user needs Describe and Read on it", **location
        )
    return BrokerError(f"a broker refuses the request: {error_name(code)}", **location)


_VERSIONS_API_VERSION: Final = 3  # since Kafka 2.4 (KIP-511)
_API_VERSIONS_KEY: Final = 18
_SIZE: Final = struct.Struct(">i")
_CORRELATION: Final = struct.Struct(">i")
_MAX_ANSWER_BYTES: Final = 64 << 20
"""Default maximum size of a response in bytes. Fetches of records set their own maximum."""
_MIN_FETCH: Final = 13
"""The first version of Fetch that identifies topics by id (Kafka 3.1, KIP-516)."""
_FETCH_KEY: Final = 1
_NO_ERROR: Final = 0


class LostConnectionError(Exception):
    """A connection cannot be opened, or is no longer usable. The text contains no credentials."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that was sent and whose response has not been received.

    Attributes:
        header: The header that kafka-python needs to decode the response.
        timeout_seconds: Timeout of the response. It starts at the call of `receive`, because the
            caller may be busy with earlier responses before that call.
    """

    header: Any
    timeout_seconds: float


class Connection:
    """An authenticated connection to a broker. Only one thread at a time may use it.

    Args:
        settings: Timeouts, client id and security settings.
        connect_seconds: Overrides the timeout of opening the connection.
        answer_seconds: Overrides the timeouts of the TLS handshake and of the first response.

    Raises:
        LostConnectionError: The broker cannot be reached, or closed the connection.
        BrokerError: The broker is too old, or rejects the login.
        MissingExtraError: The extra `kafka` is not installed.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        host: str,
        port: int,
        *,
        connect_seconds: float | None = None,
        answer_seconds: float | None = None,
    ) -> None:
        require_kafka()
        self.address = host, port
        self._settings = settings
        self._place = f"{host}:{port}"
        self._correlation = 0
        self._buffer = bytearray()
        self._versions: Any = None
        self._expires = float("inf")
        self._socket = self._connected(
            host, port, connect_seconds or settings.connect_timeout_seconds, answer_seconds
        )
        try:
            self._negotiate(answer_seconds or settings.request_timeout_seconds)
            if settings.security.reveal().protocol.startswith("SASL"):
                self._log_in(host)
        except BaseException:
            self.close()
            raise

    def is_usable(self, seconds: float) -> bool:
        """Returns True if the socket is open and the login stays valid for at least `seconds`
        seconds (KIP-368).
        """
        return self._socket.fileno() >= 0 and time.monotonic() + seconds < self._expires

    def version(self, request: Any) -> int:  # noqa: ANN401  # kafka-python's message class
        """Returns the newest version of a request that kafka-python and the broker support."""
        return int(self._versions.api_version(request))

    def ask(self, request: Any, *, patience_seconds: float = 0.0) -> Any:  # noqa: ANN401
        """Sends a request, which is a message of kafka-python, and returns the response. Waits for
        the response for `request.timeout.ms` plus `patience_seconds`.

        Raises:
            LostConnectionError: No complete response arrived.
            BrokerError: The broker is too old for the request.
        """
        return self.receive(self.send(request, patience_seconds=patience_seconds))

    def send(self, request: Any, *, patience_seconds: float = 0.0) -> Pending:  # noqa: ANN401
        """Sends a request without waiting for its response, and returns a `Pending` for `receive`.
        Several requests may be pending. Brokers send their responses in the order of the requests.
        """
        if request.API_VERSION is None:
            request.API_VERSION = self._known_version(request)
        self._correlation += 1
        request.with_header(
            correlation_id=self._correlation, client_id=self._settings.client_id or None
        )
        timeout = self._settings.request_timeout_seconds + patience_seconds
        with self._closing_on_error():
            self._socket.settimeout(timeout)
            self._socket.sendall(request.encode(framed=True, header=True))
        return Pending(request.header, timeout)

    def receive(self, pending: Pending, *, max_bytes: int = _MAX_ANSWER_BYTES) -> Any:  # noqa: ANN401
        """Returns the response to the oldest pending request, of at most `max_bytes` bytes. Byte
        fields of the response are views of a buffer, which the next call overwrites.

        Raises:
            LostConnectionError: No complete and valid response arrived.
        """
        deadline = time.monotonic() + pending.timeout_seconds
        with self._closing_on_error():
            (size,) = _SIZE.unpack(self._read(4, deadline))
            if not 4 <= size <= max_bytes:
                raise LostConnectionError(
                    f"{self._place} announced a response of {size:,} bytes, but at most"
                    f" {max_bytes:,} are expected: a batch is larger than maxBatchBytes, the"
                    " server is not a Kafka broker, or it requires TLS"
                )
            data = self._read(size, deadline)
            (correlation,) = _CORRELATION.unpack(data[:4])
            if correlation != pending.header.correlation_id:
                raise LostConnectionError(f"{self._place} sent a response to another request")
            return self._decoded(pending.header, data)

    def close(self) -> None:
        """Closes the socket."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _known_version(self, request: Any) -> int:  # noqa: ANN401
        from kafka.errors import IncompatibleBrokerVersion

        try:
            return self.version(request)
        except IncompatibleBrokerVersion:
            raise BrokerError(
                f"broker {self._place} does not support request {type(request).__name__}: it is too"
                " old, or it is not a Kafka broker"
            ) from None

    def _decoded(self, header: Any, data: memoryview) -> Any:  # noqa: ANN401
        message = header.get_response_class()
        is_flexible = message[None].flexible_version_q(header.request_api_version)
        # Responses to ApiVersions have no tagged fields in the header, because old clients must be
        # able to read it.
        start = 5 if is_flexible and message.API_KEY != _API_VERSIONS_KEY else 4
        try:
            return message.decode(data[start:])
        except Exception as error:  # noqa: BLE001  # kafka-python may raise any error for damaged bytes
            raise LostConnectionError(
                f"{self._place} sent an invalid {message[None].__name__}: {type(error).__name__}"
            ) from None

    def _read(self, size: int, deadline: float) -> memoryview:
        """Reads the next `size` bytes from the socket into the buffer. Returns a view of these
        bytes.
        """
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        filled = 0
        while filled < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            count = self._socket.recv_into(view[filled:])
            if count == 0:
                raise LostConnectionError(f"{self._place} closed the connection")
            filled += count
        return view

    @contextlib.contextmanager
    def _closing_on_error(self) -> Any:  # noqa: ANN401
        """Converts a network error in the `with` block to `LostConnectionError`, and closes the
        socket. The socket cannot be used again, because the rest of a response may still arrive.
        """
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

    def _connected(
        self, host: str, port: int, timeout: float, handshake_timeout: float | None
    ) -> socket.socket:
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

            plain.settimeout(handshake_timeout or timeout)
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

    def _negotiate(self, timeout: float) -> None:
        from kafka.protocol.broker_version_data import BrokerVersionData
        from kafka.protocol.metadata import ApiVersionsRequest

        request = ApiVersionsRequest(
            version=_VERSIONS_API_VERSION,
            client_software_name="tiered-kafka",
            client_software_version=package_version(),
        )
        answer = self.receive(replace(self.send(request), timeout_seconds=timeout))
        if answer.error_code != _NO_ERROR:
            raise BrokerError(
                f"broker {self._place} does not report its API versions (error"
                f" {answer.error_code}): it is older than Kafka 3.1"
            )
        versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        if versions.get(_FETCH_KEY, (0, 0))[1] < _MIN_FETCH:
            raise BrokerError(
                f"broker {self._place} is older than Kafka 3.1 and cannot fetch by topic id, which"
                " detects topics that were created again. Upgrade it, or remove"
                " kafka.bootstrap.servers to read only the tier"
            )
        self._versions = BrokerVersionData(api_versions=versions)

    def _log_in(self, host: str) -> None:
        from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

        security = self._settings.security.reveal()
        handshake = self.ask(SaslHandshakeRequest(mechanism=security.mechanism, version=1))
        if handshake.error_code != _NO_ERROR:
            offered = ", ".join(sorted(handshake.mechanisms)) or "none"
            raise BrokerError(
                f"broker {self._place} does not offer SASL mechanism {security.mechanism} on this"
                f" listener; it offers {offered}"
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


def _text(error: OSError) -> str:
    return error.strerror or type(error).__name__
