"""Runs a JVM and uses its classes from Python, without a Java compiler."""

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
    """Runs a JVM with this class path during a `with` block; yields the root of its packages.

    For example, `jvm.java.util.HashMap()` creates a Java object.

    If java is missing, skips the calling test, or fails it if `KTS_CI_FULL=1`.
    """
    needs("java")
    command = ["java", "-Xmx300m", "-cp", os.pathsep.join((find_jar_path(), class_path))]
    # The gateway uses a free port of the loopback interface and ends when its stdin is closed.
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
                # Otherwise, collecting Java objects as garbage may connect to an ended JVM.
                enable_memory_management=False,
            )
            gateway = JavaGateway(gateway_parameters=settings)
            try:
                yield gateway.jvm
            finally:
                gateway.close()
        finally:
            process.kill()
