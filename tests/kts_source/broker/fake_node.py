"""Simulates the listening port of a broker, and injects faults into its responses."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.admin.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from kafka.protocol.admin.groups import ListGroupsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.consumer.group import OffsetCommitRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer.produce import ProduceRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kts_source.broker.fake_broker import FakeCluster

FETCH: Final = "Fetch"
LIST_OFFSETS: Final = "ListOffsets"
METADATA: Final = "Metadata"
EPOCH_ENDS: Final = "OffsetForLeaderEpoch"
API_VERSIONS: Final = "ApiVersions"
CONFIGS: Final = "DescribeConfigs"
OFFSET_COMMIT: Final = "OffsetCommit"
COORDINATOR: Final = "FindCoordinator"
PRODUCER_IDS: Final = "InitProducerId"
ALTER_CONFIGS: Final = "IncrementalAlterConfigs"
GROUPS: Final = "ListGroups"
PRODUCE: Final = "Produce"
GROUP_OFFSETS: Final = "OffsetFetch"
KINDS: Final = {
    0: (PRODUCE, ProduceRequest, (3, 13)),
    1: (FETCH, FetchRequest, (4, 17)),
    2: (LIST_OFFSETS, ListOffsetsRequest, (1, 10)),
    3: (METADATA, MetadataRequest, (0, 13)),
    8: (OFFSET_COMMIT, OffsetCommitRequest, (2, 9)),
    10: (COORDINATOR, FindCoordinatorRequest, (0, 6)),
    9: (GROUP_OFFSETS, OffsetFetchRequest, (1, 10)),
    16: (GROUPS, ListGroupsRequest, (0, 5)),
    18: (API_VERSIONS, ApiVersionsRequest, (0, 4)),
    22: (PRODUCER_IDS, InitProducerIdRequest, (0, 5)),
    23: (EPOCH_ENDS, OffsetForLeaderEpochRequest, (2, 4)),
    32: (CONFIGS, DescribeConfigsRequest, (1, 4)),
    44: (ALTER_CONFIGS, IncrementalAlterConfigsRequest, (0, 1)),
}
API_VERSIONS_KEY: Final = 18


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that a fake broker injects into its response to one request.

    Attributes:
        code: Error code of every partition in the response.
        change: Function called before the response is created, for example to elect a leader.
        alter: Function that receives the response with its size prefix, and returns the bytes to
            send instead.
        edit: Function that changes the response message in place.
        hang_up: True if the connection is closed after the response.
        pause: Delay in seconds before the response.
        drip: Delay in seconds after each byte of the response.
        node: Id of the node that injects the fault; −1 means any node.
    """

    code: int = 0
    change: Callable[[], object] | None = None
    alter: Callable[[bytes], bytes] | None = None
    edit: Callable[[Any], object] | None = None
    hang_up: bool = False
    pause: float = 0.0
    drip: float = 0.0
    node: int = -1


class FakeNode:
    """A listening port. One thread accepts connections; each connection has its own thread."""

    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self._cluster = cluster
        self.number = number
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Closes the port and all connections."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self._cluster.opened += 1
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError):
            file = client.makefile("rb")
            while True:
                (size,) = struct.unpack(">i", _exactly(file, 4))
                data = _exactly(file, size)
                if not self._respond(client, data):
                    break
        self._open.discard(client)

    def _respond(self, client: socket.socket, data: bytes) -> bool:
        key, version, correlation = struct.unpack(">hhi", data[:8])
        kind, message, _ = KINDS[key]
        (length,) = struct.unpack(">h", data[8:10])
        start = 10 + max(length, 0)
        start += message.flexible_version_q(version)  # an empty tag buffer
        request = message[version].decode(memoryview(data)[start:])
        answer, fault = self._cluster.answer(kind, self.number, request)
        body = answer.encode(version=version)
        flexible = type(answer).flexible_version_q(version) and key != API_VERSIONS_KEY
        body = struct.pack(">i", correlation) + (b"\0" if flexible else b"") + bytes(body)
        framed = struct.pack(">i", len(body)) + body
        if fault.pause:
            time.sleep(fault.pause)
        if fault.alter is not None:
            framed = fault.alter(framed)
        if fault.drip:
            for position in range(len(framed)):
                client.sendall(framed[position : position + 1])
                time.sleep(fault.drip)
        elif framed:
            client.sendall(framed)
        return not fault.hang_up


def _exactly(file: Any, size: int) -> bytes:  # noqa: ANN401
    data: bytes = file.read(size)
    if len(data) != size:
        raise EOFError
    return data
