"""Servers that are programs: started on a free loopback port, ended with the test."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.needs import needs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# A real S3 gateway over a folder; the benchmarks read from it, too.
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
BUILD = Path(__file__).resolve().parents[1] / "build"
_START_SECONDS = 30
_PORTS = range(20_000, 32_000)
"""Linux gives ports from 32768 on to clients, others from 49152 on."""


@contextlib.contextmanager
def build_lock(name: str) -> Iterator[None]:
    """Holds a lock among all processes of this checkout while something is built.

    Args:
        name: Of what is built; part of a file name.
    """
    folder = BUILD / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def go_program(module: str) -> Path:
    """A program built from its source with Go, once a checkout; one on PATH is taken first.

    Args:
        module: Package and version, such as `example.com/tool@v1.0.0`.
    """
    name = module.partition("@")[0].rpartition("/")[2]
    found = shutil.which(name)
    if found:
        return Path(found)
    needs("go")
    path = BUILD / "go" / name
    with build_lock(f"go-{name}"):
        if not path.exists():
            environment = {**os.environ, "GOBIN": str(path.parent)}
            subprocess.run(["go", "install", module], check=True, env=environment, timeout=800)
    return path


def npm_script(package: str, script: str) -> list[str]:
    """The command that runs a script of an npm package, installed once a checkout.

    Args:
        package: Name and version, such as `tool@1.0.0`.
        script: Path of the script within the package.
    """
    needs("npm", "node")
    folder = BUILD / "npm"
    path = folder / "node_modules" / package.partition("@")[0] / script
    with build_lock("npm"):
        if path.exists():
            return ["node", str(path)]
        quiet = ["--no-audit", "--no-fund", "--silent", "--prefix", str(folder)]
        subprocess.run(["npm", "install", *quiet, package], check=True, timeout=500)
    return ["node", str(path)]


def free_port() -> int:
    """A port that nothing listens to."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, all different, and none that a client is given by the system: its
    connection may take the port before the server is up, or while it is started again.
    """
    choose = random.SystemRandom()
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            probe, port = stack.enter_context(socket.socket()), choose.choice(_PORTS)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


@contextlib.contextmanager
def running(
    command: Sequence[str | Path],
    port: int,
    *,
    environment: Mapping[str, str] | None = None,
    patience_seconds: float = _START_SECONDS,
) -> Iterator[None]:
    """Runs a server for the block, which begins when its port answers."""
    process = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + patience_seconds
        while not _answers(port):
            assert process.poll() is None, f"{command[0]} ended"
            assert time.monotonic() < deadline, f"{command[0]} does not answer"
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
