"""Follows a tier until a signal arrives. Run it with `python -m … FOLDER FORMAT WORKERS`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kts_source.export.follow import follow
from kts_source.export.task_writer import LocalExecutor
from tests.kts_source.export.exporting import Lake, source

if TYPE_CHECKING:
    import pyarrow as pa

    from kts_source.export.follow import RoundMetrics
    from kts_source.export.report import BackfillReport


@dataclass(frozen=True)
class Slow:
    """A transform that returns its rows unchanged. It is slow, so that a signal arrives during a
    round.

    Attributes:
        fingerprint: Empty, so that later exports without a transform can continue the table.
    """

    fingerprint: str = ""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(0.1)
        return batch


def print_round(metrics: RoundMetrics, _total: BackfillReport) -> None:
    """Prints the metrics of a round as one line of JSON on standard output."""
    sys.stdout.write(f"{metrics.to_json()}\n")
    sys.stdout.flush()


def main(folder: str, table_format: str, workers: str) -> None:
    """Exports with `follow=True`. A small limit of bytes per round causes several rounds."""
    settings = Lake(Path(folder), table_format).settings(
        follow=True, interval="1h", round_bytes=250_000, transform=Slow()
    )
    follow(source(), settings, LocalExecutor(int(workers)), on_round=print_round)
    sys.stdout.write("ended\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
