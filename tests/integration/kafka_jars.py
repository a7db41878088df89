"""Kafka's own jars, resolved once with Maven and kept in the repository's cache folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from tests.needs import needs

KAFKA_VERSION = "4.1.1"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "kafka-jars"

# The test jar holds LocalTieredStorage; the last one lets the broker's log be read.
ARTIFACTS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-storage:{KAFKA_VERSION}:test",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tiered-kafka</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""


def kafka_class_path(artifacts: tuple[str, ...] = ARTIFACTS) -> str:
    """A class path with these Maven artifacts and all that they need.

    Skips the calling test where java or mvn is absent, or fails it when the run promised them.

    Args:
        artifacts: `group:artifact:version` or `group:artifact:version:classifier`.
    """
    needs("java", "mvn")
    pom = _POM.format(dependencies="".join(map(_dependency, artifacts)))
    folder = CACHE / hashlib.sha256(pom.encode()).hexdigest()[:16]
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            _resolve(pom, Path(scratch))
            try:
                # Whoever comes second finds a full folder in the way, which is as good.
                (Path(scratch) / "libs").rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    return f"{folder}{os.sep}*"


def _resolve(pom: str, scratch: Path) -> None:
    (scratch / "pom.xml").write_text(pom)
    run = subprocess.run(
        ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"],
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if run.returncode != 0:
        raise RuntimeError(f"Maven could not resolve Kafka's jars:\n{run.stdout[-4000:]}")


def _dependency(artifact: str) -> str:
    names = ("groupId", "artifactId", "version", "classifier")
    members = zip(names, artifact.split(":"), strict=False)
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in members)
    return f"<dependency>{inner}</dependency>"
