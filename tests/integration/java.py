"""Classes of Java, used from Python: a JVM without a compiler must do."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path

from tests.needs import needs

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def java(class_path: str) -> Iterator[Any]:
    """Classes by their full names, as in `found.java.util.HashMap()`, for the block.

    Skips the calling test where java is absent, or fails it when the run promised it.

    Args:
        class_path: Where they are.
    """
    needs("java")
    command = ["java", "-Xmx300m", "-cp", os.pathsep.join((find_jar_path(), class_path))]
    # It listens on loopback only, on a port of its choice, and ends with its standard input.
    command += ["py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            port, token = (process.stdout.readline().strip() for _ in range(2))
            assert token, "the JVM ended"
            settings = GatewayParameters(
                port=int(port),
                auth_token=token,
                auto_convert=True,
                # Else objects that are collected after the JVM's end connect to it once more.
                enable_memory_management=False,
            )
            gateway = JavaGateway(gateway_parameters=settings)
            try:
                yield gateway.jvm
            finally:
                gateway.close()
        finally:
            process.kill()
