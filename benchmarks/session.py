"""Runs Spark in a separate process, which executes one query after another and is controlled
through pipes.

The Python environment of the process determines the Spark version, so two versions can run in
turns. The process reads a `Query` as a line of JSON and responds with a line of JSON: `{"seconds",
"rows"}` or `{"error"}`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

ROOT: Final = Path(__file__).resolve().parents[1]
NEWEST: Final = Path(sys.executable)
OLDEST: Final = ROOT / ".venv-spark40" / "bin" / "python"
SAIL: Final = ROOT / ".venv-engines" / "bin" / "python"

ZSTD_LEVEL: Final = 1
"""Compression level of all Parquet writers. It is the default of Arrow's writer, which exports
use.
"""
ZSTD_LEVEL_OPTION: Final = "parquet.compression.codec.zstd.level"
"""Name of the option that sets the level of Spark's writer, whose default is 3."""


_AGGREGATES: Final = (
    "count(1)",
    "sum(`offset`)",
    "sum(octet_length(`key`))",
    "sum(octet_length(`value`))",
    "max(`topic`)",
    "max(`partition`)",
    "max(`timestamp`)",
    "max(`timestampType`)",
)


@dataclass(frozen=True, slots=True)
class Query:
    """Source and sink of one run.

    Attributes:
        source: Short name of the data source.
        options: Options of the data source.
        select: Columns that Spark selects; empty for all.
        where: Condition of Spark's filter; empty for none.
        sql: SQL query that runs on the rows, which it reads as table `records`; empty for none.
        sink: What Spark does with the rows; one of the sinks below.
        target: Folder of the sinks `parquet` and `backfill`.

    Sinks:
        `noop` drops all rows.
        `count` counts the rows.
        `sum` adds their offsets.
        `limit` fetches ten rows.
        `rows` fetches all rows.
        `number` fetches a single number, the result of `sql`.
        `aggregate` aggregates every column and counts the rows.
        `parquet` writes zstd Parquet files to `target`.
        `backfill` exports to `target` with this library.
        `stream` reads all rows as a stream with the limits in the options, and drops them.
    """

    source: str
    options: Mapping[str, str] = field(default_factory=dict)
    select: tuple[str, ...] = ()
    where: str = ""
    sql: str = ""
    sink: str = "noop"
    target: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a query.

    Attributes:
        seconds: Wall time, including planning.
        rows: Result of sink `number`. For the sinks `count`, `aggregate`, `limit` and `rows`, the
            number of rows; 0 for all other sinks.
        jvm: Processor seconds of the JVM.
        python: Processor seconds of Python processes.
        other: Processor seconds of an additional process that worked for the query, such as a
            broker.
    """

    seconds: float
    rows: int
    jvm: float
    python: float
    other: float = 0.0

    @property
    def processor(self) -> float:
        """Returns the total processor seconds."""
        return self.jvm + self.python + self.other


class Session:
    """A running Spark process.

    Args:
        python: Interpreter of an environment with pyspark.
        cores: Cores of local mode.
        unix_sockets: True if workers use Unix domain sockets to the JVM.
        jars: Value of `spark.jars`.
        settings: Additional Spark settings.
        on_sail: True if Sail runs the queries instead of Spark, in the same process.
    """

    def __init__(
        self,
        python: Path = NEWEST,
        *,
        cores: int = 2,
        unix_sockets: bool = False,
        jars: Sequence[Path] = (),
        settings: Mapping[str, str] | None = None,
        on_sail: bool = False,
    ) -> None:
        environment = {
            name: text for name, text in os.environ.items() if not name.startswith("PYTHON")
        }
        environment.pop("SPARK_HOME", None)
        environment |= {
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
        }
        spec = {
            "cores": cores,
            "unix_sockets": unix_sockets,
            "on_sail": on_sail,
            "settings": {
                **(settings or {}),
                **({"spark.jars": ",".join(map(str, jars))} if jars else {}),
            },
        }
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the session
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks.session", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        self.spark_version = str(self._answer()["spark"])

    def run(self, query: Query, *, other_pid: int | None = None) -> Run:
        """Runs a query and waits until it ends.

        Args:
            query: The query to run.
            other_pid: An additional process whose processor time is returned as `Run.other`.

        Raises:
            RuntimeError: The query failed. The message is the error of Spark.
        """
        from benchmarks.processes import processor_time

        assert self._process.stdin is not None
        before = processor_time(self._process.pid)
        other = processor_time(other_pid).total if other_pid else 0.0
        self._process.stdin.write(json.dumps(dataclasses.asdict(query)) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        used = processor_time(self._process.pid) - before
        if other_pid:
            other = processor_time(other_pid).total - other
        if "error" in answer:
            raise RuntimeError(f"{query.source}: {answer['error']}")
        return Run(answer["seconds"], answer["rows"], used.jvm, used.python, other)

    def close(self) -> None:
        """Ends the Spark process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # other lines are output of Spark's launcher
                answer: dict[str, Any] = json.loads(line)
                return answer
        code = self._process.wait(30)
        self._errors.seek(0)
        tail = self._errors.read()[-4000:]
        raise RuntimeError(f"the Spark session ended with code {code}:\n{tail}")


def _serve(spec: dict[str, Any]) -> None:
    # Sail's server ends with its last reference.
    server = _sail_server() if spec["on_sail"] else None
    spark = _on_spark(spec) if server is None else _on_sail(server)
    print(json.dumps({"spark": spark.version}), flush=True)
    for line in sys.stdin:
        query = Query(**json.loads(line))
        started = time.perf_counter()
        try:
            rows = _run(spark, query)
            answer: dict[str, Any] = {"seconds": time.perf_counter() - started, "rows": rows}
        except Exception as error:  # noqa: BLE001 - the parent raises it
            answer = {"error": f"{type(error).__name__}: {error}"[:4000]}
        print(json.dumps(answer), flush=True)
    spark.stop()
    if server is not None:
        server.stop()


def _on_spark(spec: dict[str, Any]) -> SparkSession:
    from benchmarks.sparks import CeilingSource, EmptySource, start_spark
    from kts_source import register

    spark = start_spark(
        cores=spec["cores"], unix_sockets=spec["unix_sockets"], settings=spec["settings"]
    )
    register(spark)
    spark.dataSource.register(CeilingSource)
    spark.dataSource.register(EmptySource)
    return spark


def _sail_server() -> Any:  # noqa: ANN401  # in an environment of its own
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer(port=0)
    server.start(background=True)
    return server


def _on_sail(server: Any) -> SparkSession:  # noqa: ANN401
    from pyspark.sql import SparkSession

    from kts_source import register

    address = f"sc://localhost:{server.listening_address[1]}"
    spark: SparkSession = SparkSession.builder.remote(address).getOrCreate()
    register(spark)
    return spark


def _run(spark: SparkSession, query: Query) -> int:
    if query.sink == "backfill":
        from kts_source.spark.backfill import backfill

        backfill(spark, source=dict(query.options), target=query.target, progress=False)
        return 0
    if query.sink == "stream":
        _stream(spark, query)
        return 0
    frame = spark.read.format(query.source).options(**query.options).load()
    if query.where:
        frame = frame.where(query.where)
    if query.select:
        frame = frame.select(*query.select)
    if query.sql:
        frame.createOrReplaceTempView("records")
        frame = spark.sql(query.sql)
    return _sink(frame, query)


def _stream(spark: SparkSession, query: Query) -> None:
    from kts_source import run_available_now

    with tempfile.TemporaryDirectory() as checkpoint:

        def writer(frame: DataFrame) -> Any:  # noqa: ANN401
            return frame.writeStream.format("noop").option("checkpointLocation", checkpoint)

        if query.source == "tiered-kafka":
            run_available_now(spark, dict(query.options), writer)
            return
        frame = spark.readStream.format(query.source).options(**query.options).load()
        writer(frame).trigger(availableNow=True).start().awaitTermination()


def _sink(frame: DataFrame, query: Query) -> int:
    match query.sink:
        case "noop":
            frame.write.format("noop").mode("overwrite").save()
        case "count":
            return int(frame.count())
        case "sum":
            frame.selectExpr("sum(`offset`)").collect()
        case "aggregate":
            return int(frame.selectExpr(*_AGGREGATES).collect()[0][0])
        case "limit":
            return len(frame.limit(10).collect())
        case "number":
            return int(frame.collect()[0][0])
        case "rows":
            return len(frame.collect())
        case "parquet":
            writer = frame.write.mode("overwrite").option("compression", "zstd")
            writer.option(ZSTD_LEVEL_OPTION, str(ZSTD_LEVEL)).parquet(query.target)
        case _:
            raise ValueError(f"unknown sink: {query.sink}")
    return 0


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
