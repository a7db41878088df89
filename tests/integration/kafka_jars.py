"""Resolves the jars of Kafka, Spark's Kafka source, and Spark's Delta and Iceberg readers.

Maven downloads them once into the cache folder of the repository.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from tests.needs import needs
from tests.servers import build_lock

KAFKA_VERSION = "4.1.1"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "kafka-jars"

OLDEST_KAFKA = "3.9.2"
NEWEST_KAFKA = "4.4.0"
"""`OLDEST_KAFKA` is the first release with production-ready tiered storage."""
LAST_STORAGE_TESTS = "4.3.1"
"""The last release with a `kafka-storage` test jar on Maven; it contains `LocalTieredStorage`."""

SPARK_KAFKA = {
    "4.0": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
    "4.2": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
}
"""Spark's Kafka source by tested Spark version. Maven has none for 4.3 yet."""
SPARK_AVRO = "org.apache.spark:spark-avro_2.13:4.0.0"
# Maven artifacts that PySpark already contains.
SPARK_PROVIDES = ("org.apache.spark:spark-sql_2.13", "org.apache.hadoop:*")

# The JDBC driver opens the SQLite catalog of PyIceberg.
SPARK_LAKE = (
    "io.delta:delta-spark_2.13:4.0.0",
    "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
SPARK_DELTA = {
    "4.0": "io.delta:delta-spark_2.13:4.0.0",
    "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
"""Maven artifact of Delta's Spark writer, by Spark version."""
SPARK_PROVIDES_ALL = ("org.apache.spark:*", "org.scala-lang:*", "org.antlr:*", "org.slf4j:*")

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tiered-kafka</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""


# Use only Maven Central. Spark's POMs name a second repository, which may be unreachable.
_SETTINGS = """<settings>
  <mirrors>
    <mirror>
      <id>central-only</id>
      <mirrorOf>*</mirrorOf>
      <url>https://repo.maven.apache.org/maven2</url>
    </mirror>
  </mirrors>
</settings>
"""


def kafka_class_path(version: str = KAFKA_VERSION) -> str:
    """Returns a class path with the broker of this Kafka version, its tools and
    `LocalTieredStorage`.

    If java or mvn is missing, skips the calling test, or fails it if `KTS_CI_FULL=1`.
    """
    artifacts = (
        f"org.apache.kafka:kafka_2.13:{version}",
        f"org.apache.kafka:kafka-tools:{version}",
        # The broker needs this artifact to write its log.
        "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
    )
    if release_of(version) <= release_of(LAST_STORAGE_TESTS):
        return class_path((*artifacts, f"org.apache.kafka:kafka-storage:{version}:test"))
    # LocalTieredStorage also needs classes that newer releases of kafka-clients moved, so append an
    # older kafka-clients. The broker finds all other classes in its own jars, which come first.
    older = _jars(_pom((f"org.apache.kafka:kafka-storage:{LAST_STORAGE_TESTS}:test",)))
    names = (
        f"kafka-storage-{LAST_STORAGE_TESTS}-test.jar",
        f"kafka-clients-{LAST_STORAGE_TESTS}.jar",
    )
    return os.pathsep.join([class_path(artifacts), *(str(older / name) for name in names)])


def release_of(version: str) -> tuple[int, ...]:
    """Returns a version as a tuple of numbers, so that versions can be compared."""
    return tuple(int(number) for number in version.split("."))


def class_path(artifacts: tuple[str, ...]) -> str:
    """Returns a class path with these Maven artifacts, `group:artifact:version` or
    `group:artifact:version:classifier`, and their dependencies.

    If java or mvn is missing, skips the calling test, or fails it if `KTS_CI_FULL=1`.
    """
    return f"{_jars(_pom(artifacts))}{os.sep}*"


def spark_kafka_jars(spark: str = "4.0") -> tuple[Path, ...]:
    """Returns the jars that `format("kafka")` needs in addition to the jars of PySpark.

    `spark` is a key of `SPARK_KAFKA`. If java or mvn is missing, skips or fails the test like
    `class_path`.
    """
    return _spark_jars(SPARK_KAFKA[spark])


def spark_avro_jars() -> tuple[Path, ...]:
    """Returns the jars that `from_avro` of Spark 4.0 needs in addition to the jars of PySpark. If
    java or mvn is missing, skips or fails the test like `class_path`.
    """
    return _spark_jars(SPARK_AVRO)


def _spark_jars(artifact: str) -> tuple[Path, ...]:
    folder = _jars(_pom((artifact,), SPARK_PROVIDES), "-DincludeScope=runtime")
    return tuple(sorted(folder.glob("*.jar")))


def spark_lake_jars() -> tuple[Path, ...]:
    """Returns the jars that Spark 4.0 needs to read Delta tables and Iceberg tables.

    One of the jars reads the SQLite catalog of Iceberg tables. If java or mvn is missing, skips or
    fails the test like `class_path`.
    """
    folder = _jars(_pom(SPARK_LAKE, SPARK_PROVIDES_ALL), "-DincludeScope=runtime")
    return tuple(sorted(folder.glob("*.jar")))


def spark_delta_jars(spark: str) -> tuple[Path, ...]:
    """Returns the jars that Spark needs to write Delta tables. `spark` is a key of `SPARK_DELTA`.
    If java or mvn is missing, skips or fails the test like `class_path`.
    """
    folder = _jars(_pom((SPARK_DELTA[spark],), SPARK_PROVIDES_ALL), "-DincludeScope=runtime")
    return tuple(sorted(folder.glob("*.jar")))


def _jars(pom: str, *options: str) -> Path:
    """Returns a folder with the jars of all dependencies of `pom`, the text of a Maven project
    file. The first call downloads them.
    """
    needs("java", "mvn")
    folder = CACHE / hashlib.sha256(pom.encode()).hexdigest()[:16]
    with build_lock("kafka-jars"):
        if not folder.is_dir():
            CACHE.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                _resolve(pom, Path(scratch), options)
                (Path(scratch) / "libs").rename(folder)
    return folder


def _resolve(pom: str, scratch: Path, options: tuple[str, ...]) -> None:
    (scratch / "pom.xml").write_text(pom)
    (scratch / "settings.xml").write_text(_SETTINGS)
    run = subprocess.run(
        [
            *("mvn", "-q", "-B", "-s", "settings.xml", "dependency:copy-dependencies"),
            *("-DoutputDirectory=libs", *options),
        ],
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if run.returncode != 0:
        raise RuntimeError(f"Maven could not resolve the jars:\n{run.stdout[-4000:]}")


def _pom(artifacts: tuple[str, ...], exclusions: tuple[str, ...] = ()) -> str:
    inner = "".join(f"<exclusion>{_coordinates(name)}</exclusion>" for name in exclusions)
    without = f"<exclusions>{inner}</exclusions>" if exclusions else ""
    return _POM.format(
        dependencies="".join(
            f"<dependency>{_coordinates(artifact)}{without}</dependency>" for artifact in artifacts
        )
    )


def _coordinates(artifact: str) -> str:
    names = ("groupId", "artifactId", "version", "classifier")
    members = zip(names, artifact.split(":"), strict=False)
    return "".join(f"<{name}>{value}</{name}>" for name, value in members)
