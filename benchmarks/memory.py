"""Measures the peak memory of a Spark task's Python process, by record size and `prefetchBytes`.

Each case reads a tier from an S3 server in a new process. Like a slow sink, the process pauses
several times, so that the read-ahead fills up to `prefetchBytes`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.bench import SkippedError
from benchmarks.fetch_s3 import gateway, s3_options, server_program, upload
from benchmarks.report import Row, at_most
from benchmarks.tiers import TierShape, make_tier

PREFETCH_MIB: Final = 8, 32, 128
BASE_MIB: Final = 200
"""Memory of a task's process without `prefetchBytes`, as in `docs/operations.md`."""
_VALUE_BYTES: Final = 100, 1000
_PAUSE_BATCHES: Final = 64
_PAUSE_SECONDS: Final = 1.0


def run(*, quick: bool) -> list[Row]:
    """Returns two rows per case: the peaks of resident memory and of the address space.

    Raises:
        SkippedError: versitygw is not installed.
    """
    program = server_program()
    if program is None:
        raise SkippedError("no S3 server: install Go, and make bench builds versitygw")
    rows = []
    for value_bytes in _VALUE_BYTES:
        tier = make_tier(TierShape(value_bytes, (128 if quick else 512) << 20, partitions=1))
        with tempfile.TemporaryDirectory() as root, gateway(program, Path(root)) as (port, _):
            upload(port, tier)
            for mib in PREFETCH_MIB:
                options = {**s3_options(tier, port), "prefetchBytes": f"{mib}m"}
                peaks = _in_new_process(options)
                name = f"task's process, {value_bytes} B records, prefetchBytes={mib}m"
                rows += [
                    at_most(f"{name}: peak memory", peaks["VmHWM"], "MiB", BASE_MIB + mib),
                    Row(f"{name}: peak address space", peaks["VmPeak"], "MiB"),
                ]
    return rows


def _in_new_process(options: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", json.dumps(options)],
        check=True,
        capture_output=True,
        text=True,
        timeout=900,
    )
    peaks: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return peaks


def _read(options: dict[str, str]) -> None:
    """Reads a topic as a Spark task does. Prints the peaks of this process in MiB as JSON."""
    import pyspark.worker  # noqa: F401  # a task's process imports it

    from kts_source.options import parse_options
    from kts_source.spark.readers import TieredKafkaBatchReader

    reader = TieredKafkaBatchReader(parse_options(options))
    for partition in reader.partitions():
        for number, _ in enumerate(reader.read(partition)):
            if number % _PAUSE_BATCHES == 0:
                time.sleep(_PAUSE_SECONDS)
    status = Path("/proc/self/status").read_text()
    peaks = {
        name: int(status.partition(f"{name}:")[2].split()[0]) / 1024 for name in ("VmHWM", "VmPeak")
    }
    print(json.dumps(peaks))


if __name__ == "__main__":
    _read(json.loads(sys.argv[1]))
