"""Runs a TCP proxy with the latency and the bandwidth of a distant object store.

`python -m benchmarks.paced_proxy HOST PORT FIRST_BYTE_SECONDS BYTES_PER_SECOND` prints the port of
the proxy, which ends when its standard input is closed. With zero for both numbers, it forwards
without delay. This is the baseline, because the proxy itself takes processor time. Responses stay
in the kernel (`splice`), so that the proxy leaves most of the processors to client and server.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass

_PIECE = 256 << 10
_SHORTEST_PAUSE = 0.002  # timers are not finer


@dataclass(slots=True)
class _Tunnel:
    client: socket.socket
    upstream: socket.socket
    first_byte_seconds: float
    bytes_per_second: float
    due: float = 0.0  # earliest time for the next byte of the response

    def send_requests(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.client.recv(_PIECE):
                self.due = time.monotonic() + self.first_byte_seconds
                self.upstream.sendall(data)
        self._end()

    def send_responses(self) -> None:
        output, into = os.pipe()
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIECE)
        with contextlib.suppress(OSError):
            while size := os.splice(self.upstream.fileno(), into, _PIECE):
                if self.bytes_per_second:
                    if (wait := self.due - time.monotonic()) > _SHORTEST_PAUSE:
                        time.sleep(wait)
                    self.due += size / self.bytes_per_second
                while size:
                    size -= os.splice(output, self.client.fileno(), size)
        os.close(output)
        os.close(into)
        self._end()

    def _end(self) -> None:
        """Ends the other thread of this tunnel, too."""
        for sock in (self.client, self.upstream):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def serve(host: str, port: int, first_byte_seconds: float, bytes_per_second: float) -> None:
    """Runs the proxy until standard input is closed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            upstream = socket.create_connection((host, port))
            for sock in (client, upstream):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tunnel = _Tunnel(client, upstream, first_byte_seconds, bytes_per_second)
            for forward in (tunnel.send_requests, tunnel.send_responses):
                threading.Thread(target=forward, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
