"""Runs a TCP proxy with the latency and the bandwidth of a distant object store.

`python -m benchmarks.paced_proxy HOST PORT FIRST_BYTE_SECONDS BYTES_PER_SECOND` prints the port of
the proxy, which ends when its standard input is closed. With zero for both numbers, it forwards
without delay. This is the baseline, because the proxy itself takes processor time.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE = 256 << 10
_SHORTEST_PAUSE = 0.002  # timers are not finer


async def serve(host: str, port: int, first_byte_seconds: float, bytes_per_second: float) -> None:
    """Runs the proxy until standard input is closed."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, requests = await asyncio.open_connection(host, port, limit=4 * _PIECE)
        due = 0.0  # earliest time for the next byte of the response

        def asked() -> None:
            nonlocal due
            due = time.monotonic() + first_byte_seconds

        async def answers() -> None:
            nonlocal due
            while data := await upstream.read(_PIECE):
                if bytes_per_second:
                    if (wait := due - time.monotonic()) > _SHORTEST_PAUSE:
                        await asyncio.sleep(wait)
                    due += len(data) / bytes_per_second
                writer.write(data)
                await writer.drain()

        with contextlib.suppress(OSError):
            await asyncio.gather(_requests(reader, requests, asked), answers())
        for stream in (requests, writer):
            stream.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


async def _requests(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: Callable[[], None]
) -> None:
    while data := await reader.read(_PIECE):
        asked()
        writer.write(data)
        await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
