"""Runs server programs on a free loopback port for the duration of a test."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.needs import needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# An S3 gateway that serves a local folder. The benchmarks use it, too.
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
BUILD = Path(__file__).resolve().parents[1] / "build"
_START_SECONDS = 120
_STOP_SECONDS = 30
_GO_SECONDS = 800
_NPM_SECONDS = 500
_INSTALL_ATTEMPTS = 3
_RETRY_SECONDS = 5
_SHOWN_CHARACTERS = 2_000
_PORTS = range(20_000, 32_000)
"""Ports below the range that operating systems assign to client connections. The range starts at
32768 on Linux and at 49152 on other systems.
"""


@contextlib.contextmanager
def build_lock(name: str) -> Iterator[None]:
    """Lets only one process of this checkout at a time run the `with` block. Blocks with different
    lock names can run at the same time.
    """
    folder = BUILD / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def go_program(module: str) -> Path:
    """Returns the path of a program. If it is not on PATH, builds it with Go, once per checkout.
    `module` is a package and version, such as `example.com/tool@v1.0.0`.
    """
    name = module.partition("@")[0].rpartition("/")[2]
    installed = shutil.which(name)
    if installed:
        return Path(installed)
    needs("go")
    path = BUILD / "go" / name

    def build(scratch: Path) -> Path:
        _install(["go", "install", module], _GO_SECONDS, {"GOBIN": str(scratch)})
        return scratch / name

    _build_once(path, build)
    return path


def npm_script(package: str, script: str) -> list[str]:
    """Returns the command for a script of an npm package, which is installed once per checkout.
    `package` is a name and version, such as `tool@1.0.0`. `script` is a path relative to the
    folder of the package.
    """
    needs("npm", "node")
    folder = BUILD / "npm" / package

    def build(scratch: Path) -> Path:
        quiet = ["--no-audit", "--no-fund", "--loglevel", "error", "--prefix", str(scratch)]
        _install(["npm", "install", *quiet, package], _NPM_SECONDS)
        return scratch

    _build_once(folder, build)
    return ["node", str(folder / "node_modules" / package.partition("@")[0] / script)]


def _build_once(target: Path, build: Callable[[Path], Path]) -> None:
    """Creates the file or folder `target` unless it exists. Other processes wait meanwhile.

    `build` gets an empty temporary folder and returns the path of its result, which is then
    renamed. An interrupted build therefore leaves no incomplete target.
    """
    with build_lock(target.name):
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                dir=target.parent, ignore_cleanup_errors=True
            ) as scratch:
                folder = Path(scratch, "build")
                folder.mkdir()
                build(folder).rename(target)


def _install(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> None:
    """Runs an installer and retries if it fails, because downloads from registries can fail."""
    deadline = time.monotonic() + seconds
    for attempts_left in reversed(range(_INSTALL_ATTEMPTS)):
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=max(1.0, deadline - time.monotonic()),
            check=False,
        )
        if done.returncode == 0:
            return
        if attempts_left:
            time.sleep(_RETRY_SECONDS)
    raise AssertionError(f"{' '.join(command)} failed:\n{done.stdout[-_SHOWN_CHARACTERS:]}")


def free_port() -> int:
    """Returns a port that no server listens on."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Returns different ports that no server listens on.

    The ports are outside the range that the operating system assigns to client connections. Inside
    the range, a client could occupy a port before the server starts, or while it restarts.
    """
    choose = random.SystemRandom()
    candidates = _worker_ports()
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            probe, port = stack.enter_context(socket.socket()), choose.choice(candidates)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def _worker_ports() -> range:
    """Returns the ports of this pytest worker; workers have different ports."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return _PORTS[worker::workers]


@contextlib.contextmanager
def running(
    command: Sequence[str | Path],
    port: int,
    *,
    host: str = "127.0.0.1",
    environment: Mapping[str, str] | None = None,
    patience_seconds: float = _START_SECONDS,
) -> Iterator[None]:
    """Runs a server during the `with` block.

    Enters the block when the port accepts connections.

    Raises:
        AssertionError: The server exits, or accepts no connection within `patience_seconds`.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [str(argument) for argument in command],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            deadline = time.monotonic() + patience_seconds
            while not _answers(host, port):
                ended = process.poll() is not None
                if ended or time.monotonic() > deadline:
                    state = f"ended with {process.returncode}" if ended else "does not answer"
                    output.seek(0)
                    text = output.read().decode(errors="replace")[-_SHOWN_CHARACTERS:]
                    raise AssertionError(f"{command[0]} {state} (port {port}):\n{text}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
