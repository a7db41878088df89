"""A TCP proxy that gives a server the latency and the bandwidth of a distant object store.

`python -m benchmarks.paced_proxy HOST PORT FIRST_BYTE_SECONDS BYTES_PER_SECOND` prints its port and
ends with its standard input. Zero for both passes everything on at once: the base to compare with,
since the proxy itself takes processor time too.
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
_SHORTEST_PAUSE = 0.002  # timers are no finer


async def serve(host: str, port: int, first_byte_seconds: float, bytes_per_second: float) -> None:
    """Runs until standard input ends."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, requests = await asyncio.open_connection(host, port, limit=4 * _PIECE)
        due = 0.0  # when the next byte of the answer may leave

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
