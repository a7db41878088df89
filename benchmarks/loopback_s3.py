"""S3 over loopback HTTP (moto), as it is and behind a proxy with an object store's latency."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

from benchmarks.bench import NEWEST_SPARK, Bench, Contestant
from benchmarks.report import Row
from benchmarks.session import Query
from benchmarks.tiers import Tier, TierShape, make_tier

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_BYTE_SECONDS: Final = 0.06
BYTES_PER_SECOND: Final = 90e6
_KEY: Final = "benchmark-key"
_SECRET: Final = "benchmark-secret-0123456789"
_REGION: Final = "us-east-1"
# Ends with its standard input.
_SERVER: Final = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


def s3_rows(bench: Bench) -> list[Row]:
    """The same tier from a folder, from S3 on loopback, and from the same with 60 ms."""
    tier = make_tier(TierShape(100, (32 if bench.quick else 256) << 20))
    with _server() as (host, port), _slowed(host, port) as slow:
        _upload(f"http://{host}:{port}", tier)
        endpoints = {"S3 on loopback": f"{host}:{port}", "S3 on loopback with 60 ms": slow}
        contestants = {
            "a folder": Contestant(NEWEST_SPARK, Query("tiered-kafka", tier.options)),
            **{
                name: Contestant(NEWEST_SPARK, Query("tiered-kafka", _options(tier, address)))
                for name, address in endpoints.items()
            },
        }
        found = bench.in_turns(contestants, repeats=1 if bench.quick else 3)
    note = "the server is Python on the same cores and sets the speed; see Fetching for ours alone"
    return [
        Row(f"scan, 100 B, from {name}", tier.records / timings.seconds / 1e6, "M records/s").noted(
            "" if name == "a folder" else note
        )
        for name, timings in found.items()
    ]


def _options(tier: Tier, address: str) -> dict[str, str]:
    return {
        **tier.options,
        "path": "s3://bench",
        "cache": "false",
        "s3.endpoint": f"http://{address}",
        "s3.access-key-id": _KEY,
        "s3.secret-access-key": _SECRET,
        "s3.region": _REGION,
        "s3.path-style-access": "true",
    }


@contextlib.contextmanager
def _server() -> Iterator[tuple[str, int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        host, port = process.stdout.readline().split()
        yield host, int(port)
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def _upload(endpoint: str, tier: Tier) -> None:
    import botocore.config
    import botocore.session

    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=_KEY,
        aws_secret_access_key=_SECRET,
        region_name=_REGION,
        config=botocore.config.Config(s3={"addressing_style": "path"}),
    )
    client.create_bucket(Bucket="bench")
    for path in sorted(tier.path.glob("*/*/*")):
        key = path.relative_to(tier.path).as_posix()
        client.put_object(Bucket="bench", Key=key, Body=path.read_bytes())
    client.close()


@contextlib.contextmanager
def _slowed(host: str, port: int) -> Iterator[str]:
    """A proxy that delays the first byte of every answer and paces the rest; its address."""
    loop = asyncio.new_event_loop()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            upstream, requests = await asyncio.open_connection(host, port)
            asked = asyncio.Event()
            await asyncio.gather(
                _forward_requests(reader, requests, asked),
                _forward_answers(upstream, writer, asked),
            )

    server = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0))
    name = server.sockets[0].getsockname()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"{name[0]}:{name[1]}"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def _forward_requests(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: asyncio.Event
) -> None:
    while data := await reader.read(1 << 16):
        asked.set()
        writer.write(data)
        await writer.drain()
    writer.close()


async def _forward_answers(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: asyncio.Event
) -> None:
    while data := await reader.read(1 << 18):
        if asked.is_set():
            asked.clear()
            await asyncio.sleep(FIRST_BYTE_SECONDS)
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(len(data) / BYTES_PER_SECOND)
    writer.close()
