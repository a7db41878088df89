"""Exports a topic in this process, and prints its peak memory. Run it with `python -m … TIER TARGET
SORT_BY`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kts_source.export.run import export
from kts_source.export.settings import export_settings
from kts_source.export.task_writer import LocalExecutor


def main(tier: str, target: str, sort_by: str) -> None:
    """Exports topic `large` in a single task. Prints two numbers: the exported rows and the peak
    memory in bytes.
    """
    report = export(
        {"path": tier, "subscribe": "large", "targetPartitionBytes": "8g"},
        export_settings(target, sort_within_files=[sort_by] if sort_by else []),
        LocalExecutor(1),
    )
    # `getrusage` is not used because its peak includes the parent process.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
    sys.stdout.write(f"{report.rows} {peak}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
