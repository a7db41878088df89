"""Runs an in-memory Apicurio Registry, which supports the API of Confluent's registry.

Maven downloads it at the first use.
"""

from __future__ import annotations

import contextlib
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.kafka_jars import CACHE
from tests.needs import needs
from tests.servers import free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "2.6.13.Final"
"""The newest version for which Maven has an artifact that includes all dependencies."""
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_RESOLVE_SECONDS = 280


@contextlib.contextmanager
def apicurio() -> Iterator[str]:
    """Runs the registry during a `with` block; yields the URL of its Confluent-compatible API.

    If java or mvn is missing, skips the calling test, or fails it if `KTS_CI_FULL=1`.
    """
    jar, port = _application() / f"apicurio-registry-app-{VERSION}-runner.jar", free_port()
    options = (f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1")
    with running(["java", "-Xmx400m", *options, "-jar", jar], port, patience_seconds=240):
        yield f"http://127.0.0.1:{port}/apis/ccompat/v7"


def _application() -> Path:
    needs("java", "mvn")
    folder = CACHE / f"apicurio-{VERSION}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={_ARTIFACT}"]
            command.append(f"-DoutputDirectory={scratch}")
            subprocess.run(command, cwd=scratch, check=True, timeout=_RESOLVE_SECONDS)
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as files:
                files.extractall(Path(scratch, "app"), filter="data")
            try:
                # If another process created the folder first, its content is the same.
                Path(scratch, "app").rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    return folder
